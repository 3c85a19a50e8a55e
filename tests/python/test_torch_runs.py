"""How PyTorch runs a compiled model: batch sizes, weights that change, dtypes, layouts, threads, autotuning."""

import copy
import gc
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from compiled import ALL, ENGINE, Channels, Net, busy, compiled, report  # noqa: E402
import kernelbench  # noqa: E402
import upweave  # noqa: E402
import upweave.torch as ut  # noqa: E402
from upweave.torch import _op, _weights  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


def test_batch_sizes_do_not_compile_without_end():
    model = Net(nn.ConvTranspose2d(3, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU())
    graphs = []

    def counting(module, inputs):
        graphs.append(1)
        return ut.backend(module, inputs, options=ALL)

    run, before = torch.compile(model, backend=counting), ut.statistics()
    with torch.no_grad():
        for batch in (2, 3, 5, 7, 5, 3, 2):
            x = torch.randn(batch, 3, 4, 5)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(graphs) <= 2 and ut.statistics().compiled - before.compiled == 4


def test_everything_dynamic():
    """dynamic=True makes symbols of eps and slopes as well: they are covered, and their changes are seen. A number that
    is an argument is left to PyTorch."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.ConvTranspose2d(3, 4, 3, stride=2), nn.GroupNorm(2, 4)
            self.slope = nn.LeakyReLU(0.2)

        def forward(self, x, factor):
            return self.slope(self.norm(self.conv(x))) * factor

    model, graphs, captured = Model(), [], 0

    def counting(module, inputs):
        graphs.append(1)
        return ut.backend(module, inputs, options=ALL)

    run, before = torch.compile(model, backend=counting, dynamic=True), ut.statistics()
    with torch.no_grad():
        for size, factor in ((4, 0.5), (6, 0.7), (9, 0.9)):
            x = torch.randn(2, 3, size, size + 1)
            torch.testing.assert_close(run(x, factor), model(x, factor), rtol=1e-4, atol=1e-5)
            captured = captured or len(graphs)
        assert len(graphs) == captured
        model.slope.negative_slope = 0.7
        torch.testing.assert_close(run(x, factor), model(x, factor), rtol=1e-4, atol=1e-5)
    assert ut.statistics().calls - before.calls == 4 and ut.statistics().eager == before.eager
    ran = [key[0] for key in _op._plans.plans if "leaky_relu 0.2" in str(key[0])]
    assert ran and ran[-1] == "conv_transpose t0 bias=t1 s2 | group_norm 2 weight=t2 bias=t3 eps=1e-05 | leaky_relu 0.2"


def test_kept_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(_op, "MOST_PLANS", 5)
    k = torch.randn(2, 3, 2)
    with torch.no_grad():
        for n in range(1, 12):
            ut.run("conv_transpose k", torch.randn(1, 2, n), k=k)
    assert ut.statistics().kept <= 5


class Two(nn.Sequential):
    """Two layers alike but for their weights."""

    def __init__(self):
        super().__init__(nn.ConvTranspose2d(16, 16, 4, stride=2), nn.Conv2d(16, 16, 1),
                         nn.ConvTranspose2d(16, 16, 4, stride=2))


def swap(model):
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))


def load(model):
    model.load_state_dict({name: torch.randn_like(t) / 16 for name, t in model.state_dict().items()})


def learn(model):
    """Two steps of optimizers that change their parameters in their own ways."""
    for optimizer in (torch.optim.SGD(model.parameters(), 0.5), torch.optim.AdamW(model.parameters(), 0.1, foreach=True)):
        with torch.enable_grad():
            model(torch.randn(1, 16, 2, 2)).square().mean().backward()
        optimizer.step()


def behind_its_back(model):
    model[0].weight.data.numpy()[:] *= -0.5
    ut.weights_changed()


CHANGES = [lambda m: m[2].weight.mul_(2), lambda m: m[0].bias[3:].fill_(1), lambda m: m[0].weight[1].zero_(), swap, load,
           learn, lambda m: torch._foreach_mul_(list(m.parameters()), 0.5), behind_its_back,
           lambda m: setattr(m[0].weight, "data", torch.randn_like(m[0].weight) / 16)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rest", ("eager", "inductor"))
def test_weights_are_packed_once_and_every_change_is_seen(change, rest):
    if rest == "inductor" and change not in (swap, learn):
        pytest.skip("as with rest=eager")
    model, x = Two(), torch.randn(1, 16, 3, 3)
    run, before = compiled(model, rest=rest), ut.statistics()
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
        assert ut.statistics().packed - before.packed == 1  # one call
        change(model)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


def test_weights_made_in_inference_mode_are_read_at_each_call():
    with torch.inference_mode():
        model, x = Two(), torch.randn(1, 16, 3, 3)
        run = compiled(model)
        for _ in range(3):
            model[0].weight.mul_(-0.5)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


def test_kept_weights_go_with_their_model():
    """As many bytes as the model's that is left, and none without one."""
    ut.weights_changed()
    x, sizes = torch.randn(1, 16, 3, 3), []
    for _ in range(4):
        torch._dynamo.reset()
        model = Two()
        with torch.no_grad():
            compiled(model)(x)
        gc.collect()
        sizes.append(_weights.kept.bytes(x.device))
    assert len(set(sizes)) == 1 and sizes[0] > 0
    del model
    torch._dynamo.reset()
    gc.collect()
    _weights.kept._sweep()
    assert _weights.kept.bytes(x.device) == 0


def test_kept_weights_are_bounded(monkeypatch):
    """Beyond the limit the layer that was used last stays."""
    ut.weights_changed()
    model, x = Two(), torch.randn(1, 16, 3, 3)
    monkeypatch.setattr(_weights, "_memory", lambda device: 4)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-4)
    assert len(_weights.kept.entries) == 1


def test_inference_mode():
    model, x = Channels(), torch.randn(2, 3, 4, 5)
    with torch.inference_mode():
        y = compiled(model)(x)
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
    assert y.is_inference()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_autocast(dtype):
    model = Net(nn.ConvTranspose2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Softmax(1)).eval()
    x = torch.randn(2, 3, 4, 5)
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        y, expected = compiled(model)(x), model(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-3)
    # Rounded where PyTorch rounds: nearer to it than the float32 answer is, and float32's is not ours.
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        rounded[0].weight.copy_(rounded[0].weight.to(dtype))
        rounded[0].bias.copy_(rounded[0].bias.to(dtype))
        exact = rounded.double()(x.to(dtype).double())
    torch.testing.assert_close(y.double(), exact, rtol=2 * torch.finfo(y.dtype).eps, atol=1e-6)


def test_autocast_rounds_behind_the_head():
    model, x = Net(nn.GELU(), nn.ConvTranspose2d(3, 6, 3, stride=2)), torch.randn(2, 3, 4, 5)
    exact = copy.deepcopy(model)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = compiled(model)(x)
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16())
        exact = exact[1].double()(F.gelu(x).bfloat16().double())
    torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(y.dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_sixteen_bits(dtype):
    model = Net(nn.ConvTranspose2d(3, 6, 3, stride=2), nn.GroupNorm(2, 6), nn.ReLU()).to(dtype)
    x = torch.randn(2, 3, 4, 5).to(dtype)
    with torch.no_grad():
        y, exact = compiled(model)(x), copy.deepcopy(model).double()(x.double())
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_sixteen_bits_in_eval_mode_round_once(dtype):
    model = Net(nn.ConvTranspose2d(3, 6, 3, stride=2), busy(nn.BatchNorm2d(6)), nn.Tanh()).eval().to(dtype)
    x = torch.randn(2, 3, 4, 5).to(dtype)
    with torch.no_grad():
        y, exact = compiled(model)(x), copy.deepcopy(model).double()(x.double())
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("number", (3, 11, 50, 77))
def test_every_extent_a_symbol(number):
    model, inputs = kernelbench.make(number)
    before = ut.statistics()
    with torch.no_grad():
        y = torch.compile(model, backend="upweave", dynamic=True, options=ALL)(*inputs)
    assert ut.statistics().calls == before.calls + 1
    torch.testing.assert_close(y, kernelbench.make(number)[0](*inputs), rtol=1e-4, atol=1e-4)


def test_channels_last():
    model = Net(nn.ConvTranspose2d(3, 6, 3, stride=2), nn.ReLU()).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with torch.no_grad():
        y, expected = compiled(model)(x), model(x)
    torch.testing.assert_close(y, expected)
    assert y.stride() == expected.stride()


def test_what_is_not_covered_still_works():
    class Other(nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()

    with torch.no_grad():
        torch.testing.assert_close(compiled(Other())(torch.ones(4)), Other()(torch.ones(4)))
        unbatched = nn.ConvTranspose2d(3, 4, 2)
        x = torch.randn(3, 5, 6)
        torch.testing.assert_close(compiled(unbatched)(x), unbatched(x))
    assert report(unbatched, x).calls == 1


def test_the_string_alone_is_enough():
    """In a process that imports torch and nothing else."""
    code = ("import torch; m = torch.nn.ConvTranspose1d(2, 3, 2); x = torch.randn(1, 2, 5)\n"
            "y = torch.no_grad()(torch.compile(m, backend='upweave', options={'take': 'all'}))(x)\n"
            "torch.testing.assert_close(y, m(x))\n"
            "import upweave.torch; print(upweave.torch.statistics().calls)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_rest_goes_to_inductor():
    model = Net(nn.ConvTranspose1d(2, 3, 4, stride=2), nn.ReLU(), nn.ELU())
    x, seen = torch.randn(2, 2, 5), ut.statistics()
    with torch.no_grad():
        y = torch.compile(model, backend="upweave", options={"take": "all"})(x)
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-5)
    assert ut.statistics().calls == seen.calls + 1


def test_where_gradients_are_needed_everything_is_left():
    model = Net(nn.ConvTranspose1d(2, 3, 4, stride=2), nn.ReLU())
    other, x, seen = copy.deepcopy(model), torch.randn(2, 2, 5), ut.statistics()
    compiled(model)(x).sum().backward()
    other(x).sum().backward()
    assert ut.statistics().calls == seen.calls
    for ours, theirs in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_precision_follows_pytorchs_switches(monkeypatch):
    model, x, seen = Net(nn.ConvTranspose1d(2, 3, 4)), torch.randn(2, 2, 5), []
    monkeypatch.setattr(_op, "compile", lambda text, **given: seen.append(given["precision"]) or upweave.compile(text, **given))
    switch = torch.backends.mkldnn.conv
    was = switch.fp32_precision
    try:
        with torch.no_grad():
            for options, value in (({}, "ieee"), ({}, "tf32"), ({"precision": "strict"}, "tf32"), ({"precision": "fast"}, "ieee")):
                switch.fp32_precision = value
                _op._plans.plans.clear()
                ut.weights_changed()
                compiled(model, **options)(x)
    finally:
        switch.fp32_precision = was
    assert seen == ["strict", "fast", "strict", "fast"]
    cuda = torch.device("cuda")
    assert _op.precision_for("", cuda) == ("fast" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "strict")


def test_autotune_measures_once_and_remembers(tmp_path, monkeypatch):
    """Whichever is faster runs; a second process finds the answer on disk."""
    from upweave.torch import _autotune, _tune

    monkeypatch.setenv("UPWEAVE_CACHE", str(tmp_path))
    model = Net(nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
    other, shapes = copy.deepcopy(model), []
    measure = _autotune.measure
    monkeypatch.setattr(_autotune, "measure", lambda *a, **k: shapes.append(1) or measure(*a, **k))
    run = compiled(model, autotune=True)
    with torch.no_grad():
        for size in (6, 6, 9, 6):
            x = torch.randn(2, 8, size, size)
            torch.testing.assert_close(run(x), other(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(model[1].running_var, other[1].running_var)
        assert len(shapes) == 2 and len(list(tmp_path.glob("*.tune"))) == 2
        _tune._known.clear()
        _autotune.forget()
        run(x)
    assert len(shapes) == 2


@pytest.mark.parametrize("faster", (True, False))
def test_autotune_runs_the_faster(faster, monkeypatch):
    from upweave.torch import _autotune, _tune

    _tune._known.clear()
    monkeypatch.setattr(_autotune, "choose", lambda key, ours, theirs, sync: faster)
    model, x, plans = Net(nn.ConvTranspose2d(4, 6, 3, 2), nn.ReLU()), torch.randn(2, 4, 5, 7), []
    monkeypatch.setattr(_op, "_run", lambda *a, run=_op._run: plans.append(1) or run(*a))
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, autotune=True)(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(plans) == faster


def test_report_leaves_the_compiled_alone():
    model, x, graphs = Net(nn.ConvTranspose1d(2, 3, 4, stride=2), nn.ReLU()), torch.randn(2, 2, 5), []

    def counting(module, inputs):
        graphs.append(1)
        return module.forward

    run = torch.compile(model, backend=counting)
    with torch.no_grad():
        run(x)
        report(model, x)
        run(x)
    assert len(graphs) == 1


def test_options_are_checked():
    x = torch.randn(1, 2, 3)
    for options, sentence in (({"rest": "triton"}, "option rest is 'triton'"), ({"speed": "9"}, "option 'speed'")):
        with pytest.raises(Exception, match=sentence):
            torch.compile(nn.ConvTranspose1d(2, 3, 2), backend="upweave", options=options)(x)
        torch._dynamo.reset()
