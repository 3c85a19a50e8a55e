"""Plans: a pipeline compiled for its shapes, and called like a function."""

from __future__ import annotations

import sys
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

import numpy

from . import _core
from ._core import Weights
from ._picture import Explanation

_DTYPES = {"f32": "f32", "float32": "f32", "f16": "f16", "float16": "f16", "half": "f16",
           "bf16": "bf16", "bfloat16": "bf16", "f64": "f64", "float64": "f64"}
_RESERVED = ("out", "outs", "weights", "stream", "dtype", "engine", "precision", "algorithm", "threads", "settings")


class Cost(NamedTuple):
    """Operations and bytes of one run; `unfused` is the pipeline as written, one pass over memory an operation."""

    flops: float
    unfused_flops: float
    bytes: float
    unfused_bytes: float
    passes: int
    unfused_passes: int


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).rpartition(".")[2]  # torch.float16 is float16
    if name not in _DTYPES:
        try:
            name = numpy.dtype(dtype).name
        except TypeError:
            pass
    if name not in _DTYPES:
        raise TypeError(f"dtype is {dtype!r}; it must be float32, float16, bfloat16 or float64")
    return _DTYPES[name]


def _setting(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (tuple, list)):
        try:
            return "x".join(str(int(v)) for v in value)
        except OverflowError:
            raise ValueError(f"setting {value!r:.200} holds a number that is not finite") from None
    return repr(float(value)) if isinstance(value, float) else str(value)


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(v, (int, numpy.integer)) for v in value)


def _like(array: Any, shape: tuple[int, ...], wide: bool = False) -> tuple[Any, bool]:
    """An array of `shape` of the same kind, of float32 if `wide`; True if it may be written to although its library
    says it is constant."""
    if isinstance(array, numpy.ndarray):
        return numpy.empty(shape, numpy.float32 if wide else array.dtype), False
    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        return array.new_empty(shape, dtype=sys.modules["torch"].float32 if wide else None), False
    if library == "cupy":
        return sys.modules["cupy"].empty(shape, numpy.float32 if wide else array.dtype), False
    if library in ("jax", "jaxlib"):  # nobody else has seen it yet, so it may still be written
        jax = sys.modules["jax"]
        fresh = jax.device_put(jax.numpy.empty(shape, numpy.float32 if wide else array.dtype), array.device)
        return fresh.block_until_ready(), True
    if hasattr(array, "__array_namespace__"):
        namespace = array.__array_namespace__()
        dtype = namespace.float32 if wide else array.dtype
        return namespace.empty(shape, dtype=dtype, device=array.device), False
    _core.describe(array, "input")  # says what is wrong, if it is no array
    return numpy.empty(shape, numpy.float32 if wide else numpy.asarray(memoryview(array)).dtype), False


def _stream_of(array: Any) -> Optional[int]:
    """The stream that CuPy works on; torch tells it itself, JAX is synchronised with the default stream."""
    if type(array).__module__.partition(".")[0] == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr or None
    return None


def _refuse_gradients(tensors: Mapping[str, Any]) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if getattr(tensor, "requires_grad", False):
            raise ValueError(f"{name} requires a gradient, which a plan does not have: call it under "
                             "torch.no_grad(), or use upweave.torch.run")


class Plan:
    """A pipeline compiled for its shapes, element type and engine. Any number of threads may call one at once."""

    __slots__ = ("_core", "_extra", "dtype", "engine", "inputs", "shape", "text")

    def __init__(self, core: _core.Plan, text: str, dtype: str, engine: str) -> None:
        self._core = core
        self.text = text
        self.dtype = dtype
        self.engine = engine
        self.inputs = core.inputs
        self.shape = core.output_shape
        self._extra = core.extra_outputs

    def __call__(self, *inputs: Any, out: Any = None, outs: Optional[Mapping[str, Any]] = None,
                 weights: Optional[Weights] = None, stream: Optional[int] = None, **tensors: Any) -> Any:
        """Runs the plan on its inputs, in the text's order or by name, and its parameters by name. Returns an array of
        the first input's kind, or `out`, written. Every tensor is read where it is: dense, row-major, of the plan's
        dtype. `weights` comes from `pack`, in place of the parameters. A plan whose text has `out NAME` returns the
        result and a dict of these extra outputs, those in `outs` written."""
        if "torch" in sys.modules:
            _refuse_gradients({**dict(zip(self.inputs, inputs)), "out": out, **(outs or {}), **tensors})
        arrays, parameters = self._split(inputs, tensors)
        input, fresh = arrays[0], False
        if out is None:
            out, fresh = _like(input, self.shape)
        for name, array in {"out": None if fresh else out, **(outs or {})}.items():
            if type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):  # DLPack does not say so for it
                raise ValueError(f"{name} is read-only: a JAX array never changes")
        if weights is not None:
            if parameters:
                raise TypeError(f"{next(iter(parameters))} is given beside weights, which hold it already")
            if not isinstance(weights, Weights):
                raise TypeError(f"weights is a {type(weights).__name__}; it must come from pack")
            parameters = weights  # type: ignore[assignment]
        if stream is None:
            stream = _stream_of(input)
        given = input if len(arrays) == 1 else arrays
        if not self._extra and not outs:
            self._core.run(given, parameters, out, fresh, stream)
            return out
        extra = dict(outs or {})
        for name, (dtype, shape) in self._extra.items():
            if name not in extra:
                extra[name] = _like(input, shape, dtype != self.dtype)[0]
        self._core.run(given, parameters, out, fresh, stream, extra)
        return out, extra

    def _split(self, inputs: tuple[Any, ...], tensors: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs in their order, and what is left of `tensors`: the parameters."""
        if len(inputs) > len(self.inputs):
            raise TypeError(f"{len(inputs)} inputs are given; the pipeline has {', '.join(self.inputs)}")
        parameters, arrays = dict(tensors), list(inputs)
        for i, name in enumerate(self.inputs):
            if i < len(inputs) and name in parameters:
                raise TypeError(f"{name} is given twice")
            if i >= len(inputs) and name not in parameters:
                raise TypeError(f"{name} is missing; the pipeline's inputs are {', '.join(self.inputs)}")
            if i >= len(inputs):
                arrays.append(parameters.pop(name))
        return tuple(arrays), parameters

    def pack(self, *, stream: Optional[int] = None, **parameters: Any) -> Weights:
        """The parameters in the form that the engine wants, read now and never again: for weights that stay."""
        return self._core.pack(parameters, stream)

    def explain(self) -> Explanation:
        """The plan told to a person: text where it is printed, a picture of the passes in a notebook."""
        return Explanation(self._core.explain(), self._core.explain_json())

    def verify(self, *inputs: Any, **tensors: Any) -> float:
        """Runs the plan on host arrays and returns its worst error as a fraction of the derived bound, both against
        the float64 reference: at most 1 is right."""
        result = self(*inputs, **tensors)
        output, extra = result if self._extra else (result, {})
        return self._core.judge({**dict(zip(self.inputs, inputs)), **tensors}, output, extra)

    @property
    def workspace_bytes(self) -> int:
        """What a call takes beyond inputs, outputs and weights packed before it; enough for one that packs them, too."""
        return self._core.workspace_bytes

    @property
    def predicted_seconds(self) -> float:
        """What one call should take on the plan's engine and this machine, with weights that are packed already."""
        return self._core.predicted_seconds

    @property
    def cost(self) -> Cost:
        """Operations and bytes of one call, and of the pipeline as written."""
        return Cost(*self._core.cost)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor that the plan reads."""
        return self._core.shapes

    @property
    def extra_outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of what the text gives out beside the result, by `out NAME`."""
        return dict(self._extra)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in self.shapes.items())
        return f"<upweave.Plan {self.text!r}: {shapes} -> {'x'.join(map(str, self.shape))}, {self.dtype}, {self.engine}>"

    def _repr_svg_(self) -> str:
        return self.explain()._repr_svg_()


def compile(text: str, /, *, input: Any = None, dtype: Any = None, engine: Optional[str] = None, precision: str = "strict",
            algorithm: str = "auto", threads: int = 0,
            settings: Optional[Mapping[str, Union[str, int, float, Sequence[int]]]] = None, **tensors: Any) -> Plan:
    """Compiles a pipeline for the shapes of its tensors.

    text       stages separated by `|` (see `vocabulary`), or the slug of a pipeline that comes along (see `catalog`)
    input      an array, or its shape N C [[D] H] W; so for every other tensor, by its name in the text. A text that
               begins with `input x skip` has these two inputs in its place
    dtype      the elements' type where only shapes are given; float32 if nothing says otherwise
    engine     "cpu", "cuda" or "reference"; if None, where the arrays are
    precision  "strict": as accurate as float32 arithmetic; "fast": as TF32
    algorithm  "direct" forbids transforms that trade additions for multiplications
    threads    of the CPU engine; 0: all that the machine offers
    settings   values for the text's $names: {"stride": (2, 2, 2)}
    """
    if not isinstance(text, str):
        raise TypeError(f"text is a {type(text).__name__}; it must be a str")
    shapes, dtypes, devices = {}, {}, {}
    if input is not None:
        tensors = {"input": input, **tensors}
    for name, value in tensors.items():
        if _is_shape(value):
            shapes[name] = tuple(int(v) for v in value)
        else:
            dtypes[name], shapes[name], devices[name] = _core.describe(value, name)
    element = _dtype_name(dtype) if dtype is not None else next(iter(dtypes.values()), "f32")
    for name, found in dtypes.items():
        if found != element:
            other = "dtype" if dtype is not None else next(iter(dtypes))
            raise TypeError(f"{name} has dtype {found}, but {other} is {element}; all tensors have one dtype")
    place = next(iter(devices.values()), "cpu")
    for name, found in devices.items():
        if found != place:
            raise ValueError(f"{name} is on {found}, but {next(iter(devices))} is on {place}")
    if engine is None:
        engine = "cuda" if place.startswith("cuda") else "reference" if element == "f64" else "cpu"
    named = any(entry[0] == text for entry in _core.catalog()) if "|" not in text and " " not in text else False
    words = {name: _setting(value) for name, value in (settings or {}).items()}
    device = int(place.partition(":")[2]) if engine == "cuda" and place.startswith("cuda:") else -1
    core = _core.Plan(text, named, words, shapes, element, engine, precision, algorithm, threads, device)
    for name in _RESERVED:
        if name in core.shapes:
            raise ValueError(f"a parameter cannot be called {name} here: calls use that word")
    return Plan(core, text, element, engine)
