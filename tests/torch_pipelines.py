"""What PyTorch says the pipelines of pipelines/*.upw are: one function each, written from the problem they
come from and not from the text, so that a wrong text shows."""

import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Pipeline:
    slug: str
    rank: int  # spatial axes
    function: Callable  # (input, tensors by name, settings by name) -> output
    tensors: dict  # name -> "channel", "scalar", "full" or "last": what its shape follows; the kernel is implied
    least: int = 1  # the least extent of the convolution's output that the pools behind it accept
    divisor: int = 1  # what a pool in front of the convolution divides the input by
    sweep: tuple = ()  # settings of further cases, each a dict
    batch_statistics: bool = False


PIPELINES = []


def pipeline(slug, rank, tensors="", **facts):
    """tensors: "conv_bias:channel scale:scalar"."""
    named = dict(word.split(":") for word in tensors.split())

    def register(function):
        PIPELINES.append(Pipeline(slug, rank, function, named, **facts))
        return function

    return register


def conv(x, p, s):
    rank = x.dim() - 2
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    return function(x, p["kernel"], p.get("conv_bias"), stride=s["stride"], padding=s["padding"],
                    output_padding=s.get("output_padding", (0,) * rank))


def per_channel(vector, x):
    return vector.reshape(1, -1, *(1,) * (x.dim() - 2))


def channel_layer_norm(x):
    return F.layer_norm(x.movedim(1, -1), x.shape[1:2], eps=1e-5).movedim(-1, 1)


def row_layer_norm(x, p):
    return F.layer_norm(x, x.shape[-1:], p["ln_weight"], p["ln_bias"], eps=1e-5)


def batch_norm(x, p):
    return F.batch_norm(x, None, None, p["bn_weight"], p["bn_bias"], training=True, eps=1e-5)


def group_norm(x, p, s):
    return F.group_norm(x, s["num_groups"], p["gn_weight"], p["gn_bias"], eps=1e-5)


def space_softmax(x):
    return F.softmax(x.flatten(2), dim=-1).reshape(x.shape)


SPACE2 = (2, 3)
SPACE3 = (2, 3, 4)

# --- The five documents --------------------------------------------------------------------------------------


@pipeline("conv-transpose3d-sum-layernorm-avgpool-gelu", 3, least=2,
          sweep=({"sum_weight": -2.5}, {"sum_weight": 10000}))
def _(x, p, s):
    return F.gelu(F.avg_pool3d(channel_layer_norm(conv(x, p, s) + s["sum_weight"]), 2))


@pipeline("conv-transpose3d-layernorm-gelu-scaling", 3, sweep=({"scaling_factor": -0.75}, {"scaling_factor": 0}))
def _(x, p, s):
    return F.gelu(channel_layer_norm(conv(x, p, s))) * s["scaling_factor"]


@pipeline("conv-transpose3d-max-max-sum", 3, "conv_bias:channel", least=6, sweep=({}, {}))
def _(x, p, s):
    return F.max_pool3d(F.max_pool3d(conv(x, p, s), 2), 3).sum(dim=1, keepdim=True)


@pipeline("conv-transpose3d-avgpool-clamp-softmax-multiply", 3, "scale:channel", divisor=2,
          sweep=({"pool_kernel": 1}, {"pool_kernel": 2, "clamp_min": -0.5, "clamp_max": 0.25},
                 {"clamp_min": 1, "clamp_max": 0.5}, {"clamp_min": -900, "clamp_max": 900}))
def _(x, p, s):
    x = conv(F.avg_pool3d(x, s["pool_kernel"]), p, s)
    return space_softmax(torch.clamp(x, s["clamp_min"], s["clamp_max"])) * per_channel(p["scale"], x)


@pipeline("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", 2,
          "bn_weight:channel bn_bias:channel gn_weight:channel gn_bias:channel", least=3, batch_statistics=True,
          sweep=({"groups": 1}, {}))
def _(x, p, s):
    return group_norm(F.max_pool2d(torch.tanh(batch_norm(conv(x, p, s), p)), 2), p, s)


# --- The chains of KernelBench level 2 -----------------------------------------------------------------------


@pipeline("kernelbench-02-add-clamp-mul-clamp-div", 2, "conv_bias:channel bias:channel")
def _(x, p, s):
    x = conv(x, p, s)
    x = torch.clamp(x + per_channel(p["bias"], x), 0.0, 1.0)
    return torch.clamp(x * 2.0, 0.0, 1.0) / 2.0


@pipeline("kernelbench-03-add-layernorm-avgpool-gelu", 3,
          "conv_bias:channel sum_weight:scalar ln_weight:last ln_bias:last", least=2)
def _(x, p, s):
    return F.gelu(F.avg_pool3d(row_layer_norm(conv(x, p, s) + p["sum_weight"], p), 2))


@pipeline("kernelbench-05-sub-tanh", 2, "conv_bias:channel bias:channel")
def _(x, p, s):
    x = conv(x, p, s)
    return torch.tanh(x - per_channel(p["bias"], x))


@pipeline("kernelbench-10-maxpool-hardtanh-mean-tanh", 2, "conv_bias:channel", least=2)
def _(x, p, s):
    x = F.hardtanh(F.max_pool2d(conv(x, p, s), 2), -1.0, 1.0)
    return torch.tanh(x.mean(dim=SPACE2, keepdim=True))


@pipeline("kernelbench-11-batchnorm-tanh-maxpool-groupnorm", 2,
          "conv_bias:channel bn_weight:channel bn_bias:channel gn_weight:channel gn_bias:channel", least=3,
          batch_statistics=True)
def _(x, p, s):
    return group_norm(F.max_pool2d(torch.tanh(batch_norm(conv(x, p, s), p)), 2), p, s)


@pipeline("kernelbench-13-mean-add-softmax-tanh-mul", 3, "conv_bias:channel bias:channel")
def _(x, p, s):
    x = conv(x, p, s).mean(dim=2, keepdim=True)
    return torch.tanh(F.softmax(x + per_channel(p["bias"], x), dim=1)) * 2.0


@pipeline("kernelbench-15-batchnorm-sub-mean", 3, "conv_bias:channel bn_weight:channel bn_bias:channel",
          batch_statistics=True)
def _(x, p, s):
    x = batch_norm(conv(x, p, s), p)
    return x - x.mean(dim=SPACE3, keepdim=True)


@pipeline("kernelbench-16-mish-add-hardtanh-mul", 2, "conv_bias:channel")
def _(x, p, s):
    return F.hardtanh(F.mish(conv(x, p, s)) + 0.5, -1.0, 1.0) * 2


@pipeline("kernelbench-19-gelu-groupnorm", 2, "conv_bias:channel gn_weight:channel gn_bias:channel", least=2)
def _(x, p, s):
    return group_norm(F.gelu(conv(x, p, s)), p, s)


@pipeline("kernelbench-20-add-residual-mul-residual", 3, "conv_bias:channel bias:channel")
def _(x, p, s):
    c = conv(x, p, s)
    return ((c + per_channel(p["bias"], c)) + c) * c + c


@pipeline("kernelbench-26-add-hardswish-mul", 3, "conv_bias:channel addend:full")
def _(x, p, s):
    y = conv(x, p, s) + p["addend"]
    return y * F.hardswish(y)


@pipeline("kernelbench-34-layernorm-gelu-mul", 3, "conv_bias:channel ln_weight:last ln_bias:last")
def _(x, p, s):
    return F.gelu(row_layer_norm(conv(x, p, s), p)) * 1.0


@pipeline("kernelbench-36-min-sum-gelu-add", 2, "conv_bias:channel bias:scalar")
def _(x, p, s):
    x = torch.amin(conv(x, p, s), dim=1, keepdim=True)
    return F.gelu(torch.sum(x, dim=2, keepdim=True)) + p["bias"]


@pipeline("kernelbench-38-avgpool-clamp-softmax-mul", 3, "conv_bias:channel scale:channel", divisor=2)
def _(x, p, s):
    x = torch.clamp(conv(F.avg_pool3d(x, 2), p, s), 0.0, 1.0)
    return space_softmax(x) * per_channel(p["scale"], x)


@pipeline("kernelbench-42-mean-add-logsumexp-sum-mul", 2, "conv_bias:channel bias:channel")
def _(x, p, s):
    x = conv(x, p, s).mean(dim=SPACE2, keepdim=True)
    x = torch.logsumexp(x + per_channel(p["bias"], x), dim=1, keepdim=True)
    return x.sum(dim=SPACE2) * 10.0


@pipeline("kernelbench-44-mul-mean-mean", 2, "conv_bias:channel")
def _(x, p, s):
    x = (conv(x, p, s) * 0.5).mean(dim=SPACE2, keepdim=True)
    return x.mean(dim=SPACE2, keepdim=True)


@pipeline("kernelbench-49-softmax-sigmoid", 3, "conv_bias:channel")
def _(x, p, s):
    return torch.sigmoid(F.softmax(conv(x, p, s), dim=1))


@pipeline("kernelbench-50-mul-avgpool-add-mul", 3, "conv_bias:channel scale1:scalar bias:channel scale2:scalar",
          least=2)
def _(x, p, s):
    x = F.avg_pool3d(conv(x, p, s) * p["scale1"], 2)
    return (x + per_channel(p["bias"], x)) * p["scale2"]


@pipeline("kernelbench-58-logsumexp-hardswish-sub-clamp", 3, "conv_bias:channel bias:scalar")
def _(x, p, s):
    y = torch.logsumexp(conv(x, p, s), dim=1, keepdim=True)
    return torch.clamp(y * torch.sigmoid(y + 3) / 6 - p["bias"], -1, 1)


@pipeline("kernelbench-60-swish-groupnorm-hardswish", 3, "conv_bias:channel gn_weight:channel gn_bias:channel",
          least=2)
def _(x, p, s):
    x = conv(x, p, s)
    return F.hardswish(group_norm(torch.sigmoid(x) * x, p, s))


@pipeline("kernelbench-61-relu-groupnorm", 3, "gn_weight:channel gn_bias:channel", least=2)
def _(x, p, s):
    return group_norm(F.relu(conv(x, p, s)), p, s)


@pipeline("kernelbench-72-batchnorm-avgpool-avgpool", 3, "conv_bias:channel bn_weight:channel bn_bias:channel",
          least=4, batch_statistics=True)
def _(x, p, s):
    return F.avg_pool3d(F.avg_pool3d(batch_norm(conv(x, p, s), p), 2), 2)


@pipeline("kernelbench-74-leakyrelu-mul-leakyrelu-maxpool", 3, "conv_bias:channel multiplier:channel", least=2)
def _(x, p, s):
    x = F.leaky_relu(conv(x, p, s), 0.2)
    return F.max_pool3d(F.leaky_relu(x * per_channel(p["multiplier"], x), 0.2), 2)


@pipeline("kernelbench-77-mul-batchnorm-mean", 3, "conv_bias:channel bn_weight:channel bn_bias:channel",
          batch_statistics=True)
def _(x, p, s):
    return batch_norm(conv(x, p, s) * 2.0, p).mean(dim=SPACE3, keepdim=True)


@pipeline("kernelbench-78-maxpool-maxpool-sum", 3, "conv_bias:channel", least=6)
def _(x, p, s):
    return F.max_pool3d(F.max_pool3d(conv(x, p, s), 2), 3).sum(dim=1, keepdim=True)


@pipeline("kernelbench-89-maxpool-softmax-sub-swish-max", 3, "conv_bias:channel subtract:channel", least=2)
def _(x, p, s):
    x = F.softmax(F.max_pool3d(conv(x, p, s), 2), dim=1)
    x = x - per_channel(p["subtract"], x)
    return torch.amax(torch.sigmoid(x) * x, dim=1)


@pipeline("kernelbench-91-softmax-add-mul-sigmoid", 2, "conv_bias:channel bias:channel")
def _(x, p, s):
    x = F.softmax(conv(x, p, s), dim=1)
    return torch.sigmoid((x + per_channel(p["bias"], x)) * 2.0)


@pipeline("kernelbench-93-add-min-gelu-mul", 2, "conv_bias:channel")
def _(x, p, s):
    x = conv(x, p, s) + 0.5
    return F.gelu(torch.min(x, torch.zeros((), dtype=x.dtype))) * 2.0


@pipeline("kernelbench-96-mul-maxpool-mean-clamp", 3, "conv_bias:channel", least=2)
def _(x, p, s):
    x = F.max_pool3d(conv(x, p, s) * 0.5, 2)
    return torch.clamp(x.mean(dim=SPACE3, keepdim=True), 0, 1)


@pipeline("kernelbench-100-clamp-div", 3, "conv_bias:channel")
def _(x, p, s):
    return torch.clamp(conv(x, p, s), min=-1.0) / 2
