"""Random modules around transposed convolutions, as Python source: views, in-place changes, grad modes, several
readers.

`generate(seed)` writes a program line by line and runs each line eagerly as it goes, so that what it writes is what
PyTorch accepts; `shrink` takes away whatever a failing one does not need. Constructs that aot_eager or Inductor get
wrong themselves are left out, each with a word where it would stand.
"""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import replace
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from as_eager import Mode
from random_program import Program, shrink  # noqa: F401

MOST = 6000  # elements of a value


def overlaps(t: Tensor) -> bool:
    """Whether two elements are one place in memory."""
    if not t.numel():
        return False
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    return torch.arange(span).as_strided(t.size(), t.stride()).unique().numel() < t.numel()


class Writer:
    """Writes one program."""

    def __init__(self, seed: int, pure: bool = False) -> None:
        self.random, self.pure = random.Random(seed), pure
        r = self.random
        grad = r.choices(("none", "inference", "forward", "backward", "double"), (40, 15, 5, 35, 5))[0]
        self.mode = Mode(grad=grad, dynamic=True if r.random() < 0.1 else None)
        self.autocast = not pure and r.random() < 0.07 and grad != "double"
        self.axes = r.choice((1, 2, 2, 2, 3))
        self.program = Program(seed, self.mode, training=r.random() < 0.6)
        self.names = 0
        self.module = nn.Module()
        self.space: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "self": self.module}
        self.values: list[str] = []  # what may be read
        self.deadline = time.monotonic() + 5

    # --- Small things ---

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    @property
    def learns(self) -> bool:
        return self.mode.grad in ("forward", "backward", "double")

    def grad_context(self) -> contextlib.AbstractContextManager:
        # Inference tensors cannot be told from others by shape, so generation under no_grad serves both.
        return torch.enable_grad() if self.learns else torch.no_grad()

    def tensors(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> list[str]:
        return [v for v in self.values if isinstance(self.space[v], Tensor) and wanted(self.space[v])]

    def pick(self, wanted: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        found = self.tensors(lambda t: t.is_floating_point() and wanted(t))
        if not found:
            return None
        # Late values more often, early ones and arguments still: several readers.
        late = [v for v in found if v.startswith("v")][-3:]
        return self.random.choice(late if late and self.random.random() < 0.7 else found)

    def argument(self, expression: str, learn: bool | None = None, prefix: str = "a") -> str:
        name = self.name(prefix)
        learn = self.learns and self.random.random() < 0.6 if learn is None else learn
        if learn:
            expression += ".requires_grad_()"
        self.space[name] = eval(expression, self.space)
        self.program.arguments.append((name, expression))
        return name

    def layer(self, prefix: str, expression: str) -> str:
        name = self.name(prefix)
        setattr(self.module, name, eval(expression, self.space).train(self.program.training))
        self.program.layers.append(f"{name} = {expression}")
        return f"self.{name}"

    def number(self) -> str:
        return self.random.choice(("2", "-1", "0.5", "1.25", "-0.3", "3", "1e-3", "True"))

    def write(self, text: str, *new: str) -> bool:
        """Runs a line; keeps it if it worked and what it made is tame."""
        saved = {n: self.space.get(n) for n in new}
        try:
            with self.grad_context():
                exec(text, self.space)
        except Exception:
            for n in new:
                self.space.pop(n, None)
                if saved[n] is not None:
                    self.space[n] = saved[n]
            return False
        for n in new:
            v = self.space[n]
            if isinstance(v, Tensor):
                wide = v.is_floating_point() and v.numel() and not v.detach().double().abs().max().item() < 1e4
                if v.numel() > MOST or wide:
                    self.space.pop(n)
                    return False
        self.program.body.append(text)
        self.values += [n for n in new if n not in self.values]
        return True

    def put(self, expression: str) -> bool:
        """A new value, at times made in another grad mode."""
        name, r = self.name("v"), self.random.random()
        text = f"{name} = {expression}"
        if r < 0.05:
            return self.write(f"with torch.no_grad():\n    {text}", name)
        if self.mode.grad == "inference":  # inside it aot_eager obeys enable_grad, which eager does not
            return self.write(text, name)
        if r < 0.08:
            return self.write(f"with torch.set_grad_enabled({self.random.random() < 0.5}):\n    {text}", name)
        if r < 0.1:
            return self.write(f"with torch.enable_grad():\n    {text}", name)
        return self.write(text, name)

    # --- What a line may be ---

    def start(self) -> None:
        r = self.random
        batch, channels = r.choice((1, 2, 2, 3)), r.choice((2, 4, 4, 6, 8))
        extents = [r.choice((3, 4, 5, 6, 7)) for _ in range(self.axes)]
        shape = [batch, channels, *extents]
        kind = r.random()
        text = f"torch.randn({', '.join(map(str, shape))})"
        if kind < 0.35 and self.axes > 1:
            text += f".to(memory_format=torch.channels_last{'' if self.axes == 2 else '_3d'})"
        elif kind < 0.45:
            text = f"torch.randn({', '.join(map(str, [shape[0], shape[1] + 2, *shape[2:]]))})[:, 1:-1]"
        elif kind < 0.55:
            text = f"torch.randn({', '.join(map(str, [*shape[:-2], shape[-1], shape[-2]]))}).transpose(-1, -2)"
        learn = self.learns and r.random() < 0.7
        self.values.append(self.argument(text + (".detach()" if learn else ""), learn))
        if r.random() < 0.3 and not self.pure:
            # AOTAutograd wants inputs that share memory and change not to need gradients.
            self.values.append(self.argument(f"{self.values[0]}.detach()[:, :2]", False)
                               if r.random() < 0.4 and not self.learns else self.argument(text))
        self.convolution()

    def convolution(self) -> bool:
        r = self.random
        v = self.pick(lambda t: t.dim() in (3, 4, 5) and t.shape[1] % 2 == 0 and 0 < t.shape[1] <= 16
                      and t.dtype == torch.float32 and all(t.shape[2:]))
        if v is None:
            return False
        t = self.space[v]
        axes, channels = t.dim() - 2, t.shape[1]
        groups = r.choice((1, 1, 1, 2))
        out = r.choice((1, 2, 3, 4)) * groups
        kernel = [r.choice((1, 2, 3, 4)) for _ in range(axes)]
        stride = [r.choice((1, 2, 2, 3)) for _ in range(axes)]
        dilation = [r.choice((1, 1, 1, 2)) for _ in range(axes)]
        padding = [r.randrange((d * (k - 1)) // 2 + 1) for k, d in zip(kernel, dilation)]
        extra = [r.randrange(max(s, d)) if r.random() < 0.3 else 0 for s, d in zip(stride, dilation)]
        if r.random() < 0.5:
            kernel, stride, dilation, padding, extra = ([x[0]] * axes for x in (kernel, stride, dilation, padding,
                extra))
        if r.random() < 0.5:
            made = self.layer("c", f"nn.ConvTranspose{axes}d({channels}, {out}, {tuple(kernel)}, {tuple(stride)}, "
                                   f"{tuple(padding)}, {tuple(extra)}, {groups}, {r.random() < 0.7}, {tuple(dilation)})")
            if r.random() < 0.1:
                self.program.layers.append(f"{made[5:]}.weight.requires_grad_(False)")
                exec(f"self.{made[5:]}.weight.requires_grad_(False)", self.space)
            return self.put(f"{made}({v})")
        weight = self.argument(f"(torch.randn({channels}, {out // groups}, {', '.join(map(str, kernel))}) * 0.4)")
        bias = self.argument(f"torch.randn({out})") if r.random() < 0.5 else None
        settings = {"stride": tuple(stride), "padding": tuple(padding), "output_padding": tuple(extra),
            "groups": groups,
                    "dilation": tuple(dilation)}
        if r.random() < 0.3:
            words = [("input", v), ("weight", weight), ("bias", bias), *settings.items()]
            r.shuffle(words)
            text = ", ".join(f"{a}={b}" for a, b in words)
        else:
            text = ", ".join([v, weight, str(bias), *(str(s) for s in settings.values())])
        return self.put(f"F.conv_transpose{axes}d({text})")

    def other_convolution(self) -> bool:
        v = self.pick(lambda t: t.dim() in (3, 4, 5) and t.dtype == torch.float32 and 0 < t.shape[1] <= 16
                      and all(t.shape[2:]))
        if v is None:
            return False
        r, t = self.random, self.space[v]
        axes, groups = t.dim() - 2, 2 if t.shape[1] % 2 == 0 and r.random() < 0.2 else 1
        kernel = [r.choice((1, 2, 3, 3)) for _ in range(axes)]
        words = [f"{t.shape[1]}", f"{r.choice((2, 4))}", f"{tuple(kernel)}"]
        words += [f"padding={r.choice((0, 1, 1, 2))}" if r.random() < 0.8 else "padding='same'"]
        words += [f"stride={r.choice((2, 3))}"] if r.random() < 0.3 and "same" not in words[-1] else []
        words += [f"dilation={r.choice((2, 3))}"] if r.random() < 0.2 else []
        words += [f"groups={groups}"] if groups > 1 else []
        words += [f"padding_mode='{r.choice(('reflect', 'replicate', 'circular'))}'"] if r.random() < 0.15 and not self.learns else []
        words += ["bias=False"] if r.random() < 0.3 else []
        made = self.layer("k", f"nn.Conv{axes}d({', '.join(words)})")
        if r.random() < 0.1 and self.mode.grad != "double":
            wrapped = f"{made[5:]} = torch.nn.utils.parametrizations.weight_norm(self.{made[5:]})"
            exec(f"self.{wrapped}", self.space)
            self.program.layers.append(wrapped)
        return self.put(f"{made}({v})")

    def network(self) -> bool:
        """What lies between convolutions: skips, cats, parts, larger images."""
        r, v = self.random, self.pick(lambda t: t.dim() in (3, 4, 5) and t.dtype == torch.float32 and all(t.shape))
        if v is None:
            return False
        t = self.space[v]
        axes, half = t.dim() - 2, max(1, t.shape[1] // 2)
        alike = self.tensors(lambda o: o.dim() == t.dim() and o.shape[2:] == t.shape[2:] and o.shape[0] == t.shape[0]
                             and o.dtype == t.dtype)
        other = r.choice(alike)
        mode = ("linear", "bilinear", "trilinear")[axes - 1]
        if not self.learns and r.random() < 0.1:
            return self.put(r.choice((f"F.pad({v}, (2, 1), mode='reflect')", f"F.pad({v}, (1, 1), mode='replicate')")))
        return self.put(r.choice((
            f"torch.cat(({v}, {other}), 1)", f"torch.cat(({other}, {v}.relu(), {v}), dim=1)", f"{v} + {other}",
            f"torch.cat({v}.split({half}, 1)[::-1], 1)", f"{v}[:, :{half}]", f"{v}[..., 1:-1]", f"{v}[:, {half}:] * 2",
            f"F.glu({v}, 1)", f"F.pad({v}, (1, 2))", f"F.pad({v}, (-1, 1), value=0.5)", f"F.prelu({v}, torch.tensor([0.2]))",
            f"F.interpolate({v}, scale_factor=2, mode='nearest')", f"F.interpolate({v}, scale_factor=2, mode='{mode}')",
            f"F.interpolate({v}, scale_factor=2, mode='{mode}', align_corners=True)", f"F.pixel_shuffle({v}, 2)",
            f"F.pixel_unshuffle({v}, 2)", f"{v} + torch.sin({v} * 0.7).pow(2) / 0.7", f"{v} * {v}.mean({tuple(range(2, axes + 2))}, "
            "keepdim=True).sigmoid()")))

    def activation(self) -> bool:
        v = self.pick()
        # No logsigmoid: aot_eager differentiates it wrongly on channels-last tensors. What eval-mode dropout returns is
        # added to, for aot_eager and Inductor give it memory of its own and so miss changes of it.
        form = self.random.choice((
            "F.relu({})", "torch.relu({})", "{}.relu()", "F.gelu({})", "F.gelu({}, approximate='tanh')",
            "torch.tanh({})",
            "torch.sigmoid({})", "F.leaky_relu({}, 0.2)", "F.silu({})", "F.mish({})", "F.hardswish({})",
            "F.hardtanh({})",
            "{}.clamp(-0.5, 0.7)", "{}.clamp(min=0.1)", "F.softplus({})", "F.elu({})", "{}.abs()", "{}.square()",
            "{}.neg()", "torch.exp(-{}.abs())", "F.dropout({}, 0.3, training=False) + 0", "{} * {}",
            "F.relu(input={})", "F.leaky_relu({}, negative_slope=0.01)", "F.hardsigmoid({})", "F.relu6({})",
            "{} * torch.sigmoid({})", "{} / ({}.abs() + 1)", "{}.add({}, alpha=2)", "torch.where({} > 0, {}, 0.1)"))
        return self.put(form.replace("{}", v))

    def norm(self) -> bool:
        r = self.random
        v = self.pick(lambda t: t.dim() in (3, 4, 5) and t.dtype == torch.float32 and t.shape[1] > 0
                      and t.numel() and t[0, 0].numel() >= 4 and t.numel() / t.shape[1] > 4)
        if v is None:
            return False
        t, kind = self.space[v], r.choice(("batch", "batch", "functional", "group", "instance", "layer", "read"))
        axes, channels = t.dim() - 2, t.shape[1]
        if kind == "group":
            return self.put(f"{self.layer('n', f'nn.GroupNorm({2 if channels % 2 == 0 else 1}, {channels})')}({v})")
        if kind == "instance":
            return self.put(f"{self.layer('n', f'nn.InstanceNorm{axes}d({channels}, affine={r.random() < 0.5})')}({v})")
        if kind == "layer":
            made = self.layer("n", f"nn.LayerNorm({channels})")
            return self.put(f"{made}({v}.movedim(1, -1)).movedim(-1, 1)")
        if kind == "functional":
            mean = self.argument(f"torch.randn({channels})", False)
            variance = self.argument(f"torch.rand({channels}) + 0.5", False)
            done = self.put(f"F.batch_norm({v}, {mean}, {variance}, training={r.random() < 0.6}, momentum=0.3)")
            self.values += [mean, variance] if r.random() < 0.5 else []
            return done
        made = self.layer("n", f"nn.BatchNorm{axes}d({channels}, affine={r.random() < 0.7}, momentum=0.3)")
        done = self.put(f"{made}({v})")
        if kind == "read":
            self.put(f"{made}.running_mean.clone() + 1")
            self.put(f"{made}.running_var * {made}.num_batches_tracked")
        return done

    def pool(self) -> bool:
        r = self.random
        v = self.pick(lambda t: t.dim() in (3, 4, 5) and t.dtype == torch.float32 and all(t.shape))
        if v is None:
            return False
        axes, kind = self.space[v].dim() - 2, r.random()
        if kind < 0.25:
            size = [r.choice((1, 2, 3, 5, 11)) for _ in range(axes)]
            return self.put(f"F.adaptive_{r.choice(('avg', 'max'))}_pool{axes}d({v}, "
                            f"{tuple(size) if r.random() < 0.5 else size[0]})")
        window, ceil = r.choice((1, 2, 2, 3)), r.random() < 0.3
        stride, padding = r.choice((None, 1, 2, 3)), r.randrange(window // 2 + 1)
        words = f"{window}" + (f", stride={stride}" if stride else "") + (f", padding={padding}" if padding else "")
        words += ", ceil_mode=True" if ceil else ""
        if kind < 0.6:
            return self.put(f"F.avg_pool{axes}d({v}, {words}{r.choice(('', ', count_include_pad=False'))})")
        return self.put(f"F.max_pool{axes}d({v}, {words}, dilation={r.choice((1, 1, 2, 3))})")

    def reduction(self) -> bool:
        v = self.pick(lambda t: t.dim() > 0 and t.numel() > 0)
        if v is None:
            return False
        r, dims = self.random, self.space[v].dim()
        axis = r.randrange(-dims, dims)
        several = tuple(sorted(r.sample(range(dims), r.randrange(1, dims + 1))))
        keep = r.random() < 0.6
        form = r.choice((f"{v}.sum({several}, keepdim={keep})", f"{v}.mean({several}, keepdim={keep})",
                         f"{v}.amax({several}, keepdim={keep})", f"{v}.max({axis}, keepdim={keep})[0]",
                         f"{v}.logsumexp({several}, keepdim={keep})", f"F.softmax({v}, {axis})", f"{v}.softmax({axis})",
                         f"F.log_softmax({v}, dim={axis})", f"{v}.sum()", f"{v}.mean(dim={axis})",
                         f"{v}.amin({several})",
                         f"torch.cumsum({v}, {axis})", f"{v}.sum({axis}, dtype=torch.float64)"))
        return self.put(form)

    def view(self) -> bool:
        v = self.pick(lambda t: t.dim() > 0)
        if v is None:
            return False
        r, t = self.random, self.space[v]
        dims, axis = t.dim(), r.randrange(t.dim())
        order = r.sample(range(dims), dims)
        n = t.shape[axis]
        low = r.randrange(n) if n else 0
        form = r.choice((
            f"{v}.permute({', '.join(map(str, order))})", f"{v}.transpose(0, {axis})",
            f"{v}.flatten({min(axis, dims - 1)})",
            f"{v}.reshape({t.shape[0]}, -1)", f"{v}.view({t.shape[0]}, -1)", f"{v}.view(-1)", f"{v}.unsqueeze({axis})",
            f"{v}.squeeze()", f"{v}.squeeze({axis})", f"{v}.select({axis}, {low})",
            f"{v}.narrow({axis}, {low}, {n - low})",
            f"{v}[..., ::2]", f"{v}[..., 1:]", f"{v}[:, 0]", f"{v}[:, :2]", f"{v}[None]", f"{v}[0]",
            f"{v}.chunk(2, {axis})[-1]", f"{v}.split(2, {axis})[0]", f"{v}.unbind({axis})[0]", f"{v}.contiguous()",
            f"{v}.clone()", f"{v}.unsqueeze(0).expand(2, {', '.join(['-1'] * dims)})", f"{v}.movedim({axis}, 0)",
            f"{v}.unfold({axis}, {min(2, n)}, 1)", f"{v}.detach()", f"{v}.mT", f"{v}.view_as({v})", f"{v}.flip({axis})",
            f"{v}.roll(1, {axis})", f"{v}.as_strided({tuple(t.shape)}, {t.stride()}, {t.storage_offset()})",
            f"{v}.diagonal(0, 0, {axis or -1})", f"torch.narrow_copy({v}, {axis}, 0, {max(n - 1, 0)})",
            f"{v}.narrow({axis}, {low}, 0)", f"{v}.to(memory_format=torch.channels_last)",
            f"{v}.contiguous(memory_format=torch.channels_last)", f"F.pad({v}, (1, 2))",
            f"{v}.repeat_interleave(2, {axis})",
            f"torch.where({v} > 0, 1.0, 0.0).view(torch.int32)", f"{v}.T" if dims == 2 else f"{v}.adjoint()",
            f"F.interpolate({v}, scale_factor=2)", f"F.pixel_shuffle({v}, 2)"))
        return self.put(form)

    def operand(self) -> bool:
        r, v = self.random, self.pick(lambda t: t.numel() > 0)
        if v is None:
            return False
        shape, kind = tuple(self.space[v].shape), r.random()
        sign = r.choice(("+", "-", "*", "+", "*"))
        if kind < 0.2:
            return self.put(r.choice((f"{v} {sign} {self.number()}", f"{self.number()} {sign} {v}", f"{v} / 3",
                                      f"torch.maximum({v}, torch.tensor(0.1))", f"1.5 - {v}", f"{v} ** 2",
                                      f"torch.add({v}, {self.number()}, alpha=2)", f"2 / ({v}.abs() + 1)")))
        if kind < 0.5:  # another value
            other = r.choice(self.tensors())
            return self.put(r.choice((f"{v} {sign} {other}", f"torch.maximum({v}, {other})",
                f"torch.cat(({v}, {other}), 0)",
                                      f"torch.cat([{other}, {v}], 1)", f"torch.stack(({v}, {other}))",
                                      f"torch.lerp({v}, {other}, 0.3)", f"torch.addcmul({v}, {other}, {other})")))
        mine = [n if r.random() < 0.5 else 1 for n in shape]
        mine = mine[r.randrange(len(mine) + 1):] if r.random() < 0.4 else mine
        size = "(" + "".join(f"{n}, " for n in mine) + ")"
        dtype = r.random()
        if dtype < 0.75:
            made = self.argument(f"(torch.rand({size}) + 0.5)")
        elif dtype < 0.85:
            made = self.argument(f"(torch.rand({size}, dtype=torch.float64) + 0.5)")
        elif dtype < 0.95:
            made = self.argument(f"torch.randint(1, 4, {size})", False)
        else:
            made = self.argument(f"torch.rand({size}) > 0.4", False)
            sign = "*"
        if r.random() < 0.3:
            self.values.append(made)
        return self.put(r.choice((f"{v} {sign} {made}", f"{made} {sign} {v}", f"{v} / {made}" if dtype < 0.95 else
                                  f"{v} * {made}", f"torch.mul({v}, {made})", f"{v}.add({made})")))

    def cast(self) -> bool:
        v = self.pick()
        form = self.random.choice(("{}.double()", "{}.to(torch.float64).tanh().float()", "{}.float()",
            "{}.to({}.dtype)",
                                   "{}.half().float()", "{}.bfloat16().to(torch.float32)", "{}.type(torch.float64)",
                                   "{}.to(torch.float32)", "{} > 0", "{}.sign().int()"))
        done = self.put(form.replace("{}", v))
        if done and ("half" in form or "bfloat16" in form):
            self.mode = replace(self.mode, eps=max(self.mode.eps, 2.0 ** -10 if "half" in form else 2.0 ** -7))
        return done

    def change(self) -> bool:
        """In place: an argument, an intermediate value, a buffer, through a view or not."""
        if self.pure:
            return False
        r = self.random
        if r.random() < 0.15:
            v = self.pick(lambda t: 0 < t.numel() <= 2000 and t.dtype == torch.float32)
            if v is None:
                return False
            shape, made = tuple(self.space[v].shape), self.name("b")
            self.module.register_buffer(made, torch.ones(shape))
            self.program.layers.append(f"register_buffer('{made}', torch.ones({shape}))")
            line = r.choice((f"self.{made}.add_({v}.detach())", f"self.{made}.copy_({v}.detach())",
                             f"self.{made}.mul_(0.9).add_({v}.detach(), alpha=0.1)",
                             f"self.{made}[0] = {v}.detach()[0]",
                             f"self.{made} = {v}.detach() * 2"))
            return self.write(line) and self.put(f"{v} - self.{made}")
        v = self.pick(lambda t: not overlaps(t))  # functionalization refuses to change what overlaps itself
        if v is None:
            return False
        t, place = self.space[v], r.choice(("{}", "{}", "{}[:, :1]", "{}[..., ::2]", "{}.transpose(0, -1)",
            "{}.view(-1)",
                                            "{}[0]", "{}.permute(*reversed(range({}.dim())))", "{}.unsqueeze(0)",
                                            "{}.narrow(0, 0, 1)", "{}.detach()", "{}.view_as({})"))
        place = place.replace("{}", v)
        # No masked_fill_: what functionalization makes of it loses a permuted layout.
        form = r.choice(("P.add_(1)", "P.mul_(2)", "P.mul_(0.5)", "P.clamp_(-0.5, 0.5)", "P.relu_()", "P.tanh_()",
                         "P.zero_()", "P.fill_(0.3)", "P.copy_(V.detach().mean())", "P.sub_(V.detach().mean())",
                         "P += 1",
                         "P *= V.detach().mean()", "V[:, 0] = 7", "V[..., -1] = V[..., 0].clone()",
                         "F.relu(P, inplace=True)",
                         "F.leaky_relu_(P, 0.1)", "torch._foreach_add_([P], 1.5)", "torch._foreach_mul_([P], [0.5])",
                         "V.index_put_((torch.tensor([0]),), torch.tensor(0.5))",
                         "V.index_fill_(0, torch.tensor([0]), 0.2)",
                         "torch.add(V.detach(), 1, out=P)",
                         "torch.sigmoid(V.detach(), out=V)", "P.addcmul_(V.detach().mean(), V.detach().amax())",
                         "P.add_(V.detach().amax((0,), keepdim=True))", "with torch.no_grad():\n    P.mul_(0.7)",
                         "P.data.add_(1)", "P.neg_()",
                         "V.scatter_(0, torch.zeros_like(V, dtype=torch.int64), 0.1)", "P.div_(2)", "P.pow_(2)",
                         "P.lerp_(torch.zeros_like(P), 0.5)", "torch.relu_(P)", "P.abs_()"))
        if form.startswith(("P +=", "P *=")) and place != v:  # the view needs a name
            name = self.name("p")
            return self.write(f"{name} = {place}\n" + form.replace("P", name).replace("V", v))
        text = form.replace("P", place).replace("V", v)
        backup = t.detach().clone()
        if not self.write(text):
            return False
        if not torch.isfinite(t.detach().double()).all() or t.numel() and t.detach().double().abs().max() > 1e4:
            with torch.no_grad():
                t.copy_(backup)
            self.program.body.pop()
            return False
        return True

    def functional(self) -> bool:
        v = self.pick(lambda t: t.dim() == 4 and t.dtype == torch.float32 and 0 < t.shape[1] <= 8 and 0 < t.numel() <= 600
                      and all(t.shape))
        if v is None:
            return False
        weight = self.argument(f"(torch.randn({self.space[v].shape[1]}, 2, 3, 3) * 0.4)")
        up = f"F.conv_transpose2d(t, {weight}, stride=2)"
        return self.put(self.random.choice((
            f"torch.vmap(lambda t: torch.tanh({up}))({v}.unsqueeze(0).repeat(2, 1, 1, 1, 1)).sum(0)",
            f"torch.vmap(lambda t: {up.replace('(t,', '(t[None],')}.relu())({v})",
            f"torch.func.grad(lambda t: F.softplus({up}).sum())({v})",
            f"torch.func.jvp(lambda t: torch.tanh({up}), ({v},), ({v}.cos(),))[1]",
            f"torch.func.vjp(lambda t: torch.tanh({up}), {v})[1](torch.tanh({up.replace('(t,', f'({v},')}))[0]",
            f"torch.func.jacrev(lambda t: {up}.tanh().mean((1, 2, 3)))({v})")))

    def write_all(self) -> Program:
        r, program = self.random, self.program
        self.start()
        choices = [(self.convolution, 12), (self.other_convolution, 12), (self.network, 14), (self.activation, 22), (self.norm, 10),
            (self.pool, 8),
                   (self.reduction, 8), (self.view, 22), (self.operand, 18), (self.cast, 3), (self.change, 40),
                   (self.functional, 1.5)]
        wanted = r.randrange(3, 12)
        for _ in range(120):
            if len(program.body) >= wanted or time.monotonic() > self.deadline:
                break
            r.choices([c for c, _ in choices], [w for _, w in choices])[0]()
        made = [v for v in self.values if v.startswith("v")]
        if not made:
            made = [self.values[0]]
        returns = [made[-1], *r.sample(made, min(len(made), r.randrange(3)))]
        if r.random() < 0.15:
            returns.append(r.choice(self.values))  # perhaps an argument itself
        if r.random() < 0.2:
            returns.append(f"{r.choice(made)}.detach()")
        program.returns = list(dict.fromkeys(returns)) if r.random() < 0.8 else returns
        program.form = r.choice(("tuple", "tuple", "list", "dict", "one"))
        if self.learns and r.random() < 0.4:
            program.inner = (0,)
        program.mode = replace(self.mode, autocast=self.autocast)
        return program


def generate(seed: int, pure: bool = False) -> Program:
    return Writer(seed, pure).write_all()
