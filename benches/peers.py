#!/usr/bin/env python3
"""The peers' side of the benchmarks: the same work in JAX, PyTorch/XLA and eager PyTorch.

Prints one line of JSON with the fields that `benches/src/lib.rs` explains. Inputs are random and made
once; parameters live on the device and are updated in place where the peer can.

`XLA_BENCH_STARTED` says when the process was started, in seconds since the Unix epoch, and
`XLA_PERSISTENT_CACHE_PATH`, for `first-warm`, where compiled programs are kept.
"""

import argparse
import collections
import functools
import json
import os
import sys
import time

STARTED = float(os.environ.get("XLA_BENCH_STARTED", time.time()))

# The transformer's sizes: width, heads, blocks, sequence, vocabulary, batch.
WIDTH, HEADS, BLOCKS, LENGTH, VOCABULARY, BATCH = 256, 8, 4, 128, 256, 8


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=["jax", "torch_xla", "torch"])
    parser.add_argument(
        "work",
        help="chain-N, mlp, cnn, gpt, gpt-spmd (JAX only), ddp (JAX only), first or first-warm (not eager PyTorch)",
    )
    parser.add_argument("--steps", type=int, default=50, help="steps that are timed, each way")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first that is timed")
    parser.add_argument("--grad", action="store_true", help="chains record gradients (not JAX)")
    return parser.parse_args()


def peak_rss_mb():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def report(step, wait, options, ahead=None):
    """Times steps that are each waited for, then as many with one wait at the end.

    With `ahead`, a step begins only when the one so many before it is through.
    """

    def timed():
        start = time.perf_counter()
        wait(step())
        return time.perf_counter() - start

    first = timed()
    for _ in range(1, options.warmup):
        timed()
    each = sorted(timed() for _ in range(options.steps))
    start = time.perf_counter()
    running = collections.deque()
    for _ in range(options.steps):
        running.append(step())
        if len(running) > (ahead or 1):
            oldest = running.popleft()
            if ahead:
                wait(oldest)
    wait(running[-1])
    pipelined = (time.perf_counter() - start) / options.steps
    median = each[len(each) // 2]
    return {
        "step_s": median,
        "pipelined_s": pipelined,
        "compile_s": max(first - median, 0.0),
        "peak_rss_mb": peak_rss_mb(),
    }


def first(step, wait):
    """From the process's start to the end of the first step."""
    wait(step())
    return {"step_s": time.time() - STARTED, "peak_rss_mb": peak_rss_mb()}


def in_jax(options):
    work = options.work
    if options.grad:
        sys.exit("jax traces once, so that there is nothing to record")
    if work in ("ddp", "gpt-spmd"):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=4"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax
    import jax.numpy as jnp
    import numpy as np

    if work == "first-warm":
        jax.config.update("jax_compilation_cache_dir", os.environ["XLA_PERSISTENT_CACHE_PATH"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    random = np.random.default_rng(0)

    def weight(*shape, scale=1.0):
        fan_in = np.prod(shape[:-1])
        values = random.standard_normal(shape, dtype=np.float32)
        return jnp.asarray(values * np.float32(scale / np.sqrt(fan_in)))

    def below(limit, *shape):
        return jnp.asarray(random.integers(0, limit, shape))

    def cross_entropy(logits, labels):
        logs = jax.nn.log_softmax(logits)
        return -jnp.mean(jnp.take_along_axis(logs, labels[..., None], -1))

    if work.startswith("chain-"):
        operators = int(work.removeprefix("chain-"))
        x = jnp.ones((16, 16))

        @jax.jit
        def chain(y):
            for _ in range(operators // 2):
                y = y * 1.0001 + 0.5
            return y

        return jax.__version__, report(lambda: chain(x), jax.block_until_ready, options)

    relu, zeros = jax.nn.relu, jnp.zeros
    if work in ("mlp", "ddp"):
        parameters = [weight(784, 512), zeros(512), weight(512, 512), zeros(512), weight(512, 10), zeros(10)]
        x, y = jnp.asarray(random.random((128, 784), dtype=np.float32)), below(10, 128)

        def loss(p, x, y):
            h = relu(x @ p[0] + p[1])
            h = relu(h @ p[2] + p[3])
            return cross_entropy(h @ p[4] + p[5], y)

        if work == "ddp":
            from jax.sharding import Mesh, NamedSharding, PartitionSpec

            mesh = Mesh(np.array(jax.devices()), ("data",))
            x, y = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
            parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    elif work == "cnn":
        parameters = [weight(3, 3, 1, 32), zeros(32), weight(3, 3, 32, 64), zeros(64)]
        parameters += [weight(3136, 128), zeros(128), weight(128, 10), zeros(10)]
        x, y = jnp.asarray(random.random((64, 28, 28, 1), dtype=np.float32)), below(10, 64)

        def convolved(x, w, b):
            layout = ("NHWC", "HWIO", "NHWC")
            x = relu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout) + b)
            window = (1, 2, 2, 1)
            return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")

        def loss(p, x, y):
            h = convolved(convolved(x, p[0], p[1]), p[2], p[3]).reshape(64, -1)
            return cross_entropy(relu(h @ p[4] + p[5]) @ p[6] + p[7], y)
    elif work in ("gpt", "gpt-spmd", "first", "first-warm"):
        parameters, loss = gpt_in_jax(jax, jnp, weight, cross_entropy)
        x, y = below(VOCABULARY, BATCH, LENGTH), below(VOCABULARY, BATCH, LENGTH)
        if work == "gpt-spmd":
            from jax.sharding import Mesh, NamedSharding, PartitionSpec

            mesh = Mesh(np.array(jax.devices()), ("data",))
            x, y = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
            parameters = jax.device_put(parameters, NamedSharding(mesh, PartitionSpec()))
    else:
        sys.exit(f"jax has no {work}")

    tree = jax.tree.map
    gradients = jax.value_and_grad(loss)
    if work in ("gpt", "gpt-spmd", "first", "first-warm"):
        state = (parameters, tree(jnp.zeros_like, parameters), tree(jnp.zeros_like, parameters))
        state += (jnp.zeros((), jnp.int32),)

        @functools.partial(jax.jit, donate_argnums=0)
        def update(state, x, y):
            """AdamW."""
            p, m, v, t = state
            value, g = gradients(p, x, y)
            t = t + 1
            m = tree(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = tree(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
            c1, c2 = 1 - 0.9**t, 1 - 0.999**t
            p = tree(lambda p, m, v: p - 3e-4 * (m / c1 / (jnp.sqrt(v / c2) + 1e-8) + 0.01 * p), p, m, v)
            return (p, m, v, t), value

    else:
        state = parameters

        @functools.partial(jax.jit, donate_argnums=0)
        def update(p, x, y):
            """SGD."""
            value, g = gradients(p, x, y)
            return tree(lambda p, g: p - 0.05 * g, p, g), value

    def step():
        nonlocal state
        state, value = update(state, x, y)
        return value

    wait = jax.block_until_ready
    if work.startswith("first"):
        return jax.__version__, first(step, wait)
    # Further ahead, programs with collectives take the threads that an earlier one's still need: on
    # two cores the process hangs until XLA aborts it.
    ahead = 8 if work in ("ddp", "gpt-spmd") else None
    return jax.__version__, report(step, wait, options, ahead)


def gpt_in_jax(jax, jnp, weight, cross_entropy):
    """The parameters of the transformer, and its loss."""
    ones, zeros = jnp.ones, jnp.zeros
    mask = jnp.tril(ones((LENGTH, LENGTH), bool))

    def block():
        return {
            "norm1": [ones(WIDTH), zeros(WIDTH)],
            "qkv": [weight(WIDTH, 3 * WIDTH), zeros(3 * WIDTH)],
            "out": [weight(WIDTH, WIDTH), zeros(WIDTH)],
            "norm2": [ones(WIDTH), zeros(WIDTH)],
            "wide": [weight(WIDTH, 4 * WIDTH), zeros(4 * WIDTH)],
            "narrow": [weight(4 * WIDTH, WIDTH), zeros(WIDTH)],
        }

    parameters = {
        "tokens": weight(VOCABULARY, WIDTH, scale=0.3),
        "positions": weight(LENGTH, WIDTH, scale=0.3),
        "blocks": [block() for _ in range(BLOCKS)],
        "norm": [ones(WIDTH), zeros(WIDTH)],
        "head": weight(WIDTH, VOCABULARY),
    }

    def norm(x, p):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[0] + p[1]

    def affine(x, p):
        return x @ p[0] + p[1]

    def attention(x, p):
        heads = affine(x, p["qkv"]).reshape(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.transpose(2, 0, 3, 1, 4)
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
        return affine(mixed.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, WIDTH), p["out"])

    def loss(p, x, y):
        h = p["tokens"][x] + p["positions"]
        for q in p["blocks"]:
            h = h + attention(norm(h, q["norm1"]), q)
            wide = jax.nn.gelu(affine(norm(h, q["norm2"]), q["wide"]), approximate=True)
            h = h + affine(wide, q["narrow"])
        return cross_entropy(norm(h, p["norm"]) @ p["head"], y)

    return parameters, loss


def in_torch(options):
    work, lazy = options.work, options.peer == "torch_xla"
    if lazy:
        os.environ.setdefault("PJRT_DEVICE", "CPU")
    import torch
    import torch.nn.functional as F
    from torch import nn

    if lazy:
        import torch_xla

        if work == "first-warm":
            torch_xla.runtime.initialize_cache(os.environ["XLA_PERSISTENT_CACHE_PATH"])
        device = torch_xla.device()
        version = torch_xla.__version__
    else:
        device = torch.device("cpu")
        version = torch.__version__
    torch.manual_seed(0)

    def wait(_):
        if lazy:
            torch_xla.sync(wait=True)

    def cut():
        if lazy:
            torch_xla.sync()

    if work.startswith("chain-"):
        operators = int(work.removeprefix("chain-"))
        x = torch.ones(16, 16, device=device, requires_grad=options.grad)

        def chain():
            y = x
            for _ in range(operators // 2):
                y = y * 1.0001 + 0.5
            value = y.detach().clone() if options.grad else y
            del y
            cut()
            return value

        return version, report(chain, wait, options)

    if work == "mlp":
        layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
        model = nn.Sequential(*layers)
        x, y = torch.rand(128, 784), torch.randint(0, 10, (128,))
    elif work == "cnn":
        layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10)]
        model = nn.Sequential(*layers)
        x, y = torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))
    elif work in ("gpt", "first") or (work == "first-warm" and lazy):
        model = gpt_in_torch(nn, F)
        x = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
        y = torch.randint(0, VOCABULARY, (BATCH * LENGTH,))
    else:
        sys.exit(f"{options.peer} has no {work}")
    model, x, y = model.to(device), x.to(device), y.to(device)
    if work in ("mlp", "cnn"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        cut()
        return loss

    measured = first(step, wait) if work.startswith("first") else report(step, wait, options)
    return version, measured


def gpt_in_torch(nn, F):
    """The transformer, which ends in a row of logits for each token."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, h):
            heads = self.qkv(self.norm1(h)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = h + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
            return h + self.narrow(F.gelu(self.wide(self.norm2(h)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, WIDTH)
            self.positions = nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, x):
            h = self.tokens(x) + self.positions.weight
            for block in self.blocks:
                h = block(h)
            return self.head(self.norm(h)).flatten(0, 1)

    return Gpt()


def main():
    options = arguments()
    version, measured = in_jax(options) if options.peer == "jax" else in_torch(options)
    line = {"peer": options.peer, "version": version, "work": options.work}
    print(json.dumps(line | measured))


if __name__ == "__main__":
    main()
