"""Random functions through torch.compile: nothing raises, and everything a caller sees is as eager has it."""

import time
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import as_eager  # noqa: E402
import random_functions  # noqa: E402
import upweave.torch as ut  # noqa: E402
from as_eager import EFFORT, Mode, compiled, differences, fresh_seed  # noqa: E402

COUNT, SECONDS = int(150 * EFFORT), 120 * EFFORT
NO_DOUBLE = "does not currently support double backward"  # PyTorch's own words; Inductor says them too


def wrong_with(program, data=0, call=None):
    """How the compiled program differs, or None where eager itself does not run it."""
    torch._dynamo.reset()
    model, args = program.make(data)
    mode = program.mode
    try:
        eager_model, eager_args = program.make(data)
        as_eager._run(eager_model, eager_model, eager_args, mode, program.inner)
    except Exception:
        return None
    found = differences(model, args, mode, inner=program.inner, call=call)
    if mode.grad == "double" and any(NO_DOUBLE in w for w in found):
        return []
    return found


def fails(program):
    """On three draws of the data: a step that one draw stands on is no fault."""
    return all(wrong_with(program, data) for data in (0, 1, 2))


def pytorchs_own(program, found):
    """Whether AOTAutograd, or Inductor where the rest goes there, differs alone from eager in all that was found."""
    backend = "inductor" if program.mode.rest == "inductor" else "aot_eager"
    alone = wrong_with(program, call=lambda m: compiled(m, backend=backend, dynamic=program.mode.dynamic))
    return {w.partition(":")[0] for w in found} <= {w.partition(":")[0] for w in alone or ()}


def runs(count, seconds, pure=False, change=lambda program: program):
    """Programs that eager runs, with what is wrong with each, until there are enough or the time is over."""
    first, start, number, seed = fresh_seed(), time.monotonic(), 0, 0
    print(f"\nUPWEAVE_TEST_SEED={first}")
    while number < count and time.monotonic() - start < seconds:
        program = change(random_functions.generate((first * 1009 + seed) % 2**31, pure))
        seed += 1
        if program is None:
            continue
        found = wrong_with(program)
        if found is None:
            program.mode = replace(program.mode, grad="none")  # what cannot be differentiated can still be run
            found = wrong_with(program)
        if found is None:
            continue
        number += 1
        yield program, found


owned = []  # programs that PyTorch alone gets wrong: a generator that writes many of them hides ours


def judge(program, found):
    if found and fails(program):
        if as_eager.BACKEND == "upweave" and pytorchs_own(program, found):
            print(f"PyTorch alone differs as well: {'; '.join(found)}\n{program}")
            owned.append(program)
            return None
        small = random_functions.shrink(program, fails)
        return f"{'; '.join(wrong_with(small) or found)}\n{small}"
    return None


def test_random_functions():
    torch._dynamo.config.recompile_limit = 64
    start, failures, number, calls = time.monotonic(), [], 0, ut.statistics().calls
    for program, found in runs(COUNT, SECONDS):
        number += 1
        failure = judge(program, found)
        if failure:
            failures.append(failure)
            print(failure)
        if len(failures) >= 5:
            break
    calls = ut.statistics().calls - calls
    print(f"{number} functions, {calls} calls of Upweave, {time.monotonic() - start:.0f} s")
    assert not failures, f"{len(failures)} of {number}:\n" + "\n".join(failures)
    assert len(owned) <= 2 + number / 20, "PyTorch alone differs too often for this to be a test of ours"
    assert number >= COUNT / 10, "most of the time went elsewhere"
    if as_eager.BACKEND == "upweave":
        assert calls >= number / 4, "hardly any function reached us, so nothing was tested"


def test_random_functions_with_inductor():
    """What is not ours goes to Inductor. It raises itself on some transforms and on some dynamic shapes."""
    failures = []

    def change(program):
        mode = replace(program.mode, rest="inductor", dynamic=None)
        return None if "torch.func" in program.source() else replace(program, mode=mode)

    for program, found in runs(max(2, int(4 * EFFORT)), 30 * EFFORT, change=change):
        failure = judge(program, found)
        failures += [failure] if failure else []
    assert not failures, "\n".join(failures)


TRANSFORMS = {
    "vmap": lambda f, x: torch.vmap(f)(torch.stack((x, x * 0.5))),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).double().square().sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),)),
    "vjp": lambda f, x: torch.func.vjp(lambda x: f(x).sum(), x)[1](torch.ones((), dtype=f(x).dtype)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_around_random_functions(name):
    """functorch around a compiled function of one tensor; those that eager cannot transform are passed over."""
    first, done, seed = fresh_seed(), 0, 0
    print(f"\nUPWEAVE_TEST_SEED={first}")
    start = time.monotonic()
    while done < 3 * EFFORT and seed < 60 and time.monotonic() - start < 20 * EFFORT:
        program = random_functions.generate((first * 1009 + seed) % 2**31, pure=True)
        seed += 1
        program.form, program.training, program.mode = "one", False, Mode(grad="forward", eps=program.mode.eps)
        program.inner = ()

        def transformed(model, *args):
            def one(x):
                return model(x, *(a.detach() for a in args[1:]))

            return TRANSFORMS[name](one, args[0].detach())

        def wrong(data=0):
            torch._dynamo.reset()
            model, args = program.make(data)
            return differences(lambda *args: transformed(model, *args), args, program.mode,
                               call=lambda _: lambda *args: transformed(compiled(model), *args))

        try:
            model, args = program.make()
            transformed(model, *args)
        except Exception:
            continue
        done += 1
        found = wrong()
        assert not (found and wrong(1) and wrong(2)), f"{name}: {'; '.join(found)}\n{program}"
    assert done
