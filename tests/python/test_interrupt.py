"""Ctrl-C during a call: it is felt between passes and tiles, nothing leaks, and the plan goes on being a plan."""

import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import upweave

TEXT = "conv_transpose kernel | sum channel"

# Minutes of work in some MB of memory. A shell's background jobs inherit a SIGINT that is ignored.
LONG = """
import signal, sys
import numpy as np, upweave
signal.signal(signal.SIGINT, signal.default_int_handler)
space, taps = (int(word) for word in sys.argv[2:])
x, k = np.ones((60, 8, *[space] * 3), np.float32), np.ones((8, 256, *[taps] * 3), np.float32)
plan = upweave.compile("conv_transpose kernel | sum channel", engine=sys.argv[1], threads=1, algorithm="direct",
                       input=x, kernel=k)
print("ready", flush=True)
plan(x, kernel=k)
"""


@pytest.mark.parametrize("engine, space, taps", (("cpu", 32, 11), ("reference", 16, 5)))
def test_ctrl_c_ends_a_long_call(engine, space, taps):
    """Sent to the process, as a terminal does; Python's own end to an unhandled KeyboardInterrupt follows."""
    child = subprocess.Popen([sys.executable, "-c", LONG, engine, str(space), str(taps)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(1)
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == -signal.SIGINT and errors.rstrip().endswith("KeyboardInterrupt")


class Alarm(Exception):
    pass


@pytest.fixture
def alarm():
    """A function that makes a signal's handler raise Alarm after so many seconds."""

    def ring(*_):
        raise Alarm

    old = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture
def work(random, engine):
    """A plan whose call takes a second or so, on two threads, and its tensors."""
    tensors = {"input": random.standard_normal((4, 8, 24, 24, 24), np.float32),
               "kernel": random.standard_normal((8, 96, 9, 9, 9), np.float32)}
    return upweave.compile(TEXT, engine=engine, threads=2, algorithm="direct", **tensors), tensors


def _resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_plan_survives_being_interrupted(work, alarm):
    plan, tensors = work
    start = time.perf_counter()
    expected = plan(**tensors)
    whole = time.perf_counter() - start
    out, spent = np.empty_like(expected), []
    for i in range(7):
        if i == 2:
            before = _resident()
        alarm(0.02)
        start = time.perf_counter()
        with pytest.raises(Alarm):
            plan(out=out, **tensors)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.7 * whole  # the load of the machine may stretch some
    assert _resident() - before < 2 << 20  # a leaked workspace is 20 MB
    assert (plan(**tensors) == expected).all()


def test_a_handler_that_raises_nothing_ends_nothing(work):
    plan, tensors = work
    expected, rung = plan(**tensors), []
    old = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.perf_counter()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        result = plan(**tensors)
        end = time.perf_counter()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert (result == expected).all() and len(rung) == 1 and rung[0] < end


def test_signals_are_the_main_threads_business(work, alarm):
    """A call in another thread runs to its end; the exception is raised where Python raises it."""
    plan, tensors = work
    expected, results, done = plan(**tensors), [], threading.Event()

    def call():
        results.append(plan(**tensors))
        done.set()

    threading.Thread(target=call).start()
    with pytest.raises(Alarm):
        alarm(0.05)
        done.wait()
    assert done.wait(60) and (results[0] == expected).all()


def test_a_compiled_model_is_interrupted_too(alarm):
    """Through torch.compile the exception is the same one."""
    torch = pytest.importorskip("torch")
    import upweave.torch

    model = torch.nn.Sequential(torch.nn.ConvTranspose3d(8, 48, 9), torch.nn.ReLU())
    run = torch.compile(model, backend="upweave", options={"rest": "eager", "take": "all"})
    x = torch.randn(3, 8, 24, 24, 24)
    with torch.no_grad():
        expected, calls = run(x), upweave.torch.statistics().calls
        alarm(0.02)
        with pytest.raises(Alarm):
            run(x)
        assert upweave.torch.statistics().calls == calls + 1
        assert torch.equal(run(x), expected)
