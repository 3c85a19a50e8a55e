"""Plans from Python: what goes in, what comes out, and what each mistake is called."""

import array
import inspect
import pathlib
import re

import numpy as np
import pytest

import upweave

TEXT = "conv_transpose kernel bias s2 p1 | layer_norm channel | gelu | mul 1.5"
SHAPE = (2, 5, 3, 4, 6)


@pytest.fixture
def tensors(random):
    return {"input": random.standard_normal(SHAPE, np.float32),
            "kernel": random.standard_normal((5, 7, 4, 3, 4), np.float32),
            "bias": random.standard_normal(7, np.float32)}


@pytest.fixture
def plan(tensors, engine):
    return upweave.compile(TEXT, engine=engine, **tensors)


def test_answer_is_within_its_bound(plan, tensors):
    y = plan(**tensors)
    assert type(y) is np.ndarray and y.dtype == np.float32 and y.shape == plan.shape == (2, 7, 6, 7, 12)
    assert 0 < plan.verify(**tensors) <= 1


def test_verify_sees_a_wrong_answer(tensors, engine):
    plan = upweave.compile(TEXT, engine=engine, **tensors)
    core = plan._core

    class Wrong:
        run = staticmethod(lambda x, p, out, *rest: (core.run(x, p, out, *rest), out.__imul__(1.001)))
        judge = core.judge

    wrong = upweave.Plan(core, TEXT, "f32", engine)
    wrong._core = Wrong
    assert wrong.verify(**tensors) > 1


def test_shapes_alone(plan, tensors, engine):
    shapes = {name: t.shape for name, t in tensors.items()}
    again = upweave.compile(TEXT, engine=engine, dtype=np.float32, **shapes)
    assert (again(**tensors) == plan(**tensors)).all()
    assert upweave.compile(TEXT, engine=engine, **shapes).dtype == "f32"


def test_out_is_written_and_returned(plan, tensors):
    out = np.full(plan.shape, np.nan, np.float32)
    assert plan(out=out, **tensors) is out
    assert (out == plan(**tensors)).all()


def test_weights_are_packed_once(plan, tensors):
    weights = plan.pack(kernel=tensors["kernel"], bias=tensors["bias"])
    before = plan(**tensors)
    tensors["kernel"][:] = 0
    assert (plan(tensors["input"], weights=weights) == before).all()
    with pytest.raises(TypeError, match="bias is given beside weights"):
        plan(tensors["input"], weights=weights, bias=tensors["bias"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_element_types(dtype, tensors, engine):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    cast = {name: t.astype(dtype) for name, t in tensors.items()}
    plan = upweave.compile(TEXT, engine="reference" if dtype == "float64" else engine, **cast)
    assert plan(**cast).dtype == np.dtype(dtype)
    assert plan.verify(**cast) <= 1


def test_buffers_go_in(engine):
    x, k = array.array("f", range(8)), array.array("f", [1, 2])
    with pytest.raises(ValueError):  # one axis is no N C W
        upweave.compile("conv_transpose kernel", engine=engine, input=x, kernel=k)
    x3, k3 = (memoryview(b).cast("B").cast("f", (1, 1, len(b))) for b in (x, k))
    plan = upweave.compile("conv_transpose kernel s2", engine=engine, input=x3, kernel=k3)
    y = plan(x3, kernel=k3)
    assert type(y) is np.ndarray and y.ravel().tolist() == [v * w for v in range(8) for w in (1, 2)]


def test_no_copy_is_made(engine):
    """Memory that changes between calls is seen, and the result lies in the memory that was given."""
    x, k = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 1), np.float32)
    plan = upweave.compile("conv_transpose kernel", engine=engine, input=x, kernel=k)
    x[:] = 5
    storage = np.zeros(6, np.float32)
    plan(x, kernel=k, out=storage[3:].reshape(1, 1, 3))
    assert storage.tolist() == [0, 0, 0, 5, 5, 5]


def test_jax_arrays(tensors, engine, plan):
    jax = pytest.importorskip("jax")
    cast = {name: jax.numpy.asarray(t) for name, t in tensors.items()}
    y = plan(**cast)
    assert isinstance(y, jax.Array) and (np.asarray(y) == plan(**tensors)).all()
    with pytest.raises(ValueError, match="out is read-only"):
        plan(**cast, out=y)
    short = {name: t.astype(jax.numpy.bfloat16) for name, t in cast.items()}
    y = upweave.compile(TEXT, engine=engine, **short)(**short)
    assert isinstance(y, jax.Array) and y.dtype == jax.numpy.bfloat16


def test_an_array_library_without_a_name(tensors, plan):
    """DLPack alone is enough on the way in; the array API's namespace on the way out."""

    class Space:
        @staticmethod
        def empty(shape, dtype, device):
            return Stranger(np.empty(shape, dtype))

    class Stranger:
        dtype, device = np.float32, "cpu"

        def __init__(self, a):
            self.a = a

        def __dlpack__(self):  # no max_version: a library from before DLPack 1.0
            return self.a.__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

        def __array_namespace__(self):
            return Space

    y = plan(**{name: Stranger(t) for name, t in tensors.items()})
    assert type(y) is Stranger and (y.a == plan(**tensors)).all()


def test_an_empty_batch(tensors, engine):
    tensors["input"] = tensors["input"][:0]
    assert upweave.compile(TEXT, engine=engine, **tensors)(**tensors).shape == (0, 7, 6, 7, 12)


# --- What a plan says of itself ---


def test_explanation(plan):
    told = plan.explain()
    assert "layer_norm" in told and repr(told) == str(told)
    svg = told._repr_svg_()
    assert svg.startswith("<svg") and svg.endswith("</svg>") and "GFLOP" in svg and " MB" in svg
    assert svg.count("pass ") == plan.cost.passes == len(told.facts["passes"])
    import xml.dom.minidom

    xml.dom.minidom.parseString(svg)
    assert plan._repr_svg_() == svg and svg in told._repr_html_()


def test_cost_and_memory(plan):
    assert plan.cost.passes < plan.cost.unfused_passes and plan.cost.bytes < plan.cost.unfused_bytes
    assert plan.workspace_bytes >= 0 and plan.shapes["kernel"] == (5, 7, 4, 3, 4)
    assert "5x7x4x3x4" in repr(plan)


def test_lists():
    names = {operation.name for operation in upweave.vocabulary()}
    assert {"conv_transpose", "softmax", "mish", "group_norm"} <= names and "normalize" not in names
    slugs = {entry.slug for entry in upweave.catalog()}
    assert len(slugs) >= 35 and "conv-transpose3d-max-max-sum" in slugs


def test_settings(tensors, engine):
    y = upweave.compile("conv_transpose kernel s$stride", engine=engine, settings={"stride": (2, 1, 3)},
                        input=tensors["input"], kernel=tensors["kernel"])
    assert y.shape == (2, 7, 8, 6, 19)
    with pytest.raises(ValueError, match="stride"):
        upweave.compile("conv_transpose kernel s$stride", engine=engine, input=SHAPE, kernel=(5, 7, 4, 3, 4))


# --- Five functions ---


def test_five_functions(random, engine):
    x3, k3 = random.standard_normal((2, 3, 6, 6, 6), np.float32), random.standard_normal((3, 8, 3, 3, 3), np.float32)
    x2, k2 = random.standard_normal((2, 3, 6, 6), np.float32), random.standard_normal((3, 8, 3, 3), np.float32)
    c = random.standard_normal(8, np.float32)
    calls = {
        "conv-transpose3d-sum-layernorm-avgpool-gelu": ((x3, k3), {"stride": 2, "sum_weight": 0.5}),
        "conv-transpose3d-layernorm-gelu-scaling": ((x3, k3), {"padding": (1, 0, 1), "scaling_factor": 2.0}),
        "conv-transpose3d-max-max-sum": ((x3, k3, c), {"stride": 2}),
        "conv-transpose3d-avgpool-clamp-softmax-multiply":
            ((x3, k3, c), {"pool_kernel": 2, "clamp_min": 0.0, "clamp_max": 1.0, "stride": 2, "output_padding": 1}),
        "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": ((x2, k2, c, c, c, c), {"num_groups": 4}),
    }
    for slug, (args, settings) in calls.items():
        function = getattr(upweave, slug.replace("-", "_"))
        names = list(inspect.signature(function).parameters)[:len(args)]
        y = function(*args, engine=engine, **settings)
        defaults = {n: p.default for n, p in inspect.signature(function).parameters.items()
                    if p.default is not inspect.Parameter.empty and n not in ("out", "engine")}
        plan = upweave.compile(slug, engine="reference", settings={**defaults, **settings}, **dict(zip(names, args)))
        np.testing.assert_allclose(y, plan(**dict(zip(names, args))), rtol=1e-4, atol=1e-5)
        assert all(name in function.__doc__ for name in names)
    with pytest.raises(TypeError, match="scaling_factor"):
        upweave.conv_transpose3d_layernorm_gelu_scaling(x3, k3)
    with pytest.raises(ValueError, match="stride_d is 0"):
        upweave.conv_transpose3d_max_max_sum(x3, k3, c, stride=0, engine=engine)


def test_stub_is_current():
    documents = pathlib.Path(upweave.__file__).with_name("_documents.py")
    from upweave._documents import _stub

    assert documents.with_suffix(".pyi").read_text() == _stub()
    assert documents.with_name("py.typed").exists()


# --- Mistakes: an exception with a sentence that names the argument, and nothing written ---


def _read_only(a):
    a.flags.writeable = False
    return a


MISTAKES = {
    "wrong shape": (ValueError, "input has shape 2x5x3x4x7", lambda t, o: t.update(input=np.zeros((2, 5, 3, 4, 7), "f"))),
    "fewer axes": (ValueError, "kernel has shape 5x7", lambda t, o: t.update(kernel=np.zeros((5, 7), "f"))),
    "wrong dtype": (TypeError, "kernel has dtype f64", lambda t, o: t.update(kernel=t["kernel"].astype("d"))),
    "integers": (TypeError, "bias has dtype int32", lambda t, o: t.update(bias=t["bias"].astype("i4"))),
    "byte order": (TypeError, "bias has dtype >f4", lambda t, o: t.update(bias=t["bias"].astype(">f4"))),
    "not an array": (TypeError, "bias is a list", lambda t, o: t.update(bias=[1.0] * 7)),
    "not contiguous": (ValueError, "input .*not contiguous", lambda t, o: t.update(input=t["input"].swapaxes(3, 4).copy().swapaxes(3, 4))),
    "missing": (ValueError, "'bias' is missing", lambda t, o: t.pop("bias")),
    "unknown": (TypeError, "scale is none of the pipeline's", lambda t, o: t.update(scale=t["bias"])),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake, plan, tensors):
    kind, sentence, make = MISTAKES[mistake]
    out = np.full(plan.shape, 42, np.float32)
    make(tensors, out)
    with pytest.raises(kind, match=sentence):
        plan(out=out, **tensors)
    assert (out == 42).all()


def test_mistakes_of_the_output(plan, tensors, engine):
    size = int(np.prod(plan.shape))
    for kind, sentence, out in (
            (ValueError, "out is read-only", _read_only(np.full(plan.shape, 42, np.float32))),
            (ValueError, "out has shape 1", np.full((1,) + plan.shape[1:], 42, np.float32)),
            (TypeError, "out has dtype f16", np.full(plan.shape, 42, np.float16)),
            (ValueError, "out .*not contiguous", np.full(plan.shape[::-1], 42, np.float32).T)):
        with pytest.raises(kind, match=sentence):
            plan(out=out, **tensors)
        assert (out == 42).all()
    memory = np.zeros(size, np.float32)
    memory[:tensors["input"].size] = tensors["input"].ravel()
    before = memory.copy()
    with pytest.raises(ValueError, match="output overlaps input"):
        plan(memory[:tensors["input"].size].reshape(SHAPE), kernel=tensors["kernel"], bias=tensors["bias"],
             out=memory.reshape(plan.shape))
    assert (memory == before).all()


def test_mixed_devices(plan, tensors):
    class Elsewhere:
        """A tensor that says it is on a GPU; nothing of it is ever read."""

        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, stream=None, max_version=None):
            return fake_capsule(2)

    import ctypes

    class DLTensor(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                    ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                    ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                    ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

    kept = []

    def fake_capsule(device):
        shape = (ctypes.c_int64 * 5)(*tensors["kernel"].shape)
        tensor = DLTensor(64, (device, 0), 5, 2, 32, 1, shape, None, 0, None, None)
        kept.extend((shape, tensor))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(tensor), b"dltensor", None)

    out = np.full(plan.shape, 42, np.float32)
    with pytest.raises(ValueError, match="kernel is on cuda:0; the plan runs on cpu"):
        plan(tensors["input"], kernel=Elsewhere(), bias=tensors["bias"], out=out)
    with pytest.raises(ValueError, match="kernel is on cuda:0, but input is on cpu"):
        upweave.compile(TEXT, input=tensors["input"], kernel=Elsewhere(), bias=tensors["bias"])
    assert (out == 42).all()


def test_mistakes_of_compile(engine):
    for kind, sentence, text, more in (
            (ValueError, "column 1: no operation is called 'convo'", "convo kernel", {}),
            (ValueError, "stride_w is 0", "conv_transpose kernel s0", {}),
            (ValueError, "engine is 'tpu'", "conv_transpose kernel", {"engine": "tpu"}),
            (ValueError, "precision is 'loose'", "conv_transpose kernel", {"precision": "loose"}),
            (ValueError, "threads is -1", "conv_transpose kernel", {"threads": -1}),
            (TypeError, "dtype is 'int8'", "conv_transpose kernel", {"dtype": "int8"}),
            (NotImplementedError, "reference engine only", "conv_transpose kernel", {"dtype": "float64", "engine": "cpu"}),
            (ValueError, "'out' cannot be a parameter's name", "conv_transpose kernel | add out", {}),
            (ValueError, "cannot be called outs", "conv_transpose kernel | add outs", {})):
        with pytest.raises(kind, match=re.escape(sentence)):
            upweave.compile(text, **{"engine": engine, "input": (1, 2, 3), "kernel": (2, 3, 2), **more})
    with pytest.raises(TypeError, match="text is a int"):
        upweave.compile(3, input=(1, 2, 3))
    with pytest.raises(TypeError, match="kernel has dtype f64, but input is f32"):
        upweave.compile("conv_transpose kernel", input=np.zeros((1, 2, 3), "f"), kernel=np.zeros((2, 3, 2)))


def test_several_inputs(engine):
    random = np.random.default_rng(3)
    x, s, k = (random.standard_normal(shape, np.float32) for shape in ((2, 5, 4, 6), (2, 7, 8, 12), (5, 7, 4, 4)))
    p = upweave.compile("input x skip | conv_transpose kernel s2 p1 | add @skip | relu", engine=engine, x=x, skip=s, kernel=k)
    assert p.inputs == ("x", "skip") and p.shapes == {"x": x.shape, "skip": s.shape, "kernel": k.shape}
    y = p(x, s, kernel=k)
    assert p.verify(x, s, kernel=k) <= 1 and p.verify(skip=s, x=x, kernel=k) <= 1
    q = upweave.compile("conv_transpose kernel s2 p1 | add skip | relu", engine=engine, input=x, skip=s, kernel=k)
    assert q.inputs == ("input",) and (q(x, skip=s, kernel=k) == y).all()
    weights = p.pack(kernel=k)
    for again in (p(x, skip=s, kernel=k), p(skip=s, kernel=k, x=x), p(x, s, weights=weights), p(x, skip=s, weights=weights)):
        assert (again == y).all()
    for kind, sentence, call in (
            (TypeError, "skip is missing; the pipeline's inputs are x, skip", lambda: p(x, kernel=k)),
            (TypeError, "x is given twice", lambda: p(x, s, x=x, kernel=k)),
            (TypeError, "3 inputs are given; the pipeline has x, skip", lambda: p(x, s, k)),
            (TypeError, "kernel is given beside weights", lambda: p(x, s, weights=weights, kernel=k)),
            (ValueError, "skip has shape 2x7x8x11", lambda: p(x, np.ascontiguousarray(s[..., 1:]), kernel=k)),
            (ValueError, "'skip' is none of the pipeline's", lambda: p.pack(kernel=k, skip=s)),
            (TypeError, "input is none of the pipeline's tensors", lambda: p(x, s, kernel=k, input=x)),
            (ValueError, "the shape of skip is missing", lambda: upweave.compile("input x skip | add @skip", x=x)),
            (ValueError, "the shape of the input is missing", lambda: upweave.compile("relu"))):
        with pytest.raises(kind, match=re.escape(sentence)):
            call()


def test_weights_of_another_plan(plan, tensors, engine):
    other = upweave.compile("conv_transpose kernel", engine=engine, input=SHAPE, kernel=(5, 7, 4, 3, 4))
    with pytest.raises(ValueError, match="another plan"):
        plan(tensors["input"], weights=other.pack(kernel=tensors["kernel"]))
    with pytest.raises(TypeError, match="weights is a dict; it must come from pack"):
        plan(tensors["input"], weights=tensors)
