"""What PyTorch would take: seconds that Inductor, with cuDNN or oneDNN for convolutions, needs for some nodes of a
functional ATen graph. A region is worth taking where ours takes less (`pays`).

A convolution runs at a rate that depends on its element type, its channels and its layout. Everything else is passes over
memory: pointwise operations join whoever reads them; a reduction, norm, softmax or pool reads what it is made of; what leaves
the region is written. Constants are fitted to KernelBench's 30 chains on an H200 (TF32, contiguous; within a third for 25 of
them) and to single convolutions and chains on a Zen 4, one thread.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any, Iterable, Optional, Sequence

import torch
import torch.fx

from .. import _core

# Ours must be predicted to be this much faster: predictions err, and a region that does not pay is worse than none.
MARGIN = {"cuda": 1.2, "cpu": 1.3}


def pays(ours: float, theirs: float, device: torch.device) -> bool:
    """Whether a region predicted to take `ours` seconds is worth taking where Inductor is to take `theirs`."""
    return ours * MARGIN.get(device.type, math.inf) < theirs


@dataclass(frozen=True)
class _Machine:
    """Rates as Inductor's kernels reach them."""

    memory: float  # bytes a second
    kernel: float  # seconds to start one
    call: float  # seconds around a graph

    def convolution(self, conv: "_Convolution", tf32: bool) -> float:
        raise NotImplementedError

    def write(self, size: float) -> float:
        return size / self.memory

    def compute(self, name: str, elements: float) -> float:
        """What an operation takes beyond moving its values."""
        return 0.0


@dataclass(frozen=True)
class _Convolution:
    flops: float
    rank: int  # spatial axes
    c_in: int  # of a group
    c_out: int
    groups: int
    read: float  # bytes of the input
    written: float  # bytes of the output
    outputs: float  # elements of it
    weights: float  # bytes
    itemsize: int
    channels_last: bool
    strided: bool
    transposed: bool
    reads_one: bool = False  # a convolution's value, and one reads its own: between two Inductor keeps their layout
    read_by_one: bool = False


class _Gpu(_Machine):
    """An H200; others by their multiprocessors and clocks."""

    TENSOR_TF32 = 280e12  # of the transposed convolution, which is cuDNN's backward one, at 32 channels and more
    TENSOR_16 = 450e12
    FLOAT32 = {1: 20e12, 2: 60e12, 3: 7e12}  # without TF32; two axes have Winograd's transforms
    UNALIGNED = 14e-12  # seconds an output where channels fill no vector: no tensor cores serve them
    GROUPED = 6e-12  # the same of each product of a grouped one

    def convolution(self, conv: _Convolution, tf32: bool) -> float:
        rate = self.TENSOR_16 if conv.itemsize == 2 else self.TENSOR_TF32 if tf32 else self.FLOAT32[conv.rank]
        scale = self.memory / 3.7e12
        # Fewer channels than a tile has cost as many.
        flops = conv.flops * max(1.0, 32 / conv.c_in) * max(1.0, 64 / conv.c_out)
        seconds = flops / rate / scale
        if conv.groups > 1:
            seconds = conv.flops / 2 * self.GROUPED / scale
        elif conv.c_in % 4 or conv.c_out % 4:
            seconds = max(seconds, conv.outputs * self.UNALIGNED / scale)
            return seconds + (conv.read + conv.written) / self.memory + self.kernel
        moved = conv.read + conv.written
        if not conv.channels_last:  # converted on the way in, and with three axes on the way out
            moved += 2 * conv.read + (2 * conv.written if conv.rank == 3 else 0)
        return seconds + moved / self.memory + 3 * self.kernel


class _Cpu(_Machine):
    """Some threads; their FMA peak is measured."""

    DIRECT = 0.82  # of the peak, by oneDNN's direct kernels
    LEAST_CHANNELS = 16  # a vector's: fewer cost as many
    VOLUME_CHANNELS = 96  # with three axes the rate falls with the output's channels below these, to a third
    ONE_CHANNEL = 0.2  # of the peak with three axes and one output channel, by a product of matrices
    GROUPED, DEPTHWISE = 0.4, 0.02  # of the peak, of groups of eight channels and more, and of fewer
    WEIGHT = 0.2e-9  # seconds a byte and thread: weights are put into oneDNN's order in every call
    FAR_WEIGHT, FAR = 0.7e-9, 8 << 20  # the same of so many that they come from memory
    LARGE = 48 << 20  # bytes of a result that each call gets from the system, page by page
    FRESH = 0.7e-9  # seconds a byte and thread of it
    PLANES = 3e-9  # the same of a contiguous one with three axes from 12 MiB on, which is reordered without vectors

    ORDINARY_FAR, ORDINARY_PLANES = 0.3e-9, 1.5e-9  # the same two of ordinary convolutions

    def __init__(self, threads: int) -> None:
        super().__init__(memory=min(100e9, 14e9 * threads), kernel=5e-6, call=15e-6)
        object.__setattr__(self, "peak", 32 * _core.vectors_per_second() * threads)
        object.__setattr__(self, "threads", threads)

    peak: float
    threads: int

    def convolution(self, conv: _Convolution, tf32: bool) -> float:
        flops, share = conv.flops * max(1.0, self.LEAST_CHANNELS / conv.c_out), self.DIRECT
        if conv.groups > 1:
            flops, share = conv.flops, self.GROUPED if min(conv.c_in, conv.c_out) >= 8 else self.DEPTHWISE
        elif not conv.transposed:
            flops = conv.flops * max(1.0, self.LEAST_CHANNELS / conv.c_out)
        elif conv.rank == 3 and conv.c_out == 1:
            flops, share = conv.flops, self.ONE_CHANNEL
        elif conv.rank == 3 and conv.strided and conv.c_out >= self.LEAST_CHANNELS:
            share *= min(1.0, max(1 / 3, conv.c_out / self.VOLUME_CHANNELS))
            flops *= max(1.0, self.LEAST_CHANNELS / conv.c_in)
        far, planes = (self.FAR_WEIGHT, self.PLANES) if conv.transposed else (self.ORDINARY_FAR, self.ORDINARY_PLANES)
        weight = far if conv.weights > self.FAR else self.WEIGHT
        seconds = flops / (self.peak * share) + conv.weights * weight / self.threads
        if not conv.channels_last and conv.rank > 1:  # converted on the way in and out
            seconds += 0.0 if conv.reads_one else 2 * conv.read / self.memory
            if conv.read_by_one:
                pass
            elif conv.rank == 2:
                seconds += 2 * conv.written / self.memory
            elif conv.written >= self.LARGE / 4:
                seconds += conv.written * planes / self.threads
        return seconds + self.write(conv.written) / 2 + self.kernel

    def write(self, size: float) -> float:
        return size / self.memory + (size * self.FRESH / self.threads if size >= self.LARGE else 0)

    def compute(self, name: str, elements: float) -> float:
        return elements * self.SLOW.get(name, 0.0) / self.threads

    # Seconds an element and thread of what takes longer than to move it.
    SLOW = {"mish": 5e-9, "gelu": 0.5e-9, "tanh": 0.5e-9, "sigmoid": 0.5e-9, "silu": 0.6e-9, "exp": 0.5e-9, "erf": 0.6e-9,
            "_softmax": 1e-9, "log1p": 1e-9, "pow": 1e-9, "softplus": 2e-9}


def moved(values: Iterable[torch.Tensor], device: torch.device) -> float:
    """Seconds that it takes to read these tensors and write as much."""
    machine = _machine(device)
    return sum(2 * math.prod(map(hint, v.shape)) * v.dtype.itemsize / machine.memory + machine.kernel for v in values)


def copies(values: Iterable[torch.Tensor], device: torch.device) -> float:
    """Seconds that it takes to bring these tensors of a region's borders into the engine's row-major order, or back."""
    return moved([v for v in values if not _row_major(v)], device)


def turned(border: Sequence[torch.fx.Node], inside: Sequence[torch.fx.Node], device: torch.device) -> float:
    """Seconds that it takes PyTorch to bring values at a region's border into the layout of its own convolutions there."""
    convolutions = [n for n in border[0].graph.nodes if n.op == "call_function" and _name(n) == "convolution"]
    own = set(inside)
    if device.type != "cpu" or all(n in own for n in convolutions):
        return 0.0
    behind, before = _neighbours(list(border[0].graph.nodes))
    there = [n for n in border if len(_shape(n)) > 3 and n in (behind if n is border[0] else before)]
    return moved([v for v in map(_value, there) if v is not None], device)


def _row_major(value: torch.Tensor) -> bool:
    expected = 1
    for extent, stride in reversed([(hint(e), hint(s)) for e, s in zip(value.shape, value.stride())]):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def _machine(device: torch.device) -> _Machine:
    if device.type != "cuda":
        return _Cpu(torch.get_num_threads())
    rate = 3.7e12
    try:  # a GPU that is there, by its own figures; otherwise an H200
        found = torch.cuda.get_device_properties(device)
        rate *= found.multi_processor_count / 132 * getattr(found, "clock_rate", 1.98e6) / 1.98e6
    except Exception:
        pass
    return _Gpu(memory=rate, kernel=4e-6, call=40e-6)


def hint(extent: Any) -> int:
    """A symbolic extent's value as it was seen, without a guard on it."""
    if isinstance(extent, int):
        return extent
    node = getattr(extent, "node", None)
    try:
        seen = node.hint if node is not None and node.has_hint() else None
        return int(seen) if seen is not None else 64
    except Exception:
        return 64


def _value(node: Any) -> Optional[torch.Tensor]:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if isinstance(value, (tuple, list)):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    return value if isinstance(value, torch.Tensor) else None


def _shape(node: Any) -> list[int]:
    value = _value(node)
    return [] if value is None else [hint(extent) for extent in value.shape]


def _bytes(node: Any) -> float:
    value = _value(node)
    return 0.0 if value is None else float(math.prod(_shape(node))) * value.dtype.itemsize


def _channels_last(node: Any) -> bool:
    value = _value(node)
    if value is None or value.dim() < 3:
        return False
    stride = [hint(s) for s in value.stride()]
    shape = _shape(node)
    return shape[1] > 1 and stride[1] == 1 and math.prod(shape[2:]) > 1


_NAMES_OF_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_group_norm",
                   "native_layer_norm", "_fused_rms_norm", "batch_norm_with_update_functional")
_REDUCTIONS = ("mean", "sum", "amax", "amin", "max", "min", "var", "var_mean", "std", "logsumexp", "prod", "argmax", "argmin")
_POOLS = ("avg_pool", "max_pool", "adaptive")
_VIEWS = ("view", "_unsafe_view", "reshape", "permute", "transpose", "squeeze", "unsqueeze", "expand", "detach", "alias", "t",
          "clone", "slice", "select", "as_strided")
_SMALL = 1024  # a reduction's set that one program of Inductor holds while it reads it once


def _name(node: torch.fx.Node) -> str:
    target = node.target
    return target._schema.name.partition("::")[2] if isinstance(target, torch._ops.OpOverload) else str(target)


def _convolution(node: torch.fx.Node) -> Optional[_Convolution]:
    x, weight = node.args[0], node.args[1]
    shape, kernel, out = _shape(x), _shape(weight), _shape(node)
    value = _value(node)
    if len(shape) < 3 or len(kernel) != len(shape) or value is None:
        return None
    transposed, groups = bool(node.args[6]), int(node.args[8])
    positions = math.prod(shape[2:]) if transposed else math.prod(out[2:])
    c_out = out[1] // groups
    flops = 2.0 * shape[0] * positions * shape[1] * c_out * math.prod(kernel[2:])
    return _Convolution(flops, len(shape) - 2, shape[1] // groups, c_out, groups, _bytes(x), _bytes(node),
                        float(math.prod(out)), _bytes(weight), value.dtype.itemsize, _channels_last(x),
                        any(hint(s) > 1 for s in node.args[3]), transposed)


def flops(node: torch.fx.Node) -> float:
    """Floating-point operations of a convolution."""
    conv = _convolution(node)
    return conv.flops if conv else 0.0


class _Passes:
    """Which values lie in memory, and what the others are made of."""

    def __init__(self, nodes: Iterable[torch.fx.Node], machine: _Machine) -> None:
        self.inside = set(nodes)
        self.machine = machine
        self.made_of: dict[torch.fx.Node, frozenset[torch.fx.Node]] = {}  # tensors in memory that a value is computed from
        self.seconds = 0.0

    def sources(self, node: torch.fx.Node) -> frozenset[torch.fx.Node]:
        return self.made_of.get(node, frozenset([node]))

    def operands(self, node: torch.fx.Node) -> frozenset[torch.fx.Node]:
        found = [self.sources(n) for n in node.all_input_nodes]
        return frozenset().union(*found) if found else frozenset()

    def read(self, sources: frozenset[torch.fx.Node]) -> None:
        self.seconds += sum(map(_bytes, sources)) / self.machine.memory + self.machine.kernel

    def store(self, node: torch.fx.Node) -> None:
        """Computes a value from what is in memory and writes it."""
        sources = self.sources(node)
        if sources == frozenset([node]):
            return  # it is there
        self.read(sources)
        self.seconds += self.machine.write(_bytes(node))
        self.made_of[node] = frozenset([node])

    def leaves(self, node: torch.fx.Node) -> bool:
        return not node.users or any(user not in self.inside for user in node.users)


def estimate(nodes: Sequence[torch.fx.Node], device: torch.device, tf32: bool = False) -> float:
    """Seconds that Inductor takes for `nodes`, which are in the graph's order, on `device`. `tf32`: whether PyTorch may
    multiply float32 in TF32 there. Shapes may be symbolic: their hints are used, and no guard is added."""
    machine = _machine(device)
    passes = _Passes(nodes, machine)
    behind, before = _neighbours(list(nodes[0].graph.nodes) if nodes else [])
    for node in nodes:
        if node.op != "call_function":
            continue
        name = _name(node)
        passes.seconds += machine.compute(name, float(math.prod(_shape(node))))
        if node.target is operator.getitem:
            passes.made_of[node] = passes.sources(node.args[0])
        elif name == "convolution":
            conv = _convolution(node)
            if isinstance(node.args[0], torch.fx.Node):
                passes.store(node.args[0])
            if conv:
                conv = replace(conv, reads_one=node in behind, read_by_one=node in before)
                passes.seconds += machine.convolution(conv, tf32)
        elif name in _NAMES_OF_NORMS or name in ("_softmax", "_log_softmax"):
            sources = passes.operands(node)
            if _set_size(node, name) > _SMALL:
                passes.read(sources)  # statistics; applied where the result is read
            passes.made_of[node] = sources
        elif name in _REDUCTIONS:
            passes.read(passes.operands(node))
        elif any(word in name for word in _POOLS):
            for operand in node.all_input_nodes:  # a pool reads its window's values: they are computed once
                if _shape(operand) and len(passes.sources(operand)) > 1 and not _cheap(operand):
                    passes.store(operand)
            passes.made_of[node] = passes.operands(node)
        else:  # pointwise, or a view
            passes.made_of[node] = passes.operands(node)
        if passes.leaves(node) and _value(node) is not None:
            if name not in _VIEWS or len(node.all_input_nodes) != 1 or passes.sources(node) != frozenset([node.args[0]]):
                passes.store(node)
    return passes.seconds + machine.call


def _neighbours(nodes: Sequence[torch.fx.Node]) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
    """Nodes that depend on a convolution of the graph, and nodes that one depends on."""
    convolutions = {n for n in nodes if n.op == "call_function" and _name(n) == "convolution"}
    behind: set[torch.fx.Node] = set()
    before: set[torch.fx.Node] = set()
    for node in nodes:
        if any(n in behind or n in convolutions for n in node.all_input_nodes):
            behind.add(node)
    for node in reversed(nodes):
        if any(n in before or n in convolutions for n in node.users):
            before.add(node)
    return behind, before


def _cheap(node: torch.fx.Node) -> bool:
    return len(node.all_input_nodes) <= 2 and not any(word in _name(node) for word in _NAMES_OF_NORMS)


def _set_size(node: torch.fx.Node, name: str) -> int:
    shape = _shape(node.args[0])
    if name in ("_softmax", "_log_softmax"):
        return shape[int(node.args[1])] if shape else 1
    if name in ("native_layer_norm", "_fused_rms_norm"):
        return math.prod(hint(extent) for extent in node.args[1])
    return _SMALL + 1
