"""torch.compile(model, backend="upweave"): the same answers as PyTorch, in one call where the vocabulary reaches."""

import copy
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from compiled import ALL, ENGINE, Channels, Net, busy, compiled, report  # noqa: E402
import kernelbench  # noqa: E402
import upweave  # noqa: E402
import upweave.torch as ut  # noqa: E402
from upweave.torch import _op, _recipes, _weights  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


class Recorder:
    """What the operator ran: text, tensors, result."""

    def __init__(self, monkeypatch):
        self.runs, execute = [], _op._execute

        def record(text, names, input, tensors, options):
            out = execute(text, names, input, tensors, options)
            made = _recipes.make(names, tensors, input.dtype, input.dtype, input.device)
            self.runs.append((text, input.clone(), {n: t.clone() for n, t in made.items()}, out[0]))
            return out

        monkeypatch.setattr(_op, "_execute", record)

    def bound(self):
        """The derived bound of the first run's result, and its float64 truth."""
        text, x, tensors, out = self.runs[0]
        plan = upweave.compile(text, engine="reference", input=x, **tensors)
        with torch.no_grad():
            truth, bound = plan._core.truth({"input": x, **tensors})
        return np.frombuffer(bound)[:out.numel()].reshape(out.shape)  # behind it are extra outputs


# --- KernelBench ---


@pytest.mark.parametrize("number", kernelbench.MODELS)
def test_kernelbench(number, monkeypatch):
    """One call, the answer of eager float64 within the bound, the module's own state as PyTorch leaves it."""
    model, inputs = kernelbench.make(number)
    truth = copy.deepcopy(model).double()
    eager = copy.deepcopy(model)
    recorder, before = Recorder(monkeypatch), ut.statistics()
    with torch.no_grad():
        y = compiled(model)(*inputs)
        expected = truth(*(x.double() for x in inputs))
        eager(*inputs)
    after = ut.statistics()
    assert after.calls - before.calls == 1 and after.eager == before.eager
    assert y.shape == expected.shape and y.dtype == torch.float32
    assert expected.max() - expected.min() > 1e-3  # nothing is flattened that could be wrong
    error, bound = (y.double() - expected).abs().numpy(), recorder.bound()
    if number == 26:  # PyTorch goes on with c + T = z: d(z hardswish(z)) <= 2.5 |z| + 1, and a few roundings of its own
        z = truth.conv(inputs[0].double()).add(inputs[1]).abs().detach().numpy()
        bound = (2.5 * z + 1) * (bound + 2**-23 * z)
    assert (error <= bound.reshape(error.shape)).all()
    for (name, buffer), ours in zip(eager.named_buffers(), model.buffers()):
        torch.testing.assert_close(ours, buffer, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("number", (11, 20, 38, 42, 58, 77, 89))
def test_kernelbench_gradients(number):
    """Training: gradients of every parameter and the input, float64, as eager has them."""
    model, inputs = kernelbench.make(number)
    model = model.double()
    other = copy.deepcopy(model)
    inputs = [x.double().requires_grad_() for x in inputs]
    others = [x.detach().clone().requires_grad_() for x in inputs]
    weight = torch.rand(1, dtype=torch.float64)
    (compiled(model)(*inputs) * weight).square().sum().backward()
    (other(*others) * weight).square().sum().backward()
    for ours, theirs in zip([*inputs, *model.parameters()], [*others, *other.parameters()]):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9)


def test_report_covers_every_model():
    for number in (2, 38, 72):
        model, inputs = kernelbench.make(number)
        found = report(model, *inputs)
        assert found.calls == 1 and all(name.startswith("add ") for name in found.left)  # batches that were seen


# --- The operator ---


def test_opcheck():
    x, k, b = torch.randn(2, 3, 5), torch.randn(3, 4, 3), torch.randn(4)
    text = "conv_transpose k bias=b s2 as c | moments batch out m | @c | batch_norm eps=1e-05 | gelu"
    torch.library.opcheck(torch.ops.upweave.run.default, (x, [k, b], text, "k b", ""))
    needing = (x.requires_grad_(), [k.requires_grad_(), b], "conv_transpose k bias=b s2 | batch_norm | gelu", "k b", "")
    torch.library.opcheck(torch.ops.upweave.run.default, needing)


GRADIENTS = [
    "conv_transpose k b s2 p1 | layer_norm channel | gelu | mul 1.5",
    "conv_transpose k b s2 op1 | max_pool 2 | softmax channel as y | sum channel | add @y",
    "avg_pool 2 | conv_transpose k b | group_norm 2 weight=w bias=b eps=1e-3 | tanh | mean space",
    "conv_transpose k b | batch_norm w b | leaky_relu 0.2 | sub b | minimum 0.5 | logsumexp space",
    "conv_transpose k b d2 | instance_norm | mish | hardswish | clamp -0.3 0.4 | div w | max width",
]


@pytest.mark.parametrize("text", GRADIENTS)
def test_gradcheck(text):
    x = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    names = [n for n in ("k", "b", "w") if n in text.replace("=", " ").split()]
    shapes = {"k": (2, 4, 2, 3), "b": (4,), "w": (4,)}
    tensors = [(torch.rand(shapes[n], dtype=torch.float64) + 0.5).requires_grad_() for n in names]
    assert torch.autograd.gradcheck(lambda x, *t: ut.run(text, x, **dict(zip(names, t))), (x, *tensors),
                                    fast_mode="gelu" not in text)  # one of them entry by entry


def test_run_agrees_with_its_engine():
    """`drop` and settings of the text reach the shapes that tracing sees."""
    x, k = torch.randn(2, 3, 4, 5), torch.randn(3, 4, 2, 2)
    text = "conv_transpose k | sum space drop | relu"
    with torch.no_grad():
        y = ut.run(text, x, k=k)
        assert y.shape == (2, 4) == torch.compile(ut.run, backend="eager")(text, x, k=k).shape
    torch.testing.assert_close(y, F.conv_transpose2d(x, k).sum((2, 3)).relu())


# --- Modules ---


def check(model, *inputs, calls=1, tolerance=1e-5, **options):
    truth = copy.deepcopy(model).double()
    before = ut.statistics()
    with torch.no_grad():
        y = compiled(model, **options)(*inputs)
        expected = truth(*(x.double() for x in inputs))
    assert ut.statistics().calls - before.calls == calls
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    return y


@pytest.mark.parametrize("axes", (1, 2, 3))
def test_eval_norm_folds_and_dropout_disappears(axes):
    conv = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
    model = Net(conv(3, 6, 3, stride=2), busy(norm(6)), nn.Dropout(0.5), nn.ReLU(inplace=True)).eval()
    x = torch.randn(2, 3, *range(4, 4 + axes))
    check(model, x)
    assert "batch_norm" not in report(model, x).texts[0] and " | mul " not in report(model, x).texts[0]


def test_eval_norm_behind_groups_and_further_away():
    x = torch.randn(2, 4, 5, 6)
    model = Net(nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), busy(nn.BatchNorm2d(6)), nn.SiLU()).eval()
    check(model, x)
    assert report(model, x).texts == ["conv_transpose t0 bias=t1 d2 g2 | swish"]
    check(Net(nn.ConvTranspose2d(4, 6, 3), nn.Tanh(), busy(nn.BatchNorm2d(6))).eval(), x)


class Gated(nn.Module):
    """A folded norm whose value is read twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(16, 32, 4, stride=2), busy(nn.BatchNorm2d(32))

    def forward(self, x):
        y = self.norm(self.conv(x))
        return y * torch.sigmoid(y)


def test_a_folded_norm_follows_its_statistics():
    """What was folded and packed is kept; a change of the statistics alone, or of the weights alone, is seen."""
    model, x = Gated().eval(), torch.randn(2, 16, 4, 5)
    check(model, x)
    assert report(model, x).texts[0].startswith("conv_transpose t0 bias=t1 s2 as v")
    run, before = compiled(model), ut.statistics()
    with torch.no_grad():
        for change in (lambda: None, lambda: None, lambda: model.norm.running_mean.add_(1),
                       lambda: model.conv.weight.mul_(2)):
            change()
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert ut.statistics().packed - before.packed == 2  # what was packed before serves


class Scaled(nn.Module):
    """A norm with known statistics that stays outside of the weights: `how` says what else reads the convolution."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.norm, self.how = nn.ConvTranspose2d(4, 6, 3), busy(nn.BatchNorm2d(6)), how

    def forward(self, x):
        y = self.conv(x)
        return self.how(self.norm(y), y)


@pytest.mark.parametrize("how, calls", ((lambda z, y: z + y, 1), (lambda z, y: (z, y), 1), (lambda z, y: torch.cumsum(y, 1) + z, 1)))
def test_what_does_not_fold(how, calls):
    model, x = Scaled(how).eval(), torch.randn(2, 4, 5, 6)
    with torch.no_grad():
        for ours, theirs in zip(compiled(model)(x), model(x)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    text = report(model, x).texts[0]
    assert " | mul t" in text and ":channel | add t" in text
    assert " | mul t" not in report(Scaled(lambda z, y: z).eval(), x).texts[0]
    assert " | mul t" in report(Net(nn.ConvTranspose2d(4, 6, 3), nn.Tanh(), busy(nn.BatchNorm2d(6))).eval(), x).texts[0]


def test_training_dropout_is_left_alone():
    model = Net(nn.ConvTranspose1d(3, 4, 3), nn.ReLU(), nn.Dropout(0.5))
    found = report(model, torch.randn(2, 3, 5))
    assert found.calls == 1 and "dropout" in found.left[0] and "drops at random" in str(found)


def test_training_norm_updates_its_statistics_each_step():
    model = Net(nn.ConvTranspose2d(3, 5, 3, stride=2), nn.BatchNorm2d(5, momentum=0.3), nn.ReLU())
    other, ours = copy.deepcopy(model), compiled(model)
    for step in range(3):
        x = torch.randn(2, 3, 4, 5) + step
        ours(x).sum().backward()
        other(x).sum().backward()
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer, rtol=1e-5, atol=1e-6)
    for theirs, mine in zip(other.parameters(), model.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_many_convolutions_are_one_call():
    model = Net(nn.ConvTranspose2d(3, 5, 4, stride=2, padding=1), nn.InstanceNorm2d(5, affine=True), nn.LeakyReLU(0.2),
                nn.Conv2d(5, 5, 3), nn.ReLU(), nn.ConvTranspose2d(5, 2, 2, stride=2), nn.Sigmoid())
    check(model, torch.randn(2, 3, 5, 4), engine=ENGINE)
    found = ut.report(model, torch.randn(2, 3, 5, 4), options={"take": "all", "engine": ENGINE})
    assert found.calls == 1 and not found.left and found.texts[0].count("conv") == 3


@pytest.mark.parametrize("head, text", (
    (lambda: [busy(nn.BatchNorm2d(4)), nn.ReLU(), nn.Dropout()], "mul t0:channel | add t1:channel | relu | conv_"),
    (lambda: [nn.GroupNorm(2, 4), nn.SiLU()], "group_norm 2 weight=t0 bias=t1 eps=1e-05 | swish | conv_"),
    (lambda: [nn.MaxPool2d(2), nn.Hardsigmoid()], "max_pool 2 | add 3.0 | clamp 0.0 6.0 | div 6.0 | conv_"),
    (lambda: [nn.CELU(), nn.Tanh()], "tanh | conv_"),
    (lambda: [nn.InstanceNorm2d(4), nn.LeakyReLU(0.1)], "instance_norm eps=1e-05 | leaky_relu 0.1 | conv_"),
    (lambda: [nn.Tanh(), nn.MaxPool2d(3, padding=1), nn.ReLU()], "relu | conv_")))
def test_what_stands_before(head, text):
    """As much of it as can be said, down to the first node that cannot."""
    model, x = Net(*head(), nn.ConvTranspose2d(4, 5, 3, stride=2), nn.ReLU()).eval(), torch.randn(2, 4, 6, 8)
    check(model, x)
    assert report(model, x).texts[0].startswith(text)


def test_a_head_in_training_mode_keeps_its_statistics():
    model = Net(nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 5, 3, stride=2))
    other, x = copy.deepcopy(model), torch.randn(2, 4, 6, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), other(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model[0].running_var, other[0].running_var)
    assert report(model, x).texts[0].startswith("relu | conv_")


def test_layer_norm_over_channels():
    check(Channels(), torch.randn(2, 3, 4, 5))


class Residual(nn.Module):
    """A value that escapes, a skip that comes in, numbers on the left."""

    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(3, 4, 3, padding=1)

    def forward(self, x, skip):
        y = 1 - 0.5 * self.conv(x)
        z = torch.relu(skip + y)
        return z.square() - y, torch.cumsum(z, 1)


def test_values_that_escape():
    model, x, skip = Residual(), torch.randn(2, 3, 5, 6), torch.randn(2, 4, 5, 6)
    with torch.no_grad():
        for ours, theirs in zip(compiled(model)(x, skip), model(x, skip)):
            torch.testing.assert_close(ours, theirs)
    assert report(model, x, skip).calls == 1


def test_skips_are_inputs():
    """A skip is read where it is: the weights beside it are packed once, whatever comes in."""

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.ConvTranspose2d(3, 4, 4, stride=2, padding=1)

        def forward(self, x, skip):
            return torch.relu(self.conv(x) + skip) * torch.sigmoid(skip)

    model, before = Skip(), ut.statistics()
    run = compiled(model)
    for n in (2, 2, 3):
        x, skip = torch.randn(n, 3, 5, 6), torch.randn(n, 4, 10, 12).to(memory_format=torch.channels_last)
        with torch.no_grad():
            torch.testing.assert_close(run(x, skip), model(x, skip))
    after = ut.statistics()
    assert after.packed - before.packed == 2 and after.eager == before.eager  # a plan for each batch
    found = report(model, x, skip)
    assert found.calls == 1 and not found.left
    assert found.texts[0].startswith("input input x3 | conv_transpose t0 bias=t1 s2 p1 | add @x3 | relu as v5 | @x3 | sigmoid")
    model, inputs = model.double(), [t.detach().double().requires_grad_() for t in (x, skip)]
    small = [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in ((1, 3, 3, 4), (1, 4, 6, 8))]
    assert torch.autograd.gradcheck(compiled(model), small)
    y = ut.run("input x skip | conv_transpose k s2 p1 | add @skip", inputs[0], k=model.conv.weight, skip=inputs[1])
    torch.testing.assert_close(y, F.conv_transpose2d(inputs[0], model.conv.weight, stride=2, padding=1) + inputs[1])
    y.sum().backward()
    assert (inputs[1].grad == 1).all()


def test_in_place_changes_that_others_see():
    class Changing(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.ConvTranspose1d(2, 3, 2)

        def forward(self, x):
            y = self.conv(x)
            z = F.relu(y, inplace=True)
            return y + z.sum(-1, keepdim=True)

    model, x = Changing(), torch.randn(2, 2, 5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))


# --- Plans and tensors ---


def test_tensors_go_in_and_come_out():
    x, k = torch.randn(1, 2, 5), torch.randn(2, 3, 2)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        xs, ks = x.to(dtype), k.to(dtype)
        y = upweave.compile("conv_transpose kernel", input=xs, kernel=ks)(xs, kernel=ks)
        assert y.dtype == dtype
        torch.testing.assert_close(y.float(), F.conv_transpose1d(xs.float(), ks.float()), rtol=2e-2, atol=2e-2)


def test_a_plan_refuses_gradients():
    x, k = torch.randn(1, 2, 5), torch.randn(2, 3, 2, requires_grad=True)
    plan = upweave.compile("conv_transpose kernel", input=x, kernel=(2, 3, 2))
    with pytest.raises(ValueError, match="kernel requires a gradient"):
        plan(x, kernel=k)
    with pytest.raises(ValueError, match="out requires a gradient"):
        plan(x, kernel=k.detach(), out=torch.empty(plan.shape, requires_grad=True))
    with torch.no_grad():
        plan(x, kernel=k)


def test_tensors_that_have_no_memory_to_lend():
    x, k = torch.randn(1, 2, 5), torch.randn(2, 3, 2)
    plan = upweave.compile("conv_transpose kernel", input=x, kernel=k)
    for wrong in (x.to_sparse(), x.to("meta")):
        with pytest.raises(ValueError, match="^input is a Tensor whose memory cannot be lent: .{10,99}$"):
            plan(wrong, kernel=k, out=torch.empty(plan.shape))


def test_threads_share_a_compiled_model():
    model = Net(nn.ConvTranspose2d(3, 4, 3), nn.ReLU())
    run, x, wrong = compiled(model), torch.randn(2, 3, 4, 5), []
    with torch.no_grad():
        expected = run(x)

    def work():
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(run(x), expected):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_network_is_one_call():
    """Convolutions of both kinds, an upsampling that PyTorch takes apart into indices, a skip and a cat."""
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, padding=1)
            self.up, self.c = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(24, 8, 3, padding=1)
            self.norm, self.d = nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

        def forward(self, x):
            skip = F.leaky_relu(self.a(x), 0.1)
            y = torch.cat([self.up(F.relu(self.b(skip))), skip], 1)
            y = self.norm(self.c(F.interpolate(y, scale_factor=2, mode="nearest")))
            return self.d(F.silu(y))

    model, x = Decoder().eval(), torch.randn(2, 8, 12, 16)
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    with torch.no_grad():
        run, before = compiled(model), ut.statistics()
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
        assert ut.statistics().calls - before.calls == 1
    assert "upsample 2 nearest" in str(report(model, x))
