"""Single operations and short combinations, as text and as PyTorch: every word of the vocabulary, and the
neighbourhoods in which a rewrite applies or, one step aside, must not."""

import dataclasses
import re
from typing import Callable

import torch
import torch.nn.functional as F

from torch_pipelines import channel_layer_norm, per_channel, space_softmax


@dataclasses.dataclass
class Row:
    family: str
    name: str
    text: str
    function: Callable  # (input, tensors by name) -> output
    shape: tuple  # of the input
    tensors: dict  # name -> shape
    scale: float = 1.0  # standard deviation of the input
    strange: str = ""  # which of "nan", "inf", "-inf" the input holds, separated by spaces


X1, X2, X3 = (3, 5, 7), (2, 3, 5, 4), (2, 3, 3, 4, 5)
STRANGE = ("nan", "inf", "-inf", "nan inf -inf")
POOLS = {"max_pool": (F.max_pool1d, F.max_pool2d, F.max_pool3d), "avg_pool": (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)}


def pool(kind, x, window, stride=None):
    if kind == "min_pool":
        return -pool("max_pool", -x, window, stride)
    return POOLS[kind][x.dim() - 3](x, window, stride)


def space(x):
    return tuple(range(2, x.dim()))


def conv(x, kernel, bias=None, **options):
    return (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.dim() - 3](x, kernel, bias, **options)


def slug(text):
    return re.sub(r"\W+", "-", text.replace(" -", " minus_"))


def rows():
    """All of them; their order and names do not depend on the seed."""
    result = []
    for family in (activations, clamps, binary, reductions, pools, norms, softmaxes, branches, neighbourhoods, convolutions,
                   moves, gates):

        def row(text, function, shape=X3, tensors=None, **facts):
            strange = "".join("-" + word.replace("-", "minus_") for word in facts.get("strange", "").split())
            name = f"{slug(text)}-{len(shape) - 2}d{strange}"
            result.append(Row(family.__name__, name, text, function, shape, tensors or {}, **facts))

        family(row)
    return result


def activations(row):
    functions = {
        "gelu": F.gelu,
        "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "relu": F.relu,
        "leaky_relu 0.2": lambda x: F.leaky_relu(x, 0.2),
        "leaky_relu -0.5": lambda x: F.leaky_relu(x, -0.5),
        "swish": F.silu,
        "mish": F.mish,
        "hardswish": F.hardswish,
        "exp": torch.exp,
        "elu": F.elu,
        "elu 0.5": lambda x: F.elu(x, 0.5),
        "softplus": F.softplus,
        "softplus beta=2 threshold=5": lambda x: F.softplus(x, 2, 5),
        "sin": torch.sin,
        "abs": torch.abs,
        "abs | sqrt": lambda x: torch.sqrt(torch.abs(x)),
    }
    for text, f in functions.items():
        row(text, lambda x, p, f=f: f(x), X2, scale=2)
        row(text, lambda x, p, f=f: f(x), X1, strange=STRANGE[3])
        # The tails, where a careless form overflows or cancels; exp stays inside float16.
        row(f"mul 30 | {text}" if text != "exp" else "mul 3 | exp",
            lambda x, p, f=f, text=text: f(x * (30 if text != "exp" else 3)), X1)


def clamps(row):
    for lo, hi in (("-1", "1"), ("-0.5", "inf"), ("-inf", "0.25"), ("-inf", "inf"), ("0.5", "-0.5"), ("0", "0")):
        f = lambda x, p, lo=lo, hi=hi: torch.clamp(x, float(lo), float(hi))
        row(f"clamp {lo} {hi}", f, X2)
        row(f"clamp {lo} {hi}", f, X1, strange=STRANGE[3])
    row("hardtanh -1 1", lambda x, p: F.hardtanh(x, -1, 1), X2)
    row("hardtanh -0.25 1.5", lambda x, p: F.hardtanh(x, -0.25, 1.5), X1, strange=STRANGE[3])


def binary(row):
    functions = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "minimum": torch.minimum,
                 "maximum": torch.maximum}
    for name, f in functions.items():
        for number in ("0.75", "-3", "0") if name != "div" else ("0.75", "-3"):
            row(f"{name} {number}", lambda x, p, f=f, v=float(number): f(x, torch.tensor(v, dtype=x.dtype)), X1)
        row(f"{name} t:scalar", lambda x, p, f=f: f(x, p["t"]), X2, {"t": (1,)})
        row(f"{name} t", lambda x, p, f=f: f(x, per_channel(p["t"], x)), X3, {"t": (3,)})
        row(f"{name} t:channel", lambda x, p, f=f: f(x, per_channel(p["t"], x)), X1, {"t": (5,)}, strange=STRANGE[3])
        row(f"{name} t:full", lambda x, p, f=f: f(x, p["t"]), X2, {"t": X2}, strange=STRANGE[3])
        row(f"exp as e | add 0.5 | {name} @e", lambda x, p, f=f: f(torch.exp(x) + 0.5, torch.exp(x)), X1)
        row(f"exp | {name} @input", lambda x, p, f=f: f(torch.exp(x), x), X2)
    row("prelu t:scalar", lambda x, p: F.prelu(x, p["t"]), X2, {"t": (1,)})
    row("prelu t", lambda x, p: F.prelu(x, p["t"]), X3, {"t": (3,)})
    row("prelu t", lambda x, p: F.prelu(x, p["t"]), X1, {"t": (5,)}, strange=STRANGE[3])


def reductions(row):
    functions = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
    axes = {"channel": (1,), "space": (2, 3, 4), "depth": (2,), "height": (3,), "width": (4,)}
    for name, f in functions.items():
        for word, dims in axes.items():
            row(f"{name} {word}", lambda x, p, f=f, dims=dims: f(x, dim=dims, keepdim=True))
            row(f"{name} {word} drop", lambda x, p, f=f, dims=dims: f(x, dim=dims))
        row(f"{name} space", lambda x, p, f=f: f(x, dim=(2,), keepdim=True), X1)
        row(f"{name} width drop", lambda x, p, f=f: f(x, dim=(2,)), X1)
        row(f"{name} height", lambda x, p, f=f: f(x, dim=(2,), keepdim=True), X2)
        row(f"{name} width", lambda x, p, f=f: f(x, dim=(3,), keepdim=True), X2)
        for strange in STRANGE:
            row(f"{name} channel", lambda x, p, f=f: f(x, dim=(1,), keepdim=True), X1, strange=strange)
            row(f"{name} space", lambda x, p, f=f: f(x, dim=(2, 3), keepdim=True), X2, strange=strange)
        # Reductions of reductions, and what a dropped axis does to the stages behind it.
        row(f"{name} height | {name} channel drop | mul 3",
            lambda x, p, f=f: f(f(x, dim=(3,), keepdim=True), dim=(1,)) * 3)
        row(f"{name} depth | add t | {name} width",
            lambda x, p, f=f: f(f(x, dim=(2,), keepdim=True) + per_channel(p["t"], x), dim=(4,), keepdim=True), X3,
            {"t": (3,)})


def pools(row):
    for kind in ("avg_pool", "max_pool", "min_pool"):
        def p3(window, stride=None):
            return lambda x, p, kind=kind: pool(kind, x, window, stride)

        row(f"{kind} 2", p3(2), (2, 3, 5, 4, 7))
        row(f"{kind} 2x3x1", p3((2, 3, 1)), (1, 3, 5, 7, 2))
        row(f"{kind} 2x3x1 s1x2x3", p3((2, 3, 1), (1, 2, 3)), (2, 2, 3, 6, 5))
        row(f"{kind} 3 s2", p3(3, 2), (2, 3, 7, 6))
        row(f"{kind} 2 s3", p3(2, 3), (2, 3, 7, 8))  # windows that leave gaps
        row(f"{kind} 4", p3(4), (3, 5, 11))
        row(f"{kind} 1", p3(1), X1)
        row(f"{kind} 3 s1", p3(3, 1), X1)
        for strange in STRANGE:
            row(f"{kind} 2", p3(2), (2, 3, 5, 6), strange=strange)
            row(f"{kind} 3x2 s1x2", p3((3, 2), (1, 2)), (2, 3, 5, 6), strange=strange)


def norms(row):
    affine = {"w": (3,), "b": (3,)}

    def batch(x, w=None, b=None, eps=1e-5):
        return F.batch_norm(x, None, None, w, b, training=True, eps=eps)

    def channel(x, w, b, eps=1e-5):
        return F.layer_norm(x.movedim(1, -1), x.shape[1:2], w, b, eps).movedim(-1, 1)

    row("layer_norm channel", lambda x, p: channel_layer_norm(x), (5, 1, 3, 1, 2))  # one channel: all zeros
    for shape in ((3, 3, 7), X2, (2, 3, 1, 4, 3)):
        rank = len(shape) - 2
        row("add 1 | layer_norm channel | add 2", lambda x, p: channel_layer_norm(x + 1) + 2, shape)
        row("layer_norm channel w b", lambda x, p: channel(x, p["w"], p["b"]), shape, affine)
        row("layer_norm last", lambda x, p: F.layer_norm(x, x.shape[-1:]), shape)
        row("layer_norm last w b", lambda x, p: F.layer_norm(x, x.shape[-1:], p["w"], p["b"]), shape,
            {"w": shape[-1:], "b": shape[-1:]})
        row("batch_norm", lambda x, p: batch(x), shape)
        row("batch_norm w b", lambda x, p: batch(x, p["w"], p["b"]), shape, affine)
        row("group_norm 3", lambda x, p: F.group_norm(x, 3), shape)
        row("group_norm 1 w b", lambda x, p: F.group_norm(x, 1, p["w"], p["b"]), shape, affine)
        row("instance_norm", lambda x, p: F.instance_norm(x), shape)
        row("instance_norm w b", lambda x, p: F.instance_norm(x, weight=p["w"], bias=p["b"]), shape, affine)
        if rank > 1:
            row("layer_norm last 2 w b", lambda x, p: F.layer_norm(x, x.shape[-2:], p["w"], p["b"]), shape,
                {"w": shape[-2:], "b": shape[-2:]})
    six = (2, 6, 3, 2)
    row("group_norm 2 w b", lambda x, p: F.group_norm(x, 2, p["w"], p["b"]), six, {"w": (6,), "b": (6,)})
    row("group_norm 3 w b eps=0.25", lambda x, p: F.group_norm(x, 3, p["w"], p["b"], 0.25), six,
        {"w": (6,), "b": (6,)})
    row("layer_norm channel eps=0.5", lambda x, p: channel(x, None, None, 0.5), X2)
    row("layer_norm last eps=0.001", lambda x, p: F.layer_norm(x, x.shape[-1:], eps=1e-3), X2)
    row("batch_norm w b eps=0.125", lambda x, p: batch(x, p["w"], p["b"], 0.125), X2, affine)
    row("instance_norm eps=2", lambda x, p: F.instance_norm(x, eps=2), X2)
    every = {
        "layer_norm channel": lambda x, p: channel_layer_norm(x),
        "layer_norm last": lambda x, p: F.layer_norm(x, x.shape[-1:]),
        "batch_norm": lambda x, p: batch(x),
        "group_norm 3": lambda x, p: F.group_norm(x, 3),
        "instance_norm": lambda x, p: F.instance_norm(x),
    }
    for text, f in every.items():
        for strange in STRANGE[:3]:
            row(text, f, (2, 3, 3, 5), strange=strange)
        # A mean of 1e4 with a spread of 1 must survive; so must a norm of constants and a tiny spread.
        row(f"add 10000 | {text}", lambda x, p, f=f: f(x + 10000, p), X2)
        row(f"add t:channel | {text}", lambda x, p, f=f: f(x + per_channel(p["t"], x), p), X2, {"t": (3,)})
        row(f"mul 0.001 | {text}", lambda x, p, f=f: f(x * 0.001, p), X2)
        row(f"mul -3 | {text}", lambda x, p, f=f: f(x * -3, p), X2)
        row(f"mul 0 | {text}", lambda x, p, f=f: f(x * 0, p), X2)
        row(f"mul t:scalar | {text}", lambda x, p, f=f: f(x * p["t"], p), X2, {"t": (1,)})
        row(f"mul t:channel | {text}", lambda x, p, f=f: f(x * per_channel(p["t"], x), p), X2, {"t": (3,)})
        row(f"add t:full | {text}", lambda x, p, f=f: f(x + p["t"], p), X2, {"t": X2})


def softmaxes(row):
    functions = {
        "softmax channel": lambda x, p: F.softmax(x, dim=1),
        "softmax space": lambda x, p: space_softmax(x),
        "logsumexp channel": lambda x, p: torch.logsumexp(x, dim=1, keepdim=True),
        "logsumexp space": lambda x, p: torch.logsumexp(x, dim=space(x), keepdim=True),
        "logsumexp channel drop": lambda x, p: torch.logsumexp(x, dim=1),
        "logsumexp space drop": lambda x, p: torch.logsumexp(x, dim=space(x)),
    }
    for text, f in functions.items():
        for shape in (X1, X2, X3):
            row(text, f, shape)
        row(f"mul 200 | {text}", lambda x, p, f=f: f(x * 200, p), X2)
        row(f"add -5000 | {text}", lambda x, p, f=f: f(x - 5000, p), X2)
        for strange in STRANGE:
            row(text, f, X2, strange=strange)
        # Bounded inputs: where a shift by the bound may replace the maximum, and where it would underflow.
        for lo, hi in ((0, 1), (-800, 800), (2, -2)):
            row(f"mul 400 | clamp {lo} {hi} | {text}",
                lambda x, p, f=f, lo=lo, hi=hi: f(torch.clamp(x * 400, lo, hi), p), X2)
        row(f"clamp 0 1000 | {text}", lambda x, p, f=f: f(torch.clamp(x, 0, 1000), p), X2)
        row(f"clamp 0 inf | {text}", lambda x, p, f=f: f(torch.clamp(x, min=0), p), X2)
        row(f"clamp 0 1 | {text}", lambda x, p, f=f: f(torch.clamp(x, 0, 1), p), X2, strange=STRANGE[3])
        row(f"tanh | {text}", lambda x, p, f=f: f(torch.tanh(x), p), X2, strange="inf")


def branches(row):
    row("tanh as a | exp | mul @a as b | sigmoid | sub @a | add @b",
        lambda x, p: torch.sigmoid(torch.exp(torch.tanh(x)) * torch.tanh(x)) - torch.tanh(x) +
        torch.exp(torch.tanh(x)) * torch.tanh(x))
    row("relu as a | @input | exp | mul @a", lambda x, p: torch.exp(x) * F.relu(x), X2)
    row("mean space as m | @input | sub @m", lambda x, p: x - x.mean(dim=(2, 3), keepdim=True), X2)
    row("max channel as m | @input | div @m | tanh", lambda x, p: torch.tanh(x / torch.amax(x, dim=1, keepdim=True)))
    row("hardswish | mul @input", lambda x, p: F.hardswish(x) * x, X1)
    row("add t:channel | mul t:channel", lambda x, p: (x + per_channel(p["t"], x)) * per_channel(p["t"], x), X2,
        {"t": (3,)})
    row("mul @input | add @input", lambda x, p: x * x + x, X1)


def neighbourhoods(row):
    vector = {"t": (3,)}
    before_max_pool = {
        "mul -2": lambda x, p: x * -2,
        "mul t:channel": lambda x, p: x * per_channel(p["t"], x),
        "div t:channel": lambda x, p: x / per_channel(p["t"], x),
        "sub t:channel": lambda x, p: x - per_channel(p["t"], x),
        "tanh": lambda x, p: torch.tanh(x),
        "elu": lambda x, p: F.elu(x),
        "abs": lambda x, p: torch.abs(x),
        "prelu t": lambda x, p: F.prelu(x, p["t"]),
        "gelu": lambda x, p: F.gelu(x),  # these four fall before they rise: the pool must not pass them
        "swish": lambda x, p: F.silu(x),
        "hardswish": lambda x, p: F.hardswish(x),
        "mish": lambda x, p: F.mish(x),
        "leaky_relu -0.5": lambda x, p: F.leaky_relu(x, -0.5),
        "leaky_relu 0.5": lambda x, p: F.leaky_relu(x, 0.5),
        "clamp 0.5 -0.5": lambda x, p: torch.clamp(x, 0.5, -0.5),
        "minimum t:full": lambda x, p: torch.minimum(x, p["t"]),
        "batch_norm t u": lambda x, p: F.batch_norm(x, None, None, p["t"], p["u"], training=True),
    }
    image = (2, 3, 5, 6)
    for text, f in before_max_pool.items():
        tensors = ({"t": image} if "full" in text else {"t": (3,), "u": (3,)} if " u" in text
                   else vector if " t" in text else {})
        row(f"{text} | max_pool 2", lambda x, p, f=f: pool("max_pool", f(x, p), 2), image, tensors)
        row(f"{text} | min_pool 3 s1x2", lambda x, p, f=f: pool("min_pool", f(x, p), 3, (1, 2)), image, tensors)
        row(f"{text} | max_pool 2", lambda x, p, f=f: pool("max_pool", f(x, p), 2), image, tensors,
            strange="nan inf -inf")
    for kind in ("max_pool", "avg_pool", "min_pool"):
        row(f"{kind} 2 | {kind} 3", lambda x, p, k=kind: pool(k, pool(k, x, 2), 3), (1, 2, 13, 17))
        row(f"{kind} 2 | {kind} 2 s1", lambda x, p, k=kind: pool(k, pool(k, x, 2), 2, 1), (1, 2, 7, 8))
        row(f"{kind} 3 s2 | {kind} 2", lambda x, p, k=kind: pool(k, pool(k, x, 3, 2), 2), (1, 2, 9, 11))
        row(f"{kind} 2 s3 | {kind} 2", lambda x, p, k=kind: pool(k, pool(k, x, 2, 3), 2), (1, 2, 11, 13))
    row("max_pool 2 | avg_pool 2", lambda x, p: pool("avg_pool", pool("max_pool", x, 2), 2), (2, 2, 9, 8))
    row("max_pool 2 | min_pool 2", lambda x, p: pool("min_pool", pool("max_pool", x, 2), 2), (2, 2, 9, 8))

    # What may stand between a convolution and a pool, a mean or a norm, with a kernel that is nowhere symmetric.
    x, s, pad, op = (2, 3, 3, 4), (2, 1), (1, 0), (1, 0)
    tensors = {"kernel": (3, 5, 3, 2), "bias": (5,)}
    c = lambda x, p: conv(x, p["kernel"], p["bias"], stride=s, padding=pad, output_padding=op)
    stage = "conv_transpose kernel bias s2x1 p1x0 op1x0"
    channels = lambda t, x: per_channel(t, x)
    behind = {
        "avg_pool 2": lambda x, p: pool("avg_pool", x, 2),
        "avg_pool 2 s1": lambda x, p: pool("avg_pool", x, 2, 1),
        "avg_pool 3x2": lambda x, p: pool("avg_pool", x, (3, 2)),
        "avg_pool 2 | avg_pool 2x1": lambda x, p: pool("avg_pool", pool("avg_pool", x, 2), (2, 1)),
        "mul t:channel | avg_pool 2": lambda x, p: pool("avg_pool", x * channels(p["t"], x), 2),
        "mean space": lambda x, p: x.mean(dim=(2, 3), keepdim=True),
        "sum space drop": lambda x, p: x.sum(dim=(2, 3)),
        "mean height": lambda x, p: x.mean(dim=2, keepdim=True),
        "mean channel": lambda x, p: x.mean(dim=1, keepdim=True),
        "sum channel": lambda x, p: x.sum(dim=1, keepdim=True),
        "mul t:channel | add t:channel | mean space":
            lambda x, p: (x * channels(p["t"], x) + channels(p["t"], x)).mean(dim=(2, 3), keepdim=True),
        "avg_pool 2 | mean space": lambda x, p: pool("avg_pool", x, 2).mean(dim=(2, 3), keepdim=True),
        "layer_norm channel": lambda x, p: channel_layer_norm(x),
        "mul t:channel | layer_norm channel": lambda x, p: channel_layer_norm(x * channels(p["t"], x)),
        "add t:channel | layer_norm channel": lambda x, p: channel_layer_norm(x + channels(p["t"], x)),
        "add 10000 | layer_norm channel | gelu": lambda x, p: F.gelu(channel_layer_norm(x + 10000)),
        "layer_norm last": lambda x, p: F.layer_norm(x, x.shape[-1:]),
        "batch_norm": lambda x, p: F.batch_norm(x, None, None, training=True),
        "group_norm 5": lambda x, p: F.group_norm(x, 5),
        "instance_norm | max_pool 2": lambda x, p: pool("max_pool", F.instance_norm(x), 2),
        "max_pool 2 | max_pool 2 | sum channel":
            lambda x, p: pool("max_pool", pool("max_pool", x, 2), 2).sum(dim=1, keepdim=True),
        "max_pool 3 s2 | relu": lambda x, p: F.relu(pool("max_pool", x, 3, 2)),
        "softmax space": lambda x, p: space_softmax(x),
        "softmax channel | mean space": lambda x, p: F.softmax(x, dim=1).mean(dim=(2, 3), keepdim=True),
    }
    for text, f in behind.items():
        more = {"t": (5,)} if " t" in text else {}
        row(f"{stage} | {text}", lambda x, p, f=f: f(c(x, p), p), x, tensors | more)
        row(f"{stage} | {text}", lambda x, p, f=f: f(c(x, p), p), x, tensors | more, strange="nan")
        row(f"{stage} | {text}", lambda x, p, f=f: f(c(x, p), p), x, tensors | more, strange="inf")
    row(f"{stage} as c | mean space as m | @c | sub @m | mul @c",
        lambda x, p: (c(x, p) - c(x, p).mean(dim=(2, 3), keepdim=True)) * c(x, p), x, tensors)
    row(f"{stage} | relu | conv_transpose second s1x2 p1x1",
        lambda x, p: conv(F.relu(c(x, p)), p["second"], stride=(1, 2), padding=1), x,
        tensors | {"second": (5, 2, 2, 3)})
    row(f"relu | avg_pool 2x1 | {stage}", lambda x, p: c(pool("avg_pool", F.relu(x), (2, 1)), p), (2, 3, 5, 3), tensors)


MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


def pad(x, begin, end, mode="zeros", value=0.0):
    """begin and end: extents of each axis."""
    sides = [side for b, e in reversed(list(zip(begin, end))) for side in (b, e)]
    return F.pad(x, sides, MODES[mode], value) if mode == "zeros" else F.pad(x, sides, MODES[mode])


def plain_conv(x, kernel, bias=None, **options):
    return (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3](x, kernel, bias, **options)


def convolutions(row):
    """Ordinary ones: stride, dilation, groups, padding of each side and every border, in one to three axes."""
    for shape, kernel in (((2, 4, 9), (6, 4, 3)), ((2, 4, 7, 6), (6, 4, 3, 2)), ((1, 4, 4, 5, 6), (3, 4, 2, 3, 3))):
        rank = len(shape) - 2
        both = {"kernel": kernel, "bias": kernel[:1]}
        row("conv kernel", lambda x, p: plain_conv(x, p["kernel"]), shape, {"kernel": kernel})
        row("conv kernel bias s2 p1", lambda x, p: plain_conv(x, p["kernel"], p["bias"], stride=2, padding=1), shape, both)
        row("conv kernel bias p2 d2 s3",
            lambda x, p: plain_conv(x, p["kernel"], p["bias"], stride=3, padding=2, dilation=2), shape, both)
        for strange in STRANGE[:3]:
            row("conv kernel bias p1", lambda x, p: plain_conv(x, p["kernel"], p["bias"], padding=1), shape, both,
                strange=strange)
        for mode in MODES:
            row(f"conv kernel bias p2 pe1 s2 {mode}",
                lambda x, p, mode=mode, rank=rank: plain_conv(pad(x, (2,) * rank, (1,) * rank, mode), p["kernel"],
                                                              p["bias"], stride=2), shape, both)
        row("conv kernel g2 p1", lambda x, p: plain_conv(x, p["kernel"], groups=2, padding=1), shape,
            {"kernel": (6, 2, *kernel[2:])})
        row("conv kernel bias g4", lambda x, p: plain_conv(x, p["kernel"], p["bias"], groups=4), shape,
            {"kernel": (4, 1, *kernel[2:]), "bias": (4,)})
        row("matmul w b",
            lambda x, p: F.linear(x.movedim(1, -1), p["w"], p["b"]).movedim(-1, 1), shape, {"w": (5, 4), "b": (5,)})
        row("param v | weight_norm g as w | @input | conv @w p1",
            lambda x, p: plain_conv(x, torch._weight_norm(p["v"], p["g"].reshape(-1, *[1] * (x.dim() - 1)), 0), padding=1),
            shape, {"v": kernel, "g": kernel[:1]})
    image = (2, 3, 5, 6)
    row("conv kernel s1x2 p0x1 pe2x0 d2x1",
        lambda x, p: plain_conv(pad(x, (0, 1), (2, 0)), p["kernel"], stride=(1, 2), dilation=(2, 1)), image,
        {"kernel": (4, 3, 3, 2)})
    # A decoder's block in small: a skip, several convolutions, several readers.
    tensors = {"k": (3, 4, 2, 2), "a": (4, 4, 3, 3), "ab": (4,), "b": (2, 8, 3, 3), "bb": (2,)}

    def block(x, p):
        y = F.leaky_relu(conv(x, p["k"], stride=2), 0.1)
        z = plain_conv(y, p["a"], p["ab"], padding=1) + y
        return plain_conv(torch.cat([z, y], 1), p["b"], p["bb"], padding=1)

    text = ("conv_transpose weights=k s2 | leaky_relu 0.1 as y | conv a ab p1 | add @y | cat @y | conv b bb p1")
    row(text, block, image, tensors)
    row(text, block, image, tensors, strange="nan")
    row("conv a p1 | instance_norm | relu as r | conv b bb p1 reflect | add @r | conv_transpose k s2 | max_pool 2",
        lambda x, p: pool("max_pool", conv(
            plain_conv(pad(r := F.relu(F.instance_norm(plain_conv(x, p["a"], padding=1))), (1, 1), (1, 1), "reflect"),
                       p["b"], p["bb"]) + r, p["k"], stride=2), 2), image,
        {"a": (4, 3, 3, 3), "b": (4, 4, 3, 3), "bb": (4,), "k": (4, 2, 2, 2)})


def moves(row):
    modes = {1: "linear", 2: "bilinear", 3: "trilinear"}
    for shape in ((2, 4, 6), (2, 4, 3, 5), (1, 4, 2, 3, 4)):
        rank = len(shape) - 2
        for strange in ("", STRANGE[3]):
            facts = {"strange": strange} if strange else {}
            row("relu as a | @input | cat @a @input", lambda x, p: torch.cat([x, F.relu(x), x], 1), shape, **facts)
            row("crop 0:-1 channels=2:-1",
                lambda x, p: x[(slice(None), slice(2, -1)) + (slice(0, -1),) * (x.dim() - 2)], shape, **facts)
            row("upsample 2 nearest", lambda x, p: F.interpolate(x, scale_factor=2, mode="nearest"), shape, **facts)
            for corners in (False, True):
                row("upsample 2 linear" + " corners" * corners,
                    lambda x, p, c=corners: F.interpolate(x, scale_factor=2, mode=modes[x.dim() - 2], align_corners=c),
                    shape, **facts)
            for mode in MODES:
                if rank == 3 and mode == "reflect":
                    continue  # an axis of 2
                row(f"pad 1 e0 {mode}", lambda x, p, m=mode: pad(x, (1,) * (x.dim() - 2), (0,) * (x.dim() - 2), m), shape,
                    **facts)
            row("glu channel", lambda x, p: F.glu(x, 1), shape, **facts)
        row("upsample 3 linear corners", lambda x, p: F.interpolate(x, scale_factor=3, mode=modes[x.dim() - 2],
                                                                     align_corners=True), shape)
    image = (2, 8, 4, 6)
    row("pad 1x2 e3x0 value=-2.5", lambda x, p: pad(x, (1, 2), (3, 0), value=-2.5), image)
    row("pad 3x5 e2x1 reflect", lambda x, p: pad(x, (3, 5), (2, 1), "reflect"), image)
    row("pad 4x6 e0x2 circular", lambda x, p: pad(x, (4, 6), (0, 2), "circular"), image)
    row("crop :x-3:", lambda x, p: x[..., -3:], image)
    row("crop channels=4:", lambda x, p: x[:, 4:], image)
    row("upsample 1x3 nearest", lambda x, p: F.interpolate(x, scale_factor=(1, 3)), image)
    row("upsample 3x2 linear", lambda x, p: F.interpolate(x, scale_factor=(3, 2), mode="bilinear"), image)
    row("pixel_shuffle 2", lambda x, p: F.pixel_shuffle(x, 2), image)
    row("pixel_unshuffle 2", lambda x, p: F.pixel_unshuffle(x, 2), image)
    row("pixel_shuffle 2", lambda x, p: x.reshape(2, 4, 2, 6).movedim(2, 3).reshape(2, 4, 12), (2, 8, 6))
    row("pixel_unshuffle 2", lambda x, p: x.reshape(2, 8, 3, 2).movedim(3, 2).reshape(2, 16, 3), (2, 8, 6))
    row("pixel_shuffle 2", lambda x, p: x.reshape(1, 1, 2, 2, 2, 2, 4, 6).permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(1, 1, 4, 8, 12),
        (1, 8, 2, 4, 6))
    row("upsample 2 nearest | conv kernel bias p1", lambda x, p: plain_conv(
        F.interpolate(x, scale_factor=2), p["kernel"], p["bias"], padding=1), (2, 3, 4, 5), {"kernel": (4, 3, 3, 3), "bias": (4,)})
    row("conv kernel bias p1 | pixel_shuffle 2 | relu", lambda x, p: F.relu(F.pixel_shuffle(
        plain_conv(x, p["kernel"], p["bias"], padding=1), 2)), (2, 3, 4, 5), {"kernel": (8, 3, 3, 3), "bias": (8,)})
    row("conv_transpose kernel s2 | crop 1:-1 | tanh", lambda x, p: torch.tanh(conv(x, p["kernel"], stride=2)[..., 1:-1, 1:-1]),
        (2, 3, 4, 5), {"kernel": (3, 4, 3, 3)})


def gates(row):
    """snake, powers, and norms with given statistics or without a mean."""
    def snake(x, alpha, beta=None, eps=0.0):
        beta = alpha if beta is None else beta
        return x + torch.sin(per_channel(alpha, x) * x) ** 2 / (per_channel(beta, x) + eps)

    def rms(x, w=None, eps=1e-5):
        return F.rms_norm(x.movedim(1, -1), x.shape[1:2], w, eps).movedim(-1, 1)

    for shape in (X1, X2, X3):
        c = shape[1]
        vector = {"a": (c,), "b": (c,)}
        row("snake a", lambda x, p: snake(x, p["a"]), shape, {"a": (c,)})
        row("snake a b eps=1e-09", lambda x, p: snake(x, p["a"], p["b"], 1e-9), shape, vector)
        row("rms_norm channel a", lambda x, p: rms(x, p["a"]), shape, {"a": (c,)})
        row("rms_norm last", lambda x, p: F.rms_norm(x, x.shape[-1:], None, 1e-5), shape)
        row("batch_norm_given a b eps=5", lambda x, p: F.batch_norm(x, p["a"], p["b"], eps=5), shape, vector)
        row("batch_norm_given a b w c eps=4.5", lambda x, p: F.batch_norm(x, p["a"], p["b"], p["w"], p["c"], eps=4.5),
            shape, vector | {"w": (c,), "c": (c,)})
    row("snake a", lambda x, p: snake(x, p["a"]), X2, {"a": (3,)}, strange=STRANGE[3])
    row("batch_norm_given a b eps=6", lambda x, p: F.batch_norm(x, p["a"], p["b"], eps=6), X2,
        {"a": (3,), "b": (3,)}, strange=STRANGE[3])
    row("rms_norm channel", lambda x, p: rms(x), X2, strange="inf")
    for exponent in ("2", "3", "-1", "0", "-2"):
        row(f"pow {exponent}", lambda x, p, e=float(exponent): x ** e, X2, strange=STRANGE[3])
    for exponent in ("0.5", "1.7", "-0.25"):
        row(f"abs | pow {exponent}", lambda x, p, e=float(exponent): x.abs() ** e, X2)
        row(f"pow {exponent}", lambda x, p, e=float(exponent): x ** e, X1, strange=STRANGE[3])
