"""Writes what PyTorch says of whole models, beside this script: run it with PyTorch and safetensors.

Each file has, for one model: its parameters and buffers (`state/…`), inputs (`in/…`), the output and
loss of the first step, some gradients of it (`grad/…`), the losses of all steps, and parameters and
buffers after them (`final/…`). What the examples in `xla/examples` define has these names.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

HERE = Path(__file__).parent
STEPS = 3


def run(name, model, optimizer, inputs, loss_of, gradients, clip=None):
    tensors = {f"state/{key}": value.clone() for key, value in model.state_dict().items()}
    tensors |= {f"in/{i}": tensor for i, tensor in enumerate(inputs)}
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output, loss = loss_of(model, *inputs)
        loss.backward()
        losses.append(loss.detach())
        if step == 0:
            tensors["output"] = output.detach().clone()
            for key in gradients:
                tensors[f"grad/{key}"] = model.get_parameter(key).grad.clone()
        if clip is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
            if step == 0:
                tensors["norm"] = norm.clone()
        optimizer.step()
    tensors["losses"] = torch.stack(losses)
    tensors |= {f"final/{key}": value.clone() for key, value in model.state_dict().items()}
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    metadata = {"keys": " ".join(model.state_dict())}
    save_file(tensors, HERE / f"{name}.safetensors", metadata=metadata)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, channels, width, blocks, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = width
        for i, count in enumerate(blocks):
            outputs = width * 2**i
            stage = [BasicBlock(inputs, outputs, 1 if i == 0 else 2)]
            stage += [BasicBlock(outputs, outputs, 1) for _ in range(count - 1)]
            setattr(self, f"layer{i + 1}", nn.Sequential(*stage))
            inputs = outputs
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet():
    torch.manual_seed(1)
    model = ResNet(channels=3, width=2, blocks=[2, 1, 1, 1], classes=5)
    optimizer = torch.optim.SGD(
        model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )

    def loss(model, images, labels):
        logits = model(images)
        return logits, F.cross_entropy(logits, labels)

    inputs = torch.randn(4, 3, 40, 36), torch.tensor([0, 3, 1, 4])
    gradients = "conv1.weight layer1.1.bn2.weight layer2.0.downsample.0.weight fc.bias".split()
    run("resnet", model, optimizer, inputs, loss, gradients)


class Attention(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.qkv = nn.Linear(features, 3 * features)
        self.proj = nn.Linear(features, features)
        self.heads = heads

    def forward(self, x):
        batch, length, features = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(features)
        self.attn = Attention(features, heads)
        self.ln_2 = nn.LayerNorm(features)
        self.fc = nn.Linear(features, 4 * features)
        self.proj = nn.Linear(4 * features, features)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, features):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, features)
        self.wpe = nn.Embedding(context, features)
        self.h = nn.ModuleList(Block(features, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(features)
        self.lm_head = nn.Linear(features, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def gpt():
    torch.manual_seed(2)
    model = Gpt(vocabulary=17, context=9, layers=2, heads=2, features=16)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    # The gradient of the keys' bias is 0 but for rounding, which a small eps would make a step of.
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.95), eps=1e-3,
    )

    def loss(model, tokens, targets):
        logits = model(tokens)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    text = torch.randint(17, (3, 9))
    gradients = "wte.weight wpe.weight h.0.attn.qkv.weight h.1.ln_2.bias ln_f.weight".split()
    run("gpt", model, optimizer, (text[:, :-1], text[:, 1:]), loss, gradients, clip=1.0)


class ResBlock(nn.Module):
    def __init__(self, inputs, outputs, groups, time):
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.skip is None else self.skip(x))


class UNet(nn.Module):
    def __init__(self, channels, widths, groups, time):
        super().__init__()
        block = lambda inputs, outputs: ResBlock(inputs, outputs, groups, time)
        pairs = list(zip(widths, widths[1:]))
        self.time = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down = nn.ModuleList(block(w, w) for w, _ in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(w, d, 3, stride=2, padding=1) for w, d in pairs)
        self.middle = block(widths[-1], widths[-1])
        pairs.reverse()
        self.grow = nn.ModuleList(nn.ConvTranspose2d(d, w, 2, stride=2) for w, d in pairs)
        self.up = nn.ModuleList(block(2 * w, w) for w, _ in pairs)
        self.norm = nn.GroupNorm(groups, widths[0])
        self.last = nn.Conv2d(widths[0], channels, 3, padding=1)
        self.features = time

    def forward(self, x, steps):
        half = self.features // 2
        frequencies = torch.exp(-math.log(1e4) * torch.arange(half) / half)
        angles = steps[:, None].float() * frequencies
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.first(x)
        skipped = []
        for block, shrink in zip(self.down, self.shrink):
            x = block(x, time)
            skipped.append(x)
            x = shrink(x)
        x = self.middle(x, time)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), skipped.pop()], 1), time)
        return self.last(F.silu(self.norm(x)))


def unet():
    torch.manual_seed(3)
    model = UNet(channels=2, widths=[4, 6, 8], groups=2, time=6)
    # As for the keys above: what a normalisation takes out again.
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=1e-3)

    def loss(model, images, steps, noise):
        found = model(images, steps)
        return found, F.mse_loss(found, noise)

    inputs = torch.randn(2, 2, 12, 8), torch.tensor([3, 70]), torch.randn(2, 2, 12, 8)
    gradients = "time.0.weight first.weight shrink.0.bias grow.1.weight up.0.skip.weight".split()
    run("unet", model, optimizer, inputs, loss, gradients)


resnet()
gpt()
unet()
