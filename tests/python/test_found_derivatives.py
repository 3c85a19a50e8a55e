"""What else once went wrong: derivatives of every kind, texts that are run by hand, modules from torch.export."""

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import upweave.torch as ut  # noqa: E402
from as_eager import Mode, Up, check, compiled, differences, image  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(11)
    yield
    torch._dynamo.reset()


# --- Derivatives of derivatives, and forwards ---

# PyTorch's own words where a graph went through AOTAutograd: it cannot, and says so.
NO_DOUBLE = "does not currently support double backward"


def test_double_backward_is_right_or_refused_by_pytorch():
    for function in (lambda m, x: F.softplus(m.u(x)), lambda m, x: torch.tanh(m.u(x.square())).mean((2, 3))):
        for last in (False, True):
            torch._dynamo.reset()
            x = image(last=last).requires_grad_()
            wrong = differences(Up(function), (x,), Mode(grad="double"))
            assert not wrong or all(NO_DOUBLE in w for w in wrong), wrong


def _double_of_run():
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    k = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)

    def penalty(y):
        g, = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, k))

    return penalty(ut.run("conv_transpose k s2 | tanh", x,
        k=k)), penalty(torch.tanh(F.conv_transpose1d(x, k, stride=2)))


def test_double_backward_of_run():
    for ours, theirs in zip(*_double_of_run()):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_forward_mode_around():
    model, x, t = Up(lambda m, x: torch.tanh(m.u(x))), image(), image()
    expected = torch.func.jvp(model, (x,), (t,))
    with forward_ad.dual_level(), torch.no_grad():
        y, tangent = forward_ad.unpack_dual(compiled(model)(forward_ad.make_dual(x, t)))
    torch.testing.assert_close(y, expected[0], rtol=1e-4, atol=1e-5)
    assert tangent is not None
    torch.testing.assert_close(tangent, expected[1], rtol=1e-4, atol=1e-5)


# --- functorch: around a compiled function, and inside one ---


def f(x, k):
    return torch.tanh(F.conv_transpose2d(x, k, stride=2, padding=1)).square().mean((2, 3))


FUNCTIONAL = {
    "vmap": lambda f, x, k: torch.vmap(f, (0, None))(torch.stack((x, x * 2)), k),
    "grad": lambda f, x, k: torch.func.grad(lambda *a: f(*a).sum(), (0, 1))(x, k),
    "vjp": lambda f, x, k: torch.func.vjp(f, x, k)[1](torch.ones(2, 3)),
    "jvp": lambda f, x, k: torch.func.jvp(f, (x, k), (x.cos(), k.sin())),
    "jacrev": lambda f, x, k: torch.func.jacrev(f, 1)(x[..., :2, :2], k),
    "jacfwd": lambda f, x, k: torch.func.jacfwd(f, 1)(x[..., :2, :2], k),
    "grad of grad": lambda f, x, k: torch.func.grad(
        lambda x: torch.func.grad(lambda x: f(x, k).sum())(x).square().sum())(x),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_transforms_inside(name):
    transform, x, k = FUNCTIONAL[name], image(), torch.randn(4, 3, 3, 3)
    wrong = differences(lambda x, k: transform(f, x, k), (x, k), Mode(grad="forward"))
    assert not wrong, "; ".join(wrong)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_transforms_around(name):
    transform, x, k = FUNCTIONAL[name], image(), torch.randn(4, 3, 3, 3)
    wrong = differences(lambda x, k: transform(f, x, k), (x, k), Mode(grad="forward"),
                        call=lambda model: lambda x, k: transform(compiled(f), x, k))
    assert not wrong, "; ".join(wrong)


# --- `upweave.torch.run`: gradients of texts with settings by name ---

TEXTS = {
    "conv_transpose k stride=2": lambda x, k, w: F.conv_transpose2d(x, k, stride=2),
    "conv_transpose k padding=1": lambda x, k, w: F.conv_transpose2d(x, k, padding=1),
    "conv_transpose k | clamp lo=-0.5 hi=0.5": lambda x, k, w: F.conv_transpose2d(x, k).clamp(-0.5, 0.5),
    "conv_transpose k | avg_pool window=2": lambda x, k, w: F.avg_pool2d(F.conv_transpose2d(x, k), 2),
    "conv_transpose k | sum axes=channel": lambda x, k, w: F.conv_transpose2d(x, k).sum(1, keepdim=True),
    "conv_transpose k | add w": lambda x, k, w: F.conv_transpose2d(x, k) + w.view(1, -1, 1, 1),
}


@pytest.mark.parametrize("text", TEXTS)
def test_gradients_of_texts_with_settings_by_name(text):
    x, k, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 5, 4), (3, 4, 3, 3), (4,)))
    given = {"k": k, **({"w": w} if text.endswith("w") else {})}
    with torch.no_grad():
        y = ut.run(text, x, **given)
        torch.testing.assert_close(y, TEXTS[text](x, k, w), rtol=1e-9, atol=1e-9)
    wanted = (x, *given.values())
    ours = torch.autograd.grad(ut.run(text, x, **given).square().sum(), wanted)
    theirs = torch.autograd.grad(TEXTS[text](x, k, w).square().sum(), wanted)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# --- Where nothing was covered ---


def exported(model, *inputs):
    return torch.export.export(model, inputs).module()


def test_modules_from_export():
    model = nn.Sequential(nn.ConvTranspose2d(4, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
                          nn.ConvTranspose2d(16, 3, 4, 2, 1)).eval()
    x = image()
    wrong = differences(exported(model, x), (x,))
    assert not wrong, "; ".join(wrong)
    wrong = differences(exported(copy.deepcopy(model).train(), x), (x,))
    assert not wrong, "; ".join(wrong)


def test_inside_checkpoint():
    model = Up(lambda m, x: torch.utils.checkpoint.checkpoint(lambda x: F.gelu(m.u(x)), x, use_reentrant=False))
    check(model, image(), grads=("none", "backward"))


def test_inside_a_branch():
    def function(m, x):
        return torch.cond(x.sum() > 0, lambda x: F.gelu(m.u(x)), lambda x: m.u(x) * 2, (x,))

    check(Up(function), image(), grads=("none",))


def test_report_leaves_the_caches_alone():
    """What was compiled before a report is not compiled again after it."""
    graphs = []

    def counting(module, inputs):
        graphs.append(1)
        return module.forward

    run, x = torch.compile(nn.ReLU(), backend=counting), image()
    run(x)
    ut.report(nn.ConvTranspose2d(4, 3, 2), x)
    run(x)
    assert len(graphs) == 1


def test_memory_is_given_back():
    """Models come and go; what was kept for them goes with them. In a process of its own, for its peak."""
    code = """
import gc, resource, torch, torch.nn as nn
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
def once():
    torch._dynamo.reset()
    model = nn.Sequential(nn.ConvTranspose2d(64, 64, 8, 2, 1), nn.ReLU())
    with torch.no_grad():
        torch.compile(model, backend="upweave", options={"rest": "eager", "take": "all"})(torch.randn(1, 64, 8, 8))
for _ in range(4):
    once()
gc.collect(); before = rss()
for _ in range(20):
    once()
gc.collect(); torch._dynamo.reset()
print(rss() - before)
"""
    grown = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 120  # 20 models of 1 MiB of weights: 19 MB each would be 380
