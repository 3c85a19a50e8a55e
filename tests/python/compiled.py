"""What the tests of torch.compile(backend="upweave") share."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import upweave
import upweave.torch as ut

ALL = {"rest": "eager", "take": "all"}  # small models would not pay


def _engine():
    """Where ordinary convolutions run: on the CPU if its engine has them."""
    try:
        upweave.compile("conv kernel", input=(1, 2, 5), kernel=(3, 2, 3))
        return ""
    except NotImplementedError:
        return "reference"


ENGINE = _engine()


def compiled(model, **options):
    return torch.compile(model, backend="upweave", options={**ALL, **options})


def report(model, *inputs):
    return ut.report(model, *inputs, options={"take": "all"})


class Net(nn.Sequential):
    """Builds from layers, for short tests."""


def busy(norm):
    """A norm whose every number matters."""
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm


class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(3, 6, 2, stride=2), nn.LayerNorm(6)

    def forward(self, x):
        return F.gelu(self.norm(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2), approximate="tanh")
