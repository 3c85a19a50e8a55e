"""Device arrays: run where they are, on their library's stream, and come out as they went in."""

import os

import numpy as np
import pytest

import upweave

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX shares the GPU with the others here

TEXT = "conv_transpose kernel s2 p1 | layer_norm channel | gelu"


@pytest.fixture
def tensors():
    torch.manual_seed(5)
    return {"input": torch.randn(2, 16, 6, 8, 8), "kernel": torch.randn(16, 32, 4, 4, 4)}


@pytest.fixture
def expected(tensors):
    host = upweave.compile(TEXT, engine="reference", **tensors)
    return host(**tensors).numpy()


def close(y, expected):
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_torch(tensors, expected):
    there = {name: t.cuda() for name, t in tensors.items()}
    plan = upweave.compile(TEXT, **there)
    assert plan.engine == "cuda"
    y = plan(**there)
    assert y.device == there["input"].device
    close(y.cpu().numpy(), expected)


def test_the_current_stream_is_used(tensors, expected):
    """The input is written late on a stream of its own: only a run on that stream sees it."""
    there = {name: t.cuda() for name, t in tensors.items()}
    plan = upweave.compile(TEXT, **there)
    late = torch.zeros_like(there["input"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(there["input"])
        y = plan(late, kernel=there["kernel"])
    stream.synchronize()
    close(y.cpu().numpy(), expected)


def test_cupy(tensors, expected):
    cupy = pytest.importorskip("cupy")
    there = {name: cupy.asarray(t.numpy()) for name, t in tensors.items()}
    y = upweave.compile(TEXT, **there)(**there)
    assert isinstance(y, cupy.ndarray)
    close(cupy.asnumpy(y), expected)


def test_jax(tensors, expected):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    there = {name: jax.numpy.asarray(t.numpy()) for name, t in tensors.items()}
    y = upweave.compile(TEXT, **there)(**there)
    assert isinstance(y, jax.Array) and y.device == there["input"].device
    close(np.asarray(y), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(tensors, dtype):
    there = {name: t.to(dtype).cuda() for name, t in tensors.items()}
    y = upweave.compile(TEXT, **there)(**there)
    assert y.dtype == dtype
    exact = upweave.compile(TEXT, engine="reference", dtype="f64", **{n: t.shape for n, t in tensors.items()})(
        **{n: t.cpu().double() for n, t in there.items()})
    torch.testing.assert_close(y.cpu().double(), exact, rtol=2e-2, atol=2e-2)


def test_packed_weights_and_out(tensors, expected):
    there = {name: t.cuda() for name, t in tensors.items()}
    plan = upweave.compile(TEXT, **there)
    weights = plan.pack(kernel=there["kernel"])
    there["kernel"].zero_()  # read once, when it was packed
    out = torch.full(plan.shape, float("nan"), device="cuda")
    assert plan(there["input"], weights=weights, out=out) is out
    close(out.cpu().numpy(), expected)


def test_in_a_graph(tensors, expected):
    """What is captured neither synchronises nor allocates outside of the stream's order."""
    there = {name: t.cuda() for name, t in tensors.items()}
    plan = upweave.compile(TEXT, **there)
    weights = plan.pack(kernel=there["kernel"])
    out = torch.empty(plan.shape, device="cuda")
    plan(there["input"], weights=weights, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan(there["input"], weights=weights, out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    close(out.cpu().numpy(), expected)


def test_documents(tensors):
    x, kernel = (t.cuda() for t in tensors.values())
    y = upweave.conv_transpose3d_layernorm_gelu_scaling(x, kernel, stride=2, padding=1, scaling_factor=2.0)
    assert y.device == x.device
    host = upweave.conv_transpose3d_layernorm_gelu_scaling(*tensors.values(), stride=2, padding=1, scaling_factor=2.0)
    close(y.cpu().numpy(), host.numpy())


def test_memory_is_given_back(tensors):
    """Hundreds of calls without a workspace of the caller's: the GPU's free memory stays."""
    there = {name: t.cuda() for name, t in tensors.items()}
    plan = upweave.compile(TEXT, **there)
    out = plan(**there)
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(300):
        plan(**there, out=out)
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] >= before


def test_a_plan_runs_where_its_tensors_are(tensors):
    """Whichever GPU is current; with one GPU, that a plan can be asked for by its number and not beyond."""
    last = torch.cuda.device_count() - 1
    there = {name: t.to(f"cuda:{last}") for name, t in tensors.items()}
    with torch.cuda.device(0):
        plan = upweave.compile(TEXT, **there)
        y = plan(**there)
    assert y.device.index == last
    torch.testing.assert_close(y.cpu(), upweave.compile(TEXT, **tensors)(**tensors), rtol=1e-4, atol=1e-4)
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    with pytest.raises(ValueError, match=f"device is {last + 1}; this machine has {last + 1} GPU"):
        upweave._core.Plan(TEXT, False, {}, shapes, "f32", "cuda", "strict", "auto", 0, last + 1)


def test_mixed_devices(tensors):
    there = {name: t.cuda() for name, t in tensors.items()}
    plan = upweave.compile(TEXT, **there)
    with pytest.raises(ValueError, match="kernel is on cpu; the plan runs on cuda"):
        plan(there["input"], kernel=tensors["kernel"])
    with pytest.raises(ValueError, match="kernel is on cpu, but input is on cuda:0"):
        upweave.compile(TEXT, input=there["input"], kernel=tensors["kernel"])


@pytest.mark.parametrize("precision, error", (("ieee", 1e-5), ("tf32", 1e-2)))
def test_compiled_model(tensors, precision, error):
    """As exact as PyTorch's own switch asks for."""
    import upweave.torch

    model = torch.nn.Sequential(torch.nn.ConvTranspose3d(16, 32, 4, 2, 1), torch.nn.InstanceNorm3d(32),
                                torch.nn.ReLU()).cuda()
    x, before = tensors["input"].cuda(), upweave.torch.statistics()
    torch._dynamo.reset()
    switch = torch.backends.cudnn.conv
    was, switch.fp32_precision = switch.fp32_precision, precision
    try:
        with torch.no_grad():
            run = torch.compile(model, backend="upweave", options={"rest": "eager", "take": "all"})
            y = run(x)
            assert torch.equal(run(x), y)
    finally:
        switch.fp32_precision = was
    with torch.no_grad():
        exact = model.double()(x.double())
    after = upweave.torch.statistics()
    assert after.calls == before.calls + 2 and after.packed == before.packed + 1 and after.eager == before.eager
    torch.testing.assert_close(y.double(), exact, rtol=error, atol=error)
    assert (precision == "tf32") == bool((y.double() - exact).abs().max() > 1e-5)


def test_tensors_of_another_stream(tensors):
    """Packed on one stream, read on another."""
    import upweave.torch

    model = torch.nn.ConvTranspose3d(16, 32, 4, 2, 1).cuda()
    x = tensors["input"].cuda()
    torch._dynamo.reset()
    run = torch.compile(model, backend="upweave", options={"rest": "eager", "take": "all"})
    with torch.no_grad():
        expected = run(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            y = run(x)
        torch.cuda.synchronize()
    assert torch.equal(y, expected)
