"""Writes what PyTorch says of modules, beside this script: run it with PyTorch and safetensors."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent


def dtypes():
    """A file with every dtype, a scalar, an empty tensor and metadata."""
    kinds = [
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "bfloat16", "float32", "float64",
    ]
    tensors = {name: torch.tensor([1, 2, 100], dtype=getattr(torch, name)) for name in kinds}
    tensors["bool"] = torch.tensor([[True, False], [False, True]])
    tensors["scalar"] = torch.tensor(-0.5)
    tensors["empty"] = torch.zeros(2, 0)
    save_file(tensors, HERE / "dtypes.safetensors", metadata={"format": "pt", "epoch": "3"})


class Cases:
    """Inputs, states and outputs, all in one file: `case/in/0`, `case/state/weight`, `case/out/0`."""

    def __init__(self):
        self.tensors = {}
        self.metadata = {}

    def keep(self, path, tensor):
        self.tensors[path] = tensor.detach().clone().contiguous()

    def case(self, name, module, *inputs, call=None, grads=False, **kwargs):
        """One call; `call` where the module's own does not do."""
        for key, value in module.state_dict().items():
            self.keep(f"{name}/state/{key}", value)
        self.metadata[f"{name}/keys"] = " ".join(module.state_dict())
        for i, tensor in enumerate(inputs):
            self.keep(f"{name}/in/{i}", tensor)
        outputs = call(*inputs) if call else module(*inputs, **kwargs)
        outputs = list(flat(outputs))
        for i, tensor in enumerate(outputs):
            self.keep(f"{name}/out/{i}", tensor)
        if grads:
            sum((o * o).sum() for o in outputs).backward()
            for key, value in module.named_parameters():
                self.keep(f"{name}/grad/{key}", value.grad)

    def save(self, path):
        save_file(self.tensors, path, metadata=self.metadata)


def flat(outputs):
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif outputs is not None:
        for output in outputs:
            yield from flat(output)


def recurrent(cases):
    x = torch.randn(5, 2, 3)
    h, c = torch.randn(4, 2, 4), torch.randn(4, 2, 4)
    lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True)
    cases.case("lstm", lstm, x, h, c, call=lambda x, h, c: lstm(x, (h, c)), grads=True)
    cases.case("lstm_proj", nn.LSTM(3, 4, proj_size=2, num_layers=2, bias=False), x[:, 0])
    cases.case("gru", nn.GRU(3, 4, num_layers=2, bidirectional=True), x, h, grads=True)
    cases.case("gru_batch_first", nn.GRU(3, 4, batch_first=True, bias=False), x)
    cases.case("rnn", nn.RNN(3, 4), x, grads=True)
    cases.case("rnn_relu", nn.RNN(3, 4, nonlinearity="relu"), x)
    cell = nn.LSTMCell(3, 4)
    cases.case("lstm_cell", cell, x[0], h[0], c[0], call=lambda x, h, c: cell(x, (h, c)))
    cases.case("gru_cell", nn.GRUCell(3, 4), x[0], h[0])
    cases.case("rnn_cell", nn.RNNCell(3, 4, bias=False), x[0])


def attention(cases):
    q, k, v = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.normal_(attention.in_proj_bias)
    padding = torch.tensor([[False, False, False, True, True], [False] * 5])
    masked = torch.tensor([[False, True, False, False, False]] * 3)
    call = lambda q, k, v, p, m: attention(q, k, v, key_padding_mask=p, attn_mask=m)
    cases.case("attention", attention, q, k, v, padding, masked, call=call, grads=True)
    other = nn.MultiheadAttention(8, 2, kdim=6, vdim=7, bias=False)
    bias = torch.randn(4, 3, 5)
    call = lambda q, k, v, m: other(q, k, v, attn_mask=m, average_attn_weights=False)
    inputs = [q.transpose(0, 1), torch.randn(5, 2, 6), torch.randn(5, 2, 7), bias]
    cases.case("attention_dims", other, *inputs, call=call)
    alone = nn.MultiheadAttention(8, 4)
    call = lambda x: alone(x, x, x, need_weights=False)
    cases.case("attention_alone", alone, q[0], call=call)


def norms(cases):
    batches = [torch.randn(4, 3, 2, 2) * (i + 1) + i for i in range(3)]

    def run(module):
        def call(*inputs):
            outputs = [module(x) for x in inputs]
            module.eval()
            outputs.append(module(inputs[0]))
            state = module.state_dict()
            return outputs + [state[k] for k in ("running_mean", "running_var")]
        return call

    norm = nn.BatchNorm2d(3)
    nn.init.normal_(norm.weight)
    cases.case("batch_norm", norm, *batches, call=run(norm))
    norm = nn.BatchNorm2d(3, momentum=None, affine=False, eps=1e-3)
    cases.case("batch_norm_cumulative", norm, *batches, call=run(norm))
    cases.case("batch_norm_untracked", nn.BatchNorm1d(3, track_running_stats=False), batches[1][:, :, 0])
    x = batches[2]
    for name, module in [
        ("layer_norm", nn.LayerNorm([2, 2], bias=False)),
        ("rms_norm", nn.RMSNorm(2, eps=1e-3)),
        ("group_norm", nn.GroupNorm(3, 6)),
    ]:
        nn.init.normal_(module.weight)
        cases.case(name, module, torch.cat([x, x + 1], 1) if name == "group_norm" else x, grads=True)


def others(cases):
    x = torch.randn(2, 4, 6, 5)
    conv = nn.Conv2d(4, 6, (3, 2), stride=2, padding=(1, 0), dilation=(1, 2), groups=2)
    cases.case("conv2d", conv, x, grads=True)
    cases.case("conv1d", nn.Conv1d(4, 3, 3, padding="same", bias=False), x[:, :, 0])
    up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    cases.case("conv_transpose2d", up, x, grads=True)
    table = nn.Embedding(5, 3, padding_idx=1)
    nn.init.normal_(table.weight)
    cases.case("embedding", table, torch.tensor([[0, 1], [4, 4]]), grads=True)


def layers():
    torch.manual_seed(0)
    cases = Cases()
    for family in (recurrent, attention, norms, others):
        family(cases)
    cases.save(HERE / "layers.safetensors")


if __name__ == "__main__":
    dtypes()
    layers()
