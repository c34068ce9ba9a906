#!/usr/bin/env python3
"""Writes operator cases in the form of ../README.md, computed by eager PyTorch on CPU.

usage: generate.py OUT [--seed N]

Other shapes, dtypes and arguments than those of ../torch_ops: ranks 0 to 5, axes of length 0 and 1,
negative axes, half precision, NaN and infinities, ties, arguments that have a default.
"""
import argparse, itertools, json, os
import torch, torch.nn.functional as F
from safetensors.torch import save_file

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--seed", type=int, default=7)
arguments = parser.parse_args()
torch.manual_seed(arguments.seed)
f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
i64, i32, u8, boolean = torch.int64, torch.int32, torch.uint8, torch.bool
nan, inf = float("nan"), float("inf")
tensors, cases, counts = {}, [], {}
TOLERANCE = {f32: (1e-4, 1e-5), f64: (1e-7, 1e-9), f16: (4e-3, 4e-3), bf16: (2e-2, 2e-2)}


def x(*shape, dtype=f32, low=None, high=None):
    """Random elements: normal, uniform between bounds, or whole numbers."""
    if dtype == boolean:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-5 if low is None else low, 6 if high is None else high, shape).to(dtype)
    if low is not None:
        return (torch.rand(shape, dtype=f64) * (high - low) + low).to(dtype)
    return torch.randn(shape, dtype=f64).to(dtype)


def t(values, dtype=f32):
    return torch.tensor(values, dtype=dtype)


def name_of(value):
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return value


def case(op, call, inputs, grad=True, scale=1, **kwargs):
    """Notes `call(*inputs, **kwargs)`, with gradients of the floating-point inputs."""
    number = counts[op] = counts.get(op, -1) + 1
    id = f"{op}/{number}"
    leaves = [i.clone().requires_grad_(grad and i.is_floating_point()) for i in inputs]
    result = call(*leaves, **kwargs)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    narrowest = [d for d in (bf16, f16, f32) if any(v.dtype == d for v in [*inputs, *outputs])] or [f64]
    rtol, atol = TOLERANCE[narrowest[0]]
    entry = dict(id=id, op=op, inputs=[], kwargs={k: name_of(v) for k, v in kwargs.items()}, outputs=[], rtol=rtol * scale, atol=atol * scale)
    for i, value in enumerate(inputs):
        tensors[f"{id}/in{i}"] = value.detach().clone().contiguous()
        entry["inputs"].append(f"{id}/in{i}")
    for i, value in enumerate(outputs):
        tensors[f"{id}/out{i}"] = value.detach().clone().contiguous()
        entry["outputs"].append(f"{id}/out{i}")
    if outputs[0].requires_grad:
        gradient = torch.randn(outputs[0].shape, dtype=f64).to(outputs[0].dtype)
        grads = torch.autograd.grad(outputs[0], [l for l in leaves if l.requires_grad], gradient, allow_unused=True)
        grads = iter(grads)
        entry["grad_output"], entry["grads"] = f"{id}/grad_out", []
        tensors[f"{id}/grad_out"] = gradient
        for i, leaf in enumerate(leaves):
            found = next(grads) if leaf.requires_grad else None
            entry["grads"].append(None if found is None else f"{id}/grad{i}")
            if found is not None:
                tensors[f"{id}/grad{i}"] = found.clone().contiguous()
    cases.append(entry)


def elementwise():
    special = t([nan, inf, -inf, 0.0, -0.0, 1.0, -1.0, 1e-8, -1e-8, 30.0, -30.0, 0.5, -0.5, 2.5, 3.5, -2.5])
    functional = "relu6 softplus elu selu celu mish hardsigmoid hardswish logsigmoid softsign silu gelu leaky_relu hardtanh".split()
    unary = "abs neg exp expm1 log log1p log2 sqrt rsqrt sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh sigmoid relu relu6 silu softplus elu selu celu mish hardsigmoid hardswish logsigmoid erf erfc erfinv reciprocal square sign softsign lgamma digamma floor ceil round trunc gelu leaky_relu hardtanh".split()
    domain = dict(log=(0.05, 9), log1p=(-0.9, 9), log2=(0.05, 9), sqrt=(0.05, 9), rsqrt=(0.05, 9), asin=(-0.99, 0.99), acos=(-0.99, 0.99), atanh=(-0.99, 0.99), erfinv=(-0.99, 0.99), acosh=(1.05, 9), lgamma=(0.1, 9), digamma=(0.1, 9), tan=(-1.2, 1.2))
    for op in unary:
        call = getattr(F, op) if op in functional else getattr(torch, op)
        low, high = domain.get(op, (-4, 4))
        for shape in [(3, 1, 2, 2), (1,), (2, 0, 3)]:
            case(op, call, [x(*shape, low=low, high=high)], scale=10 if op in ("lgamma", "digamma") else 1)
        case(op, call, [x(3, 4, dtype=f64, low=low, high=high)], scale=1000)
        for dtype in (bf16, f16):
            if op not in ("digamma", "lgamma", "erfinv", "tan"):
                case(op, call, [x(9, low=low, high=high, dtype=dtype)], grad=False)
        # PyTorch's own kernels disagree about gelu at infinity.
        finite = special.clamp(-30, 30) if op == "gelu" else special
        case(op, call, [finite], grad=False, scale=10)
        if op not in functional and op not in ("relu", "reciprocal"):
            case(op, call, [x(6, dtype=i64, low=2, high=4) if op == "acosh" else x(6, dtype=i64, low=0, high=2)], grad=False)
    for op in ("isnan", "isinf", "isfinite", "logical_not"):
        case(op, getattr(torch, op), [special])
        case(op, getattr(torch, op), [x(2, 3, dtype=i64)])
    for dtype in (i32, u8, boolean):
        case("bitwise_not", torch.bitwise_not, [x(5, dtype=dtype, low=0, high=5)])
    case("gelu", F.gelu, [x(3, 4, dtype=f64)], approximate="tanh", scale=1000)
    case("leaky_relu", F.leaky_relu, [x(3, 4)], negative_slope=-0.3)
    case("softplus", F.softplus, [x(3, 4, low=-9, high=9)], beta=3, threshold=4)
    case("elu", F.elu, [x(3, 4)], alpha=0.4)
    case("celu", F.celu, [x(3, 4)], alpha=0.4)
    shapes = [((3, 1, 4), (2, 1)), ((), ()), ((1,), (3, 0)), ((2, 3, 1, 2), (3, 4, 1))]
    for op in "add sub mul div maximum minimum atan2 fmod remainder hypot logaddexp pow".split():
        call = getattr(torch, op)
        for a, b in shapes:
            case(op, call, [x(*a, low=0.5, high=3), x(*b, low=0.7, high=2)])
        case(op, call, [x(3, 4, dtype=f64, low=0.5, high=3), x(4, dtype=f64, low=0.5, high=3)], scale=100)
        for a, b in [(bf16, bf16), (f16, f32), (i64, f16), (f32, i32)]:
            case(op, call, [x(2, 3, dtype=a, low=1, high=4), x(3, dtype=b, low=1, high=4)], grad=False)
        case(op, call, [x(3, dtype=f16, low=1, high=4), x(dtype=f64, low=1, high=4)], grad=False)
        case(op, call, [x(3, dtype=i32, low=1, high=4), x(dtype=f64, low=1, high=4)], grad=False)
        odd = t([nan, inf, -inf, 1.0, -1.0, 0.0, 2.0])
        case(op, call, [odd.repeat_interleave(7), odd.repeat(7)], grad=False)
        if op not in ("atan2", "hypot", "logaddexp", "div"):
            case(op, call, [x(8, dtype=i32, low=1, high=7), x(8, dtype=i32, low=1, high=4)], grad=False)
        if op in ("fmod", "remainder"):
            case(op, call, [x(12, dtype=i64, low=-9, high=9), t([3, -3, 4, -4] * 3, i64)], grad=False)
    case("atan2", torch.atan2, [x(4, dtype=i64), x(4, dtype=i64)])
    case("maximum", torch.maximum, [t([1.0, 2, 3]), t([1.0, 3, 2])])
    case("minimum", torch.minimum, [t([1.0, 2, 3]), t([1.0, 3, 2])])
    case("pow", torch.pow, [t([0.0, 0.0, 2.0, -2.0, -2.0]), t([0.0, 2.0, 0.0, 3.0, 2.0])])
    for exponent in (0, 1, 2, 3, -1, 0.5, 1.5, 2.0, -2.0, 0.0):
        case("pow_scalar", torch.pow, [x(3, 2, low=0.3, high=2)], exponent=exponent)
    case("pow_scalar", torch.pow, [x(6, dtype=i64)], exponent=3)
    case("pow_scalar", torch.pow, [x(6, dtype=i64)], exponent=0.5)
    case("pow_scalar", torch.pow, [x(6, dtype=bf16)], exponent=2)
    for op in ("add", "mul", "sub"):
        call = getattr(torch, op)
        for dtype in (bf16, f16, i32, u8, f64):
            case(f"{op}_scalar", call, [x(5, dtype=dtype, low=0, high=4)], other=3)
            case(f"{op}_scalar", call, [x(5, dtype=dtype, low=0, high=4)], other=1.5)
        if op != "sub":
            case(f"{op}_scalar", call, [x(5, dtype=boolean)], other=2)
    for mode in ("floor", "trunc"):
        call = lambda a, b, mode=mode: torch.div(a, b, rounding_mode=mode)
        for dtype in (f32, i64, f16, i32):
            a, b = x(12, dtype=dtype, low=-9, high=9), t([3, -3, 2, -2] * 3).to(dtype)
            case(f"div_{mode}", call, [a, b], grad=False)
        case(f"div_{mode}", call, [x(3, 1), x(4) + 3])
    for op in "eq ne lt le gt ge".split():
        case(op, getattr(torch, op), [t([nan, 1, 2, inf]), t([nan, 2, 2, inf])])
        case(op, getattr(torch, op), [x(3, 1, dtype=i64), x(2, 1, 4, dtype=f32)])
        case(op, getattr(torch, op), [x(4, dtype=boolean), x(4, dtype=boolean)])
    for op in ("logical_and", "logical_or", "logical_xor"):
        case(op, getattr(torch, op), [x(3, 1, dtype=i64), x(4)])
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        case(op, getattr(torch, op), [x(3, 1, dtype=i64), x(4, dtype=i32)])
        case(op, getattr(torch, op), [x(3, 1, dtype=boolean), x(4, dtype=boolean)])
        case(op, getattr(torch, op), [x(3, dtype=u8, low=0, high=9), x(3, dtype=boolean)])
    for op in ("bitwise_left_shift", "bitwise_right_shift"):
        case(op, getattr(torch, op), [x(2, 4, dtype=i32, low=-9, high=9), x(4, dtype=i32, low=0, high=5)])
    case("where", torch.where, [x(2, 1, dtype=boolean), x(3), x()])
    case("where", torch.where, [x(4, dtype=boolean), x(4, dtype=i64), x(4, dtype=f16)])
    case("where", torch.where, [t([True, False], boolean), t([1.0, nan]), t([nan, 2.0])])
    case("clamp", torch.clamp, [t([nan, -1.0, 0.5, 2.0, 0.0, 1.0])], min=0.0, max=1.0)
    case("clamp", torch.clamp, [x(3, dtype=bf16)], min=-0.25)
    case("clamp", torch.clamp, [x(5, dtype=i64)], max=1)
    case("clamp", torch.clamp, [x(5, dtype=i64)], min=0.5)
    case("clamp", torch.clamp, [x(6)], min=0.5, max=-0.5)
    case("lerp", torch.lerp, [x(3, 1), x(4)], weight=0.7)
    case("lerp", torch.lerp, [x(3, dtype=f64), x(3, dtype=f64)], weight=-0.5, scale=10)
    for op in ("addcmul", "addcdiv"):
        case(op, getattr(torch, op), [x(2, 3, 4), x(3, 1), x(4) + 3], value=-1.5)
        case(op, getattr(torch, op), [x(4, dtype=f64), x(4, dtype=f64), x(4, dtype=f64) + 3], scale=10)
    numbers = t([nan, inf, -inf, 0.0, -0.0, 1.9, -1.9, 255.0, 127.5])
    for source in (f32, f64, bf16, f16, i64, i32, u8, boolean):
        for target in (f32, f64, bf16, f16, i64, i32, u8, boolean):
            values = t([0.0, 1.9, 3.0, 100.0, 0.49]).to(source)
            case("to", lambda a, dtype: a.to(dtype), [values], grad=False, dtype=target)
    case("to", lambda a, dtype: a.to(dtype), [numbers], grad=False, dtype=bf16)
    case("to", lambda a, dtype: a.to(dtype), [numbers], grad=False, dtype=boolean)
    case("to", lambda a, dtype: a.to(dtype), [t([-1.9, -3.0, 7e9])], grad=False, dtype=i64)
    case("to", lambda a, dtype: a.to(dtype), [x(3, 2)], dtype=f64)
    case("to", lambda a, dtype: a.to(dtype), [x(3, 2)], dtype=bf16)
    case("to", lambda a, dtype: a.to(dtype), [t([-1, 300, 70000], i64)], grad=False, dtype=u8)


def reductions():
    spans = [dict(), dict(dim=[0, -1], keepdim=True), dict(dim=-2), dict(dim=[1], keepdim=True)]
    for op in ("sum", "mean", "amax", "amin", "logsumexp"):
        call = getattr(torch, op)
        for span in spans:
            if op == "logsumexp" and not span:
                span = dict(dim=[0, 1, 2, 3])
            case(op, call, [x(3, 2, 1, 4)], **span)
            case(op, call, [x(3, 2, 4, dtype=f64)], scale=10, **(span if span.get("dim") != [0, 1, 2, 3] else dict(dim=[0, 1])))
            for dtype in (bf16, f16):
                if op != "logsumexp":
                    case(op, call, [x(2, 9, 3, dtype=dtype)], grad=False, **span)
        case(op, call, [t([[nan, 1.0, 2.0], [inf, 1.0, 3.0], [-inf, -inf, -inf]])], dim=1, grad=False)
        case(op, call, [x()], dim=0)
    for op in ("sum", "prod"):
        for dtype in (i32, u8, boolean, i64):
            case(op, getattr(torch, op), [x(2, 3, dtype=dtype, low=0, high=4)], dim=1)
        case(op, getattr(torch, op), [x(2, 0, 3)], dim=1)
        case(op, getattr(torch, op), [x(2, 3)], dim=1, dtype=f64)
    case("mean", torch.mean, [x(2, 0, 3)], dim=1)
    case("mean", torch.mean, [x(2, 3, dtype=i64)], dim=1, dtype=f32)
    case("amax", torch.amax, [t([[1.0, 1.0, 0.0], [2.0, 3.0, 3.0]])], dim=1)
    case("amin", torch.amin, [x(3, 4, dtype=i64)], dim=[0, 1])
    case("amax", torch.amax, [x(3, 4, dtype=boolean)], dim=1)
    case("prod", torch.prod, [t([[0.0, 2, 3], [0.0, 0.0, 3], [1.0, 2, 3]])], dim=1, keepdim=True)
    case("prod", torch.prod, [t([[0.0, 2, 3], [4, 5, 6]])])
    case("prod", torch.prod, [x(2, 3, 4, dtype=f64)], dim=-2, scale=10)
    case("prod", torch.prod, [x()])
    for op in ("argmax", "argmin"):
        case(op, getattr(torch, op), [t([[1.0, 3, 3, nan], [2, 2, 1, 1]])], dim=-1)
        case(op, getattr(torch, op), [t([[1.0, 3, 3], [3, 2, 1], [1, 1, 1]])], dim=0, keepdim=True)
        case(op, getattr(torch, op), [x(3, 4, dtype=i64)])
        case(op, getattr(torch, op), [x(2, 3, 1, dtype=bf16)], dim=1)
        case(op, getattr(torch, op), [x(2, 3, 4)], keepdim=True)
    for op in ("var", "std"):
        call = getattr(torch, op)
        case(op, call, [x(2, 3, 4)])
        case(op, call, [x(2, 3, 4)], dim=[-1, 0])
        case(op, call, [x(2, 1, 4)], dim=1, correction=1, grad=False)
        case(op, call, [x(2, 5, dtype=f64)], dim=-1, correction=2, keepdim=True, scale=10)
        case(op, call, [x(3, 9, dtype=f16)], dim=-1, grad=False)
        case(op, call, [x(3, 9) + 1000], dim=1, scale=10, grad=False)
    for op in ("any", "all"):
        call = getattr(torch, op)
        for value in (x(3, 4, dtype=boolean), x(3, 4, dtype=i64, low=0, high=2), t([[nan, 0.0], [0.0, 0.0]]), x(2, 0, dtype=boolean)):
            case(op, call, [value])
            case(op, call, [value], dim=1)
            case(op, call, [value], dim=0, keepdim=True)
    case("any", torch.any, [x(3, dtype=u8, low=0, high=2)])
    for op in ("cumsum", "cumprod", "logcumsumexp"):
        call = getattr(torch, op)
        case(op, call, [x(2, 7, 3)], dim=-2)
        case(op, call, [x(1, 40)], dim=1, scale=10)
        case(op, call, [x(3, 0)], dim=1)
        case(op, call, [x()], dim=0)
        case(op, call, [x(2, 9, dtype=f64)], dim=1, scale=10)
        if op != "logcumsumexp":
            case(op, call, [x(2, 5, dtype=i32, low=1, high=3)], dim=1)
            case(op, call, [x(2, 5, dtype=boolean)], dim=1)
            case(op, call, [x(2, 5, dtype=bf16)], dim=1, grad=False)
    case("logcumsumexp", torch.logcumsumexp, [t([-inf, -inf, 1.0, inf, 2.0])], dim=0, grad=False)
    case("cumprod", torch.cumprod, [t([[2.0, 0.0, 3.0, 4.0], [0.0, 0.0, 1.0, 5.0]])], dim=1)
    case("cummax", torch.cummax, [t([[1.0, 3, 3, 2, 5, 5], [nan, 1, 2, 3, nan, 1]])], dim=-1)
    case("cummax", torch.cummax, [x(4, 3, 2)], dim=0)
    case("cummax", torch.cummax, [x(3, 4, dtype=i64)], dim=1)
    norm = torch.linalg.vector_norm
    call = lambda a, p=2, dim=None, keepdim=False: norm(a, p, dim, keepdim)
    for p in (0, 0.5, 1, 2, 2.5, 3, -1):
        case("norm", call, [x(3, 4, 2)], p=p, dim=[0, 2], keepdim=True)
    case("norm", call, [x(3, 4)], p=2)
    case("norm", call, [x(3, 4, dtype=f64)], scale=10)
    case("norm", call, [t([[0.0, 0.0], [3.0, 4.0]])], p=2, dim=-1)
    case("norm", call, [t([[0.0, 0.0], [3.0, 4.0]])], p=1, dim=-1)
    for op, call in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        for dim in (0, 1, -1):
            case(op, call, [x(3, 1, 4)], dim=dim)
        case(op, call, [x(2, 5, dtype=bf16)], dim=-1, grad=False)
        case(op, call, [x(2, 5, dtype=f64) * 50], dim=-1, scale=100)
        case(op, call, [t([[1.0, -inf, 2.0], [1e4, 1e4, -1e4]])], dim=1)
        case(op, call, [x()], dim=0)
        case(op, call, [x(2, 3)], dim=-1, dtype=f64)


def shapes():
    case("reshape", torch.reshape, [x(2, 0, 3)], shape=[0, 6])
    case("reshape", torch.reshape, [x(1)], shape=[])
    case("reshape", torch.reshape, [x(2, 3, dtype=i64)], shape=[3, 1, 2])
    case("flatten", torch.flatten, [x(2, 3, 4, 2)], start_dim=-3, end_dim=-2)
    case("flatten", torch.flatten, [x()])
    case("permute", torch.permute, [x(2, 3, 4, 5)], dims=[3, -4, 2, 1])
    case("transpose", torch.transpose, [x(2, 3, 4)], dim0=0, dim1=-1)
    case("squeeze", torch.squeeze, [x(1, 3, 1)])
    case("squeeze", torch.squeeze, [x(1, 3, 1)], dim=-1)
    case("squeeze", torch.squeeze, [x(1, 3, 1)], dim=1)
    case("unsqueeze", torch.unsqueeze, [x(2, 3)], dim=0)
    case("unsqueeze", torch.unsqueeze, [x()], dim=-1)
    case("expand", lambda a, shape: a.expand(shape), [x(3, 1)], shape=[2, -1, 4])
    case("expand", lambda a, shape: a.expand(shape), [x()], shape=[2, 0])
    cat = lambda *a, dim=0: torch.cat(a, dim)
    case("cat", cat, [x(2, 3), x(2, 0), x(2, 1)], dim=1)
    case("cat", cat, [x(2, dtype=i64), x(3, dtype=f16)], grad=False)
    case("cat", cat, [x(2, 3, 2)], dim=-2)
    stack = lambda *a, dim=0: torch.stack(a, dim)
    case("stack", stack, [x(2, 3), x(2, 3), x(2, 3)], dim=-1)
    case("stack", stack, [x(), x()])
    case("split", lambda a, split_size, dim=0: torch.split(a, split_size, dim), [x(2, 7)], split_size=4, dim=-1)
    case("split", lambda a, split_size, dim=0: torch.split(a, split_size, dim), [x(6)], split_size=6)
    case("split", lambda a, split_size, dim=0: torch.split(a, split_size, dim), [x(6)], split_size=[1, 0, 5])
    case("chunk", torch.chunk, [x(7, 2)], chunks=4, dim=0)
    case("chunk", torch.chunk, [x(2, 3)], chunks=5, dim=-1)
    case("narrow", torch.narrow, [x(4, 5)], dim=-1, start=-3, length=2)
    case("narrow", torch.narrow, [x(4, 5)], dim=0, start=4, length=0)

    def cut(a, dim, start=None, end=None, step=1):
        index = [slice(None)] * a.dim()
        index[dim] = slice(start, end, step)
        return a[tuple(index)]

    case("slice", cut, [x(9, 2)], dim=0, start=-7, end=100, step=3)
    case("slice", cut, [x(2, 9)], dim=-1, start=5, end=2, step=1)
    case("select", torch.select, [x(4, 5, 2)], dim=-2, index=3)
    case("select", torch.select, [x(4)], dim=0, index=-4)
    case("flip", torch.flip, [x(2, 3, 4)], dims=[1])
    case("flip", torch.flip, [x(2, 3, dtype=boolean)], dims=[-1, 0])
    case("roll", torch.roll, [x(3, 4)], shifts=[5], dims=[1])
    case("roll", torch.roll, [x(3, 4)], shifts=[-1])
    case("roll", torch.roll, [x(3, 4)], shifts=[1, 2], dims=[1, 1])
    case("pad", F.pad, [x(3, 4)], pad=[0, 0, 2, -1], value=1.5)
    case("pad", F.pad, [x(3, 4, dtype=i64)], pad=[1, 1], value=7)
    case("pad", F.pad, [x(2, 3)], pad=[2, 0])
    case("pad", F.pad, [x(2, 3, dtype=f16)], pad=[-1, -1, 1, 1], value=-3.5, grad=False)
    for mode in ("reflect", "replicate"):
        call = lambda a, pad, mode=mode: F.pad(a, pad, mode=mode)
        case(f"pad_{mode}", call, [x(2, 3, 5)], pad=[2, 1])
        case(f"pad_{mode}", call, [x(1, 2, 4, 5)], pad=[3, 0, 1, 2])
        case(f"pad_{mode}", call, [x(2, 3, 5)], pad=[2, 1, 1, 2])
        case(f"pad_{mode}", call, [x(1, 1, 3, 3, 4)], pad=[1, 2, 1, 1, 2, 0])
        case(f"pad_{mode}", call, [x(3, 5)], pad=[1, 2])
    case("pad_replicate", lambda a, pad: F.pad(a, pad, mode="replicate"), [x(2, 3, 5)], pad=[-1, 3])
    case("repeat", lambda a, repeats: a.repeat(repeats), [x(2, 3)], repeats=[2, 1, 0, 2])
    case("repeat", lambda a, repeats: a.repeat(repeats), [x(3)], repeats=[3, 2])
    case("repeat_interleave", torch.repeat_interleave, [x(2, 3)], repeats=3)
    case("repeat_interleave", torch.repeat_interleave, [x(2, 3)], repeats=2, dim=-2)
    for op in ("tril", "triu"):
        case(op, getattr(torch, op), [x(2, 3, 5)], diagonal=2)
        case(op, getattr(torch, op), [x(4, 2, dtype=i64)], diagonal=-7)
        case(op, getattr(torch, op), [x(3, 3, dtype=boolean)])
    case("diagonal", torch.diagonal, [x(3, 4)])
    case("diagonal", torch.diagonal, [x(2, 3, 4)], offset=-1, dim1=1, dim2=2)
    case("diagonal", torch.diagonal, [x(2, 3, 4)], offset=9, dim1=-1, dim2=0)
    case("movedim", torch.movedim, [x(2, 3, 4, 5)], source=[0, -1], destination=[-1, 1])
    case("movedim", torch.movedim, [x(2, 3, 4)], source=-1, destination=0)
    case("unfold", lambda a, dim, size, step: a.unfold(dim, size, step), [x(3, 8)], dim=-1, size=2, step=3)
    case("unfold", lambda a, dim, size, step: a.unfold(dim, size, step), [x(5, 2)], dim=0, size=5, step=1)


def indexing():
    r = lambda high, *shape: torch.randint(0, high, shape)
    case("index_select", lambda a, i, dim: torch.index_select(a, dim, i), [x(4, 3, 2), t([3, 0, 3, 3], i64)], dim=0)
    case("index_select", lambda a, i, dim: torch.index_select(a, dim, i), [x(4, 3), t([2, 1], i32)], dim=-1)
    case("index_select", lambda a, i, dim: torch.index_select(a, dim, i), [x(4, 3, dtype=i64), t([], i64)], dim=1)
    case("gather", lambda a, i, dim: torch.gather(a, dim, i), [x(4, 3), r(4, 6, 2)], dim=0)
    case("gather", lambda a, i, dim: torch.gather(a, dim, i), [x(2, 3, 4), r(4, 1, 2, 5)], dim=-1)
    case("gather", lambda a, i, dim: torch.gather(a, dim, i), [x(), t(0, i64)], dim=0)
    case("take_along_dim", lambda a, i, dim: torch.take_along_dim(a, i, dim), [x(4, 1), r(4, 2, 3)], dim=0)
    case("take_along_dim", lambda a, i, dim=None: torch.take_along_dim(a, i, dim), [x(3, 4), r(12, 5)])
    case("scatter", lambda a, i, s, dim: torch.scatter(a, dim, i, s), [x(3, 5), torch.stack([torch.randperm(5)[:2] for _ in range(2)]), x(2, 2)], dim=-1)
    case("scatter", lambda a, i, s, dim: torch.scatter(a, dim, i, s), [x(4, 2), torch.stack([torch.randperm(4) for _ in range(2)], 1), x(4, 2)], dim=0)
    case("scatter_add", lambda a, i, s, dim: torch.scatter_add(a, dim, i, s), [x(3, 5), r(3, 4, 4), x(4, 4)], dim=0)
    case("scatter_add", lambda a, i, s, dim: torch.scatter_add(a, dim, i, s), [x(2, 2, 3, dtype=i64), r(3, 2, 2, 6), x(2, 2, 6, dtype=i64)], dim=2)
    case("index_add", lambda a, i, s, dim, alpha=1: torch.index_add(a, dim, i, s, alpha=alpha), [x(4, 3), r(4, 6), x(6, 3)], dim=0, alpha=-0.5)
    case("index_add", lambda a, i, s, dim: torch.index_add(a, dim, i, s), [x(2, 3, 4), t([1, 1], i64), x(2, 2, 4)], dim=1)
    case("index_copy", lambda a, i, s, dim: torch.index_copy(a, dim, i, s), [x(4, 3), t([2, 0], i64), x(2, 3)], dim=0)
    case("masked_fill", lambda a, m, value: torch.masked_fill(a, m, value), [x(3, 4), x(3, 1, dtype=boolean)], value=2)
    case("masked_fill", lambda a, m, value: torch.masked_fill(a, m, value), [x(3, dtype=i64), x(3, dtype=boolean)], value=2)
    case("masked_fill", lambda a, m, value: torch.masked_fill(a, m, value), [x(3), x(2, 3, dtype=boolean)], value=-1e30)
    case("embedding", lambda w, i: F.embedding(i, w), [x(5, 3), r(5, 2, 3, 2)])
    case("embedding", lambda w, i, padding_idx: F.embedding(i, w, padding_idx), [x(5, 3), t([0, 1, 1, 4], i64)], padding_idx=1)
    case("embedding", lambda w, i, padding_idx: F.embedding(i, w, padding_idx), [x(5, 3), t([0, 1, 1, 4], i64)], padding_idx=-1)
    case("embedding", lambda w, i: F.embedding(i, w), [x(5, 3, dtype=bf16), t(2, i64)], grad=False)
    case("one_hot", F.one_hot, [r(4, 2, 3)], num_classes=4)
    case("one_hot", F.one_hot, [t([1, 0, 3], i64)])
    for descending in (False, True):
        case("sort", torch.sort, [t([[3.0, nan, 1, 3], [inf, -inf, 0.0, 1]])], dim=-1, descending=descending, grad=False)
        case("sort", lambda a, dim, descending, stable: torch.sort(a, dim=dim, descending=descending, stable=stable), [x(6, 2, dtype=i64)], dim=0, descending=descending, stable=True)
        case("sort", torch.sort, [x(2, 7, 2)], dim=1, descending=descending)
        case("argsort", torch.argsort, [x(3, 5, dtype=f64)], dim=0, descending=descending)
    case("sort", torch.sort, [x()])
    case("argsort", torch.argsort, [x(4, 3)])
    for largest in (False, True):
        case("topk", torch.topk, [x(3, 6)], k=6, largest=largest)
        case("topk", torch.topk, [x(5, 3, 2)], k=3, dim=0, largest=largest)
        case("topk", torch.topk, [torch.randperm(8).reshape(2, 4)], k=1, largest=largest)
    case("topk", torch.topk, [x(6)], k=0)
    case("searchsorted", torch.searchsorted, [torch.sort(x(2, 6)).values, x(2, 4)])
    case("searchsorted", torch.searchsorted, [t([1, 3, 3, 7], i64), t([[0, 3], [7, 9]], i64)])
    case("searchsorted", torch.searchsorted, [t([1, 3, 3, 7], i64), t([[0, 3], [7, 9]], i64)], right=True)


def products():
    for a, b in [((3,), (2, 3, 4)), ((2, 4, 3), (3,)), ((1, 3), (3, 1)), ((2, 1, 2, 3), (4, 3, 2)), ((5, 2, 3), (3, 4)), ((3, 4), (5, 4, 2)), ((2, 0, 3), (3, 4)), ((2, 3, 0), (0, 4)), ((2, 2, 2, 3), (2, 2, 3, 4))]:
        case("matmul", torch.matmul, [x(*a), x(*b)])
    case("matmul", torch.matmul, [x(2, 3, dtype=f16), x(3, 2, dtype=f16)], grad=False)
    case("matmul", torch.matmul, [x(2, 3, dtype=i64), x(3, 2, dtype=i64)])
    case("matmul", torch.matmul, [x(2, 3, 3, dtype=f64), x(3, dtype=f64)], scale=10)
    case("linear", F.linear, [x(2, 3, 4), x(5, 4), x(5)])
    case("linear", F.linear, [x(4), x(5, 4)])
    case("linear", F.linear, [x(2, 4, dtype=bf16), x(5, 4, dtype=bf16), x(5, dtype=bf16)], grad=False)
    case("addmm", torch.addmm, [x(4), x(3, 2), x(2, 4)])
    case("addmm", torch.addmm, [x(3, 1), x(3, 2), x(2, 4)], beta=0.5, alpha=-2.0)
    case("outer", torch.outer, [x(3), x(4)])
    einsum = lambda *a, equation: torch.einsum(equation, *a)
    for equation, *shape in [("ij,kj->ik", (2, 3), (4, 3)), ("...ij,...jk->...ik", (2, 1, 2, 3), (4, 3, 2)), ("ii->i", (3, 3)), ("ii", (3, 3)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)), ("bij,bjk", (2, 3, 4), (2, 4, 2)), ("i,i->", (4,), (4,)), ("ijk->k", (2, 3, 4)), ("bhwc,hkc->bhwk", (2, 3, 2, 4), (3, 5, 4)), ("i,ij,j->", (2,), (2, 3), (3,)), ("ba, cb -> ac", (2, 3), (4, 2)), ("iij,jk->ik", (2, 2, 3), (3, 4)), ("...d,d->...", (2, 3, 4), (4,)), ("bnd,bmd->bnm", (2, 3, 4), (2, 5, 4))]:
        case("einsum", einsum, [x(*s) for s in shape], equation=equation)
    spd = x(2, 4, 4, dtype=f64)
    spd = spd @ spd.transpose(-1, -2) + 4 * torch.eye(4)
    case("cholesky", torch.linalg.cholesky, [spd.to(f32)], scale=10)
    case("cholesky", torch.linalg.cholesky, [spd], scale=100)
    low = torch.tril(x(2, 3, 3)) + 3 * torch.eye(3)
    case("solve_triangular", torch.linalg.solve_triangular, [low, x(2, 3, 4)], upper=False, scale=10)
    case("solve_triangular", torch.linalg.solve_triangular, [low.transpose(-1, -2).contiguous(), x(2, 3, 1)], upper=True, scale=10)
    case("solve_triangular", torch.linalg.solve_triangular, [low, x(2, 4, 3)], upper=False, left=False, scale=10)
    case("solve_triangular", torch.linalg.solve_triangular, [low, x(2, 3, 4)], upper=False, unitriangular=True, scale=10)
    case("cdist", torch.cdist, [x(2, 3, 4), x(2, 5, 4)], scale=10)
    case("cdist", torch.cdist, [x(3, 2), x(4, 2)], p=1.0)
    case("cdist", torch.cdist, [x(3, 2), x(4, 2)], p=3.0, scale=10)
    case("cosine_similarity", F.cosine_similarity, [x(2, 3, 4), x(3, 4)], dim=-1)
    case("cosine_similarity", F.cosine_similarity, [x(2, 3), x(2, 3)])
    case("normalize", F.normalize, [x(2, 3, 4)], p=1.0, dim=0)
    case("normalize", F.normalize, [t([[0.0, 0.0], [3.0, 4.0]])], dim=-1)


def windows():
    for kwargs in [dict(), dict(stride=2, padding=1), dict(stride=[2, 1], padding=[0, 2], dilation=[1, 2]), dict(groups=2), dict(groups=4, padding=1), dict(padding="same"), dict(padding="valid")]:
        groups = kwargs.get("groups", 1)
        case("conv2d", F.conv2d, [x(2, 4, 6, 7), x(8, 4 // groups, 3, 2), x(8)], scale=10, **kwargs)
    case("conv2d", F.conv2d, [x(3, 5, 6), x(2, 3, 1, 1)], scale=10)
    case("conv2d", F.conv2d, [x(2, 3, 6, 6, dtype=f64), x(2, 3, 3, 3, dtype=f64), x(2, dtype=f64)], stride=3, scale=100)
    case("conv2d", F.conv2d, [x(0, 3, 6, 6), x(2, 3, 3, 3)], scale=10)
    case("conv1d", F.conv1d, [x(2, 4, 9), x(6, 2, 3), x(6)], groups=2, dilation=2, padding=2, scale=10)
    case("conv1d", F.conv1d, [x(4, 9), x(6, 4, 4)], stride=3, scale=10)
    case("conv3d", F.conv3d, [x(1, 2, 4, 5, 4), x(4, 1, 2, 3, 1), x(4)], groups=2, stride=[1, 2, 1], padding=[0, 1, 1], scale=10)
    for kwargs in [dict(), dict(stride=3, padding=1, output_padding=2), dict(stride=[2, 1], padding=[1, 0], dilation=[1, 2]), dict(groups=2, stride=2)]:
        groups = kwargs.get("groups", 1)
        case("conv_transpose2d", F.conv_transpose2d, [x(2, 4, 3, 5), x(4, 6 // groups, 3, 2), x(6)], scale=10, **kwargs)
    case("conv_transpose2d", F.conv_transpose2d, [x(4, 3, 5), x(4, 2, 2, 2)], stride=2, scale=10)
    for kwargs in [dict(kernel_size=2), dict(kernel_size=[3, 2], stride=[2, 1], padding=[1, 0]), dict(kernel_size=2, stride=3, ceil_mode=True), dict(kernel_size=2, dilation=2, stride=1)]:
        case("max_pool2d", F.max_pool2d, [x(2, 3, 7, 6)], **kwargs)
    case("max_pool2d", F.max_pool2d, [x(3, 6, 6)], kernel_size=3)
    case("max_pool2d", F.max_pool2d, [torch.ones(1, 1, 4, 4)], kernel_size=2)
    case("max_pool2d", F.max_pool2d, [t([[[[nan, 1.0], [2.0, 3.0]]]])], kernel_size=2, grad=False)
    case("max_pool1d", F.max_pool1d, [x(2, 3, 9)], kernel_size=2)
    case("max_pool1d", F.max_pool1d, [x(3, 9)], kernel_size=4, stride=1, padding=2)
    for kwargs in [dict(kernel_size=3), dict(kernel_size=[2, 3], stride=[1, 2], padding=[1, 1]), dict(kernel_size=3, stride=2, ceil_mode=True, padding=1), dict(kernel_size=2, divisor_override=3), dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)]:
        case("avg_pool2d", F.avg_pool2d, [x(2, 3, 8, 7)], **kwargs)
    for size in ([5, 2], [None, 3], 4, [8, 7]):
        case("adaptive_avg_pool2d", F.adaptive_avg_pool2d, [x(2, 3, 8, 7)], output_size=size)
    for kwargs in [dict(size=[3, 2], mode="nearest"), dict(size=[9, 4], mode="nearest"), dict(scale_factor=1.5, mode="nearest"), dict(scale_factor=2.0, mode="bilinear"), dict(scale_factor=0.6, mode="bilinear"), dict(scale_factor=[2.0, 0.5], mode="bilinear", align_corners=True), dict(size=[3, 3], mode="area"), dict(size=[7, 8], mode="bicubic"), dict(size=[3, 9], mode="bicubic", align_corners=True), dict(size=[9, 3], mode="nearest-exact")]:
        case("interpolate", F.interpolate, [x(2, 2, 5, 6)], **kwargs)
    case("interpolate", F.interpolate, [x(2, 2, 5)], size=[8], mode="linear", align_corners=False)
    case("interpolate", F.interpolate, [x(1, 2, 3, 4, 2)], size=[4, 5, 3], mode="trilinear", align_corners=False)
    case("interpolate", F.interpolate, [x(2, 2, 5)], scale_factor=2.0)
    case("pixel_shuffle", F.pixel_shuffle, [x(2, 18, 2, 3)], upscale_factor=3)
    case("pixel_shuffle", F.pixel_shuffle, [x(4, 2, 3)], upscale_factor=2)


def networks():
    case("layer_norm", lambda a, w, b, normalized_shape, eps=1e-5: F.layer_norm(a, normalized_shape, w, b, eps), [x(2, 3, 4), x(3, 4), x(3, 4)], normalized_shape=[3, 4], scale=10)
    case("layer_norm", lambda a, w, b, normalized_shape, eps=1e-5: F.layer_norm(a, normalized_shape, w, b, eps), [x(5, 7) * 3 + 9, x(7), x(7)], normalized_shape=[7], eps=1e-3, scale=10)
    case("layer_norm", lambda a, w, b, normalized_shape, eps=1e-5: F.layer_norm(a, normalized_shape, w, b, eps), [x(5, 7, dtype=bf16), x(7, dtype=bf16), x(7, dtype=bf16)], normalized_shape=[7], grad=False)
    case("group_norm", lambda a, w, b, num_groups, eps=1e-5: F.group_norm(a, num_groups, w, b, eps), [x(2, 4, 5), x(4), x(4)], num_groups=2, scale=10)
    case("group_norm", lambda a, w, b, num_groups, eps=1e-5: F.group_norm(a, num_groups, w, b, eps), [x(3, 4, 2, 3, 2), x(4), x(4)], num_groups=4, scale=10)
    case("rms_norm", lambda a, w, normalized_shape, eps=None: F.rms_norm(a, normalized_shape, w, eps), [x(3, 2, 4), x(2, 4)], normalized_shape=[2, 4])
    case("rms_norm", lambda a, w, normalized_shape, eps=None: F.rms_norm(a, normalized_shape, w, eps), [x(3, 4), x(4)], normalized_shape=[4], eps=0.1)
    for training in (True, False):
        batch = lambda a, m, v, w, b, **k: F.batch_norm(a, m, v, w, b, **k)
        for shape in ((5, 3), (4, 3, 2), (2, 3, 2, 2, 3)):
            stats = [torch.randn(3), torch.rand(3) + 0.5]
            number = len(cases)
            leaves = [x(*shape), *stats, x(3), x(3)]
            kept = [l.clone() for l in leaves]
            def call(a, m, v, w, b, training):
                return F.batch_norm(a, m.detach().clone(), v.detach().clone(), w, b, training=training)
            case("batch_norm", call, kept, training=training, scale=10)
            last = cases[-1]
            if last.get("grads"):
                last["grads"][1] = last["grads"][2] = None
    for reduction in ("mean", "sum", "none"):
        labels = torch.randint(0, 4, (5,))
        holes = labels.clone()
        holes[1] = -100
        case("cross_entropy", F.cross_entropy, [x(5, 4) * 3, holes], reduction=reduction)
        case("cross_entropy", F.cross_entropy, [x(5, 4), holes], reduction=reduction, label_smoothing=0.2)
        case("cross_entropy", F.cross_entropy, [x(2, 4, 3, 2), torch.randint(0, 4, (2, 3, 2))], reduction=reduction, ignore_index=2)
        case("cross_entropy", F.cross_entropy, [x(5, 4), torch.softmax(x(5, 4), 1)], reduction=reduction)
        case("cross_entropy", F.cross_entropy, [x(4), t(2, i64)], reduction=reduction)
        case("nll_loss", F.nll_loss, [torch.log_softmax(x(5, 4), 1), holes], reduction=reduction)
        case("nll_loss", F.nll_loss, [x(2, 4, 3), torch.randint(0, 4, (2, 3))], reduction=reduction)
        for op in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
            case(op, getattr(F, op), [x(2, 3, 2), x(2, 3, 2)], reduction=reduction)
        case("bce_with_logits", F.binary_cross_entropy_with_logits, [x(2, 3) * 9, torch.rand(2, 3)], reduction=reduction)
        case("kl_div", F.kl_div, [torch.log_softmax(x(3, 4), 1), torch.softmax(x(3, 4), 1)], reduction=reduction)
        case("kl_div", F.kl_div, [torch.log_softmax(x(3, 4), 1), torch.log_softmax(x(3, 4), 1)], reduction=reduction, log_target=True)
    case("cross_entropy", F.cross_entropy, [x(3, 4), t([-100] * 3, i64)])
    case("mse_loss", F.mse_loss, [x(3), x(3)])
    case("kl_div", F.kl_div, [torch.log_softmax(x(3, 4), 1), t([[0.0, 1, 0, 0]] * 3)], reduction="batchmean")
    case("l1_loss", F.l1_loss, [t([1.0, 2]), t([1.0, 3])])
    case("smooth_l1_loss", F.smooth_l1_loss, [x(4), x(4)], beta=0.0)
    attention = F.scaled_dot_product_attention
    case("scaled_dot_product_attention", attention, [x(2, 5, 4), x(2, 3, 4), x(2, 3, 6)])
    case("scaled_dot_product_attention", attention, [x(2, 2, 3, 4), x(2, 2, 5, 4), x(2, 2, 5, 4)], is_causal=True)
    mask = torch.ones(3, 5).tril(1).bool()
    case("scaled_dot_product_attention", lambda q, k, v, m, is_causal=False: attention(q, k, v, m), [x(2, 2, 3, 4), x(2, 2, 5, 4), x(2, 2, 5, 4), mask], is_causal=False)
    case("glu", F.glu, [x(4, 3)], dim=0)
    case("glu", F.glu, [x(2, 6, 3)], dim=-2)


for family in (elementwise, reductions, shapes, indexing, products, windows, networks):
    family()
os.makedirs(arguments.out, exist_ok=True)
save_file(tensors, os.path.join(arguments.out, "tensors.safetensors"))
with open(os.path.join(arguments.out, "cases.jsonl"), "w") as file:
    for entry in cases:
        file.write(json.dumps(entry) + "\n")
print(len(cases), "cases of", len(counts), "operators")
