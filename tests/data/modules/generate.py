"""Writes what PyTorch says of modules, beside this script: run it with PyTorch and safetensors."""

from pathlib import Path

import torch
from safetensors.torch import save_file

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


if __name__ == "__main__":
    dtypes()
