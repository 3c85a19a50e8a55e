"""What the PyTorch backend once got wrong or raised on, each by name: as eager does it, to everything a caller sees."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import as_eager  # noqa: E402
import upweave.torch as ut  # noqa: E402
from as_eager import Mode, Up, check, compiled, differences, image  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(11)
    yield
    torch._dynamo.reset()


# --- Silently wrong ---


@pytest.mark.parametrize("axis", (1, 2, 3, -1))
def test_a_permuted_value_is_reduced_along_the_axis_named(axis):
    check(Up(lambda m, x: m.u(x).permute(0, 2, 3, 1).sum(axis)), image(), grads=("none",))
    check(Up(lambda m, x: m.u(x).transpose(1, 3).mean(axis, keepdim=True)), image(), grads=("none",))
    check(Up(lambda m, x: m.u(x).permute(0, 2, 3, 1).softmax(axis)), image(), grads=("none",))


@pytest.mark.parametrize("size", (1, 11, (11, 1), (1, 11), (None, 1), (3, 11)))
def test_adaptive_pools_of_any_size(size):
    check(Up(lambda m, x: F.adaptive_avg_pool2d(m.u(x), size)), image(2, 4, 6, 6), grads=("none",))
    check(Up(lambda m, x: F.adaptive_max_pool2d(m.u(x), size)), image(2, 4, 6, 6), grads=("none",))


@pytest.mark.parametrize("keywords",
    (dict(dilation=11), dict(dilation=(11, 1)), dict(dilation=(1, 11)), dict(padding=1),
                                      dict(ceil_mode=True), dict(stride=11), dict(stride=1, dilation=2)))
def test_pools_say_what_they_mean(keywords):
    check(Up(lambda m, x: F.max_pool2d(m.u(x), 2, **keywords)), image(2, 4, 7, 7), grads=("none",))
    if "dilation" not in keywords:
        check(Up(lambda m, x: F.avg_pool2d(m.u(x), 2, **keywords)), image(2, 4, 7, 7), grads=("none",))


def view_mul(y):
    y.view(2, -1).mul_(2)


def permute_mul(y):
    y.permute(0, 2, 3, 1).mul_(2)


def contiguous_mul(y):
    y.contiguous().mul_(2)


def slice_fill(y):
    y[:, 0] = 7


def chunk_add(y):
    y.chunk(2, 1)[1].add_(3)


def expand_as_self(y):
    y.view_as(y).clamp_(0.1, 0.2)


def out_argument(y):
    torch.mul(y.detach(), 3.0, out=y.data)


def foreach_add(y):
    torch._foreach_add_([y.data[:, 1:], y.data[:, :1]], 1.5)


def data_mul(y):
    y.data.mul_(3)


def copy_into(y):
    y[..., ::2].copy_(y[..., 1::2].clone())


def index_put(y):
    y.index_put_((torch.tensor([0, 1]), torch.tensor([2, 0])), torch.tensor(5.0))


def transposed_zero(y):
    y.transpose(1, 2).select(0, 1).zero_()


CHANGES = [view_mul, permute_mul, contiguous_mul, slice_fill, chunk_add, expand_as_self, out_argument,
           foreach_add, data_mul, copy_into, index_put, transposed_zero]
# A change of what eval-mode dropout returns is not among them: aot_eager and Inductor give it memory of its own.
# Behind autograd's back, or refused by it: training with them has no meaning to keep.
UNSEEN = (out_argument, foreach_add, data_mul, chunk_add)
# No view of these exists where channels come last.
PLAIN = (view_mul,)


def both(change, function, *args, inner=()):
    grads = ("none",) if change in UNSEEN else ("none", "inference", "backward")
    model = Up(function)
    if change in PLAIN:
        for grad in grads:
            given = tuple(a.clone().requires_grad_(grad == "backward") for a in args)
            torch._dynamo.reset()
            wrong = differences(copy.deepcopy(model), given, Mode(grad=grad), inner=inner)
            assert not wrong, f"{grad}: " + "; ".join(wrong)
    else:
        check(model, *args, grads=grads, inner=inner)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_through_a_view_of_the_result_is_seen(change):
    def function(m, x):
        y = m.u(x)
        change(y)
        return F.relu(y)

    both(change, function, image())


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_input_after_it_was_read(change):
    def function(m, x):
        y = m.u(x * 1)
        change(x)
        return F.relu(y), m.u(F.relu(y)[..., ::2, ::2])

    both(change, function, image(), inner=(0,))


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_convolutions_own_input(change):
    """In inference only: autograd refuses to differentiate a convolution whose input was changed."""
    def function(m, x):
        y = m.u(x)
        change(x)
        return F.relu(y)

    model = Up(function)
    for last in (False, True) if change not in PLAIN else (False,):
        torch._dynamo.reset()
        wrong = differences(model.to(memory_format=torch.channels_last) if last else model, (image(last=last),))
        assert not wrong, "; ".join(wrong)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_behind_a_head_that_was_read(change):
    def function(m, x):
        h = F.relu(x)
        change(x)
        return m.u(h)

    both(change, function, image(), inner=(0,))


def test_a_skip_that_the_result_is_added_to():
    def function(m, x, skip):
        skip += m.u(x)
        return torch.sigmoid(skip)

    check(Up(function), image(), torch.randn(2, 4, 10, 12), inner=(1,))

    def silent(m, x, skip):
        skip += m.u(x)

    check(Up(silent), image(), torch.randn(2, 4, 10, 12), grads=("none", "inference"))


def test_a_buffer_that_the_result_is_added_to():
    check(Up(lambda m, x: m.buffer.add_(m.u(x)).sigmoid()), image(), grads=("none", "inference"))
    check(Up(lambda m, x: m.buffer.copy_(m.u(x).detach()).sigmoid() + m.u(x)), image())

    def sliced(m, x):
        m.buffer[:, 1:3] = m.u(x)[:, 1:3].detach()
        return m.buffer.mean((2, 3)) + m.u(x).mean((2, 3))

    check(Up(sliced), image())


def test_a_part_that_the_result_is_added_to():
    def function(m, x, k):
        p = k[:, :4]
        p += m.u(x)
        return k

    check(Up(function), image(), torch.randn(2, 6, 10, 12), inner=(1,))


def test_results_written_into_what_is_given():
    check(Up(lambda m, x, out: torch.add(m.u(x), 1, out=out)), image(), torch.empty(2, 4, 10, 12), grads=("none",))
    check(Up(lambda m, x, out: out.copy_(m.u(x)).relu_()), image(),
          torch.empty(2, 4, 10, 12), grads=("none",))


@pytest.mark.parametrize("dtype, other", ((torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16),
                                          (torch.float32, torch.int32), (torch.float32, torch.bfloat16)))
def test_a_view_of_another_type_reinterprets(dtype, other):
    x, k = torch.randn(2, 4, 5, 6).to(dtype), torch.randn(4, 4, 2, 2).to(dtype)

    def function(x, k):
        y = F.conv_transpose2d(x.sign(), (k * 4).round(), stride=2)  # small integers: every method is exact
        return y, y.view(other)

    torch._dynamo.reset()
    wrong = differences(function, (x, k), Mode(eps=torch.finfo(dtype).eps))
    assert not wrong, "; ".join(wrong)


def quiet_relu(m, x):
    with torch.no_grad():
        y = m.u(x).relu()
    return y * x.sum()


def quiet_convolution(m, x):
    with torch.no_grad():
        y = m.u(x)
    return F.relu(y) * x.sum()


def quiet_inside(m, x):
    y = m.u(x)
    with torch.no_grad():
        z = F.relu(y)
    return z + y, F.relu(y).detach() * y


def switched(m, x):
    with torch.set_grad_enabled(False):
        y = m.u(x)
        with torch.enable_grad():
            z = F.gelu(m.u(x * 2))
    return z + y


def detached(m, x):
    y = m.u(x.detach())
    return torch.tanh(y) + m.u(x)


@pytest.mark.parametrize("function", (quiet_relu, quiet_convolution, quiet_inside, switched, detached))
def test_grad_modes_inside_the_function(function):
    check(Up(function), image(), grads=("none", "forward", "backward"))


@pytest.mark.parametrize("frozen", ("weight", "bias", "both"))
def test_frozen_weights_get_no_gradient(frozen):
    model = Up(lambda m, x: F.relu(m.layers[0](m.u(x))), nn.BatchNorm2d(4))
    for name in ("weight", "bias") if frozen == "both" else (frozen,):
        getattr(model.u, name).requires_grad_(False)
    check(model, image())
    check(Up(lambda m, x: F.relu(m.u(x.detach()))), image())


def test_gradients_that_accumulate():
    """`.backward()` into .grad, twice, with what is frozen still None."""
    model = Up(lambda m, x: F.gelu(m.u(x)))
    model.u.bias.requires_grad_(False)
    other, x = copy.deepcopy(model), image()
    run = compiled(model)
    for _ in range(2):
        run(x).square().sum().backward()
        other(x).square().sum().backward()
    assert model.u.bias.grad is None
    torch.testing.assert_close(model.u.weight.grad, other.u.weight.grad, rtol=1e-5, atol=1e-4)


def test_statistics_that_the_function_reads():
    def function(m, x):
        y = m.layers[0](m.u(x))
        return F.relu(y) + m.layers[0].running_mean.view(1, -1, 1, 1), m.layers[0].running_var * 2

    check(Up(function, nn.BatchNorm2d(4, momentum=0.3)), image(), grads=("none", "forward", "backward"))

    def before_too(m, x):
        old = m.layers[0].running_mean.clone()
        y = m.layers[0](m.u(x))
        return y - old.view(1, -1, 1, 1) + m.layers[0].num_batches_tracked

    check(Up(before_too, nn.BatchNorm2d(4)), image(), grads=("none", "forward", "backward"))


def test_one_norm_in_both_modes():
    def function(m, x):
        norm, y = m.layers[0], m.u(x)
        first = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, True, 0.3)
        second = F.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.3)
        return F.relu(first) - F.relu(second)

    check(Up(function, nn.BatchNorm2d(4)), image(), grads=("none", "backward"))


def test_training_then_eval_of_one_module():
    model, other = (Up(lambda m, x: F.relu(m.layers[0](m.u(x))), nn.BatchNorm2d(4)) for _ in range(2))
    other.load_state_dict(model.state_dict())
    run, x = compiled(model), image()
    with torch.no_grad():
        for training in (True, False, True, False):
            model.train(training), other.train(training)
            torch.testing.assert_close(run(x), other(x), rtol=1e-4, atol=1e-5)
            for name, buffer in other.named_buffers():
                torch.testing.assert_close(dict(model.named_buffers())[name], buffer, rtol=1e-5, atol=1e-6)


def test_one_norm_used_twice():
    check(Up(lambda m, x: m.layers[0](m.u(x)) * m.layers[0](m.u(x * 2)).sigmoid(), nn.BatchNorm2d(4)), image(),
          grads=("none", "backward"))


# --- Raises ---


class Upscaling(nn.Module):
    """As mask decoders have it: two transposed convolutions with a norm over channels between them."""

    def __init__(self, channels=8):
        super().__init__()
        self.first = nn.ConvTranspose2d(channels, channels // 2, 2, 2)
        self.second = nn.ConvTranspose2d(channels // 2, channels // 4, 2, 2)
        self.norm = nn.LayerNorm(channels // 2)

    def forward(self, x):
        x = self.norm(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.gelu(self.second(F.gelu(x)))


def test_mask_upscaling():
    check(Upscaling(), image(2, 8, 4, 5))
    x = torch.randn(2, 20, 8)  # tokens of a transformer, as SAM hands them over
    for grad in ("none", "backward"):
        torch._dynamo.reset()
        model = Upscaling()

        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                self.up = model

            def forward(self, x):
                return self.up(x.transpose(1, 2).reshape(2, 8, 4, 5)).flatten(2)

        wrong = differences(Tokens(), (x.clone().requires_grad_(grad == "backward"),), Mode(grad=grad))
        assert not wrong, "; ".join(wrong)


def test_two_in_a_row():
    check(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2), nn.ConvTranspose2d(6, 3, 2, 2)), image())
    check(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2), nn.BatchNorm2d(6), nn.GELU(), nn.ConvTranspose2d(6, 3, 2, 2)),
          image(), grads=("none", "inference", "backward"))


OPERANDS = [(1, 4, 10, 12), (2, 4, 1, 1), (2, 1, 10, 12), (10, 12), (4, 10, 12), (4, 1, 1), (1, 4, 1, 1), (1, 1, 1, 1),
            (12,), (1, 1, 10, 1), (2, 1, 1, 1), (), (10, 1), (2, 4, 10, 1), (1, 1, 1, 12)]


@pytest.mark.parametrize("shape", OPERANDS)
def test_operands_of_every_shape(shape):
    operations = (torch.add, torch.mul, torch.sub, torch.div, torch.maximum)
    operation, operand = operations[OPERANDS.index(shape) % 5], torch.rand(shape) + 0.5
    check(Up(lambda m, x, t: F.relu(operation(m.u(x), t))), image(), operand, grads=("none",))
    check(Up(lambda m, x, t: torch.tanh(operation(t, F.gelu(m.u(x))))), image(), operand, grads=("none",))


@pytest.mark.parametrize("dtype", (torch.float64, torch.int64, torch.float16, torch.bool))
def test_operands_of_another_type(dtype):
    operand = (torch.rand(4, 1, 1) * 3 + 1).to(dtype)
    check(Up(lambda m, x, t: F.relu(m.u(x)) * t), image(), operand, grads=("none",))
    check(Up(lambda m, x, t: F.relu(m.u(x)) + t.flatten()[0]), image(), operand, grads=("none",))


@pytest.mark.parametrize("training", (True, False))
def test_a_norm_that_nobody_reads(training):
    def function(m, x):
        y = m.u(x)
        m.layers[0](y)
        return F.relu(y)

    check(Up(function, nn.BatchNorm2d(4)).train(training), image(), grads=("none", "backward"))


def test_arguments_by_keyword():
    w, b = torch.randn(4, 3, 3, 3), torch.randn(3)
    for function in (lambda x, w, b: F.conv_transpose2d(input=x, weight=w),
                     lambda x, w, b: F.conv_transpose2d(bias=b, weight=w, input=x, stride=2).relu(),
                     lambda x, w, b: F.conv_transpose2d(x, weight=w, bias=b, output_padding=1, stride=(2, 3)),
                     lambda x, w, b: torch.conv_transpose2d(input=x, weight=w, bias=None, dilation=2).relu(),
                     lambda x, w, b: F.relu(input=F.conv_transpose2d(x, w, b))):
        check(function, image(), w, b)


def test_outputs_of_extent_nothing():
    check(nn.Sequential(nn.ConvTranspose2d(4, 3, 2, 2), nn.ReLU()), torch.randn(0, 4, 5, 6), grads=("none",))
    check(Up(lambda m, x: F.relu(m.u(x)[:, :0])), image(), grads=("none",))
    check(Up(lambda m, x: F.relu(m.u(x)[:, :, 4:4]).sum(1)), image(), grads=("none",))


def test_meta_tensors():
    model = nn.Sequential(nn.ConvTranspose2d(4, 3, 2, 2), nn.BatchNorm2d(3), nn.ReLU()).eval().to("meta")
    wrong = differences(model, (torch.empty(2, 4, 5, 6, device="meta"),))
    assert not wrong, "; ".join(wrong)


def test_graphs_without_example_values():
    """A graph from fx, handed to the backend by hand."""
    if as_eager.BACKEND != "upweave":
        pytest.skip("the backend itself is called")
    model, x = nn.Sequential(nn.ConvTranspose2d(4, 3, 2, 2), nn.BatchNorm2d(3), nn.ReLU()).eval(), image()
    with torch.no_grad():
        result = ut.backend(torch.fx.symbolic_trace(model), [x], options={"rest": "eager", "take": "all"})(x)
        result = result[0] if isinstance(result, (tuple, list)) else result
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)


def test_views_behind_contiguous():
    check(Up(lambda m, x: m.u(x).permute(0, 2, 3, 1).contiguous().view(2, -1)), image(), grads=("none", "backward"))
    check(Up(lambda m, x: m.u(x).relu().permute(0, 2, 3, 1).reshape(-1, 4)), image(), grads=("none", "backward"))
    check(Up(lambda m, x: m.u(x).contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).view(2, -1)),
          image(), grads=("none", "backward"))
    check(Up(lambda m, x: m.u(x).flatten(2).transpose(1, 2)), image(), grads=("none", "backward"))


LAYOUTS = {
    "flatten": lambda m, x: m.u(x).flatten(2),
    "permute": lambda m, x: m.u(x).permute(0, 2, 3, 1),
    "layer norm": lambda m, x: m.layers[0](m.u(x).permute(0, 2, 3, 1)),
    "layer norm and back": lambda m, x: m.layers[0](m.u(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "softmax": lambda m, x: m.u(x).permute(0, 2, 3, 1).softmax(-1),
    "relu": lambda m, x: F.relu(m.u(x)),
    "sum": lambda m, x: m.u(x).sum(1, keepdim=True) + m.u(x),
    "pool": lambda m, x: F.max_pool2d(m.u(x), 2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_as_eager_has_them(name):
    check(Up(LAYOUTS[name], nn.LayerNorm(4)), image(), grads=("none", "inference", "forward", "backward"))
