"""Many calls of plans from Python: threads, memory, forks, signals, extra outputs, odd arrays."""

import gc
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

import upweave
from test_plan import SHAPE, TEXT, plan, tensors  # noqa: F401 -- fixtures


def test_eight_threads_one_plan_same_bits(plan, tensors):
    expected = plan(**tensors)
    different = []

    def work():
        for _ in range(25):
            if not (plan(**tensors) == expected).all():
                different.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different


def test_others_run_while_a_plan_does(engine):
    """The interpreter's lock is free during a call: another thread's Python goes on."""
    x, k = np.ones((4, 32, 16, 16, 16), np.float32), np.ones((32, 32, 3, 3, 3), np.float32)
    plan = upweave.compile("conv_transpose kernel s2 | gelu", engine=engine, threads=1, input=x, kernel=k)
    running, seen = threading.Event(), [0]

    def call():
        running.set()
        plan(x, kernel=k)
        running.clear()

    thread = threading.Thread(target=call)
    thread.start()
    running.wait()
    while running.is_set():
        seen[0] += 1
    thread.join()
    assert seen[0] > 1000


def _resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_ten_thousand_calls_leak_nothing(engine):
    x, k = np.ones((1, 1, 64), np.float32), np.ones((1, 4, 2), np.float32)
    plan = upweave.compile("conv_transpose kernel", engine=engine, threads=1, input=x, kernel=k)
    wrong = np.ones((1, 1, 63), np.float32)

    def calls(n):
        for _ in range(n):
            plan(x, kernel=k)
            try:
                plan(wrong, kernel=k)
            except ValueError:
                pass

    calls(1000)
    gc.collect()
    before = _resident()
    calls(10_000)
    gc.collect()
    assert _resident() - before < 1 << 20  # a leaked output is 2 KB, a leaked sentence 100 bytes: both show


def test_plans_and_weights_leak_nothing(engine):
    x, k = np.ones((1, 8, 64), np.float32), np.ones((8, 64, 64), np.float32)

    def make(n):
        for _ in range(n):
            plan = upweave.compile("conv_transpose kernel", engine=engine, threads=1, input=x, kernel=k)
            plan.pack(kernel=k)

    make(50)
    before = _resident()
    make(300)
    assert _resident() - before < 4 << 20  # one leaked pack is 128 KB


@pytest.mark.parametrize("engine", ("cpu", "reference"))
def test_a_forked_child_goes_on(engine):
    """Threads do not come along with fork(), and multiprocessing forks: the child works alone, with the same bits."""
    code = ("import multiprocessing, sys, numpy as np, upweave\n"
            "x, k = np.ones((4, 32, 16, 16), np.float32), np.ones((32, 32, 4, 4), np.float32)\n"
            "p = upweave.compile('conv_transpose kernel s2 p1 | gelu', input=x, kernel=k, engine=sys.argv[1])\n"
            "def call(_): return p(x, kernel=k)\n"
            "y = call(0)\n"
            "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
            "    assert all((z == y).all() for z in pool.map(call, range(4)))\n")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, engine], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_daemon_may_be_in_a_call_when_python_ends():
    code = ("import threading, time, numpy as np, upweave\n"
            "x, k = np.ones((1, 8, 16, 16), np.float32), np.ones((8, 8, 4, 4), np.float32)\n"
            "p = upweave.compile('conv_transpose kernel s2 p1 | gelu', input=x, kernel=k, threads=1)\n"
            "def call():\n    while True: p(x, kernel=k)\n"
            "for _ in range(3): threading.Thread(target=call, daemon=True).start()\n"
            "time.sleep(0.1)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_signal_is_felt_and_the_plan_lives_on(plan, tensors):
    """A handler runs when the call that it interrupted has returned; what it raises comes out of that call."""
    import signal

    def stop(*_):
        raise KeyboardInterrupt

    expected = plan(**tensors)
    old = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            while True:
                plan(**tensors)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert (plan(**tensors) == expected).all()


def test_extra_outputs(tensors, engine):
    text = ("conv_transpose kernel bias s2 p1 as c | moments batch out stats | @c | batch_norm | relu out y "
            "| mean space drop")
    for dtype in (np.float32, np.float16):
        arrays = {name: t.astype(dtype) for name, t in tensors.items()}
        plan = upweave.compile(text, engine=engine, **arrays)
        assert plan.extra_outputs == {"stats": ("f32", (2, 7)),
                                      "y": ("f32" if dtype == np.float32 else "f16", (2, 7, 6, 7, 12))}
        result, extra = plan(**arrays)
        assert result.shape == (2, 7) and set(extra) == {"stats", "y"}
        assert extra["stats"].dtype == np.float32 and extra["y"].dtype == dtype
        c = upweave.compile("conv_transpose kernel bias s2 p1", engine=engine, **tensors)
        values = c(**{name: a.astype(np.float32) for name, a in arrays.items()}).astype(np.float64)
        np.testing.assert_allclose(extra["stats"][0], values.mean((0, 2, 3, 4)), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(extra["stats"][1], values.var((0, 2, 3, 4)), rtol=1e-4)
        assert plan.verify(**arrays) <= 1
        stats = np.full((2, 7), np.nan, np.float32)
        again, outs = plan(**arrays, outs={"stats": stats})
        assert outs["stats"] is stats and (stats == extra["stats"]).all() and (again == result).all()
        with pytest.raises(TypeError, match="stats has dtype f64"):
            plan(**arrays, outs={"stats": stats.astype(np.float64)})
        with pytest.raises(ValueError, match="stats has shape 2x6"):
            plan(**arrays, outs={"stats": stats[:, :6].copy()})
        with pytest.raises(TypeError, match="z is none of the pipeline's extra outputs"):
            plan(**arrays, outs={"z": stats})


def test_masks_are_not_ignored():
    x = np.ma.masked_array(np.ones((1, 2, 4), np.float32), mask=False)
    plan = upweave.compile("relu", input=(1, 2, 4))
    assert np.array_equal(plan(x), np.ones((1, 2, 4)))  # nothing is hidden
    x[0, 0, 0] = np.ma.masked
    with pytest.raises(ValueError, match="input has masked elements"):
        plan(x)
    with pytest.raises(ValueError, match="out has masked elements"):
        plan(np.ones((1, 2, 4), np.float32), out=x)


def test_a_negated_view_is_read_as_what_it_is():
    torch = pytest.importorskip("torch")
    z = torch.complex(torch.zeros(1, 2, 4), torch.arange(1.0, 9).reshape(1, 2, 4))
    x = torch._neg_view(z.imag.contiguous())
    assert x.is_neg() and x.is_contiguous()
    plan = upweave.compile("mul 2", input=(1, 2, 4))
    assert torch.equal(plan(x), -2 * z.imag)
    with pytest.raises(ValueError, match="out is a view that PyTorch negates"):
        plan(torch.ones(1, 2, 4), out=x)


def test_names_keep_what_follows_a_nul():
    x = np.ones((1, 2, 4), np.float32)
    plan = upweave.compile("add b", input=x.shape, b=(2,))
    with pytest.raises(TypeError, match=r"b\\x00c is none of the pipeline's tensors"):
        plan(x, **{"b\0c": np.ones(2, np.float32)})
    with pytest.raises(ValueError, match=r"no tensor named 'b\\x00c'"):
        upweave.compile("add b", input=x.shape, **{"b\0c": (2,)})
    with pytest.raises(ValueError, match=r"setting 's\\x00' is none"):
        upweave.compile("max_pool $s", input=x.shape, settings={"s\0": 2})


@pytest.mark.parametrize("arguments", [
    {"input": (1, 2, 2**70)}, {"input": (1, 2, 4), "threads": 2**40}, {"input": (1, 2, 4), "threads": -2**70},
    {"input": (1, 2, 4), "settings": {"s": (float("inf"), 1)}}, {"input": (1, 2, -2**63)}])
def test_numbers_beyond_what_fits_are_wrong_values(arguments):
    text = "max_pool $s" if "settings" in arguments else "relu"
    if arguments.get("threads") == 2**40:  # more threads than there can be is all that there are
        assert upweave.compile(text, **arguments).shape == (1, 2, 4)
        return
    with pytest.raises(ValueError):
        upweave.compile(text, **arguments)


def test_a_stream_beyond_a_pointer_is_a_wrong_value():
    plan = upweave.compile("relu", input=(1, 2, 4))
    with pytest.raises(ValueError, match="stream"):
        plan(np.ones((1, 2, 4), np.float32), stream=2**80)


def test_sentences_quote_little():
    x = np.ones((1, 2, 4), np.float32)
    plan = upweave.compile("relu", input=x.shape)
    for call in (lambda: plan(x, **{"z" * 10**6: x}), lambda: upweave.compile("z" * 10**5, input=x.shape),
                 lambda: upweave.compile("relu", input=x.shape, **{"\n" * 10**5: (1,)}),
                 lambda: upweave.compile("relu", input=x.shape, engine="\x1b" * 10**5)):
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        assert len(str(error.value)) < 700 and "\n" not in str(error.value) and "\x1b" not in str(error.value)
