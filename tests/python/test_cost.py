"""Predictions of what ours and Inductor take, the decision between them, and measured choices on disk."""

import json
import math
import os
import stat
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.func import functionalize

import full_chains
import upweave
from upweave import _core
from upweave.torch import _autotune, _peer

GPU, CPU = torch.device("cuda"), torch.device("cpu")

# Milliseconds on an H200, full sizes, through torch.compile: ours (`fast`, with 0.2 of packing that a region with packed
# weights does not have) beside Inductor's TF32. The other 13 chains were faster by ours.
MEASURED = {3: (11.4, 2.17), 5: (5.76, 2.90), 10: (16.7, 5.35), 11: (1.23, 1.38), 13: (20.7, 7.29), 15: (1.58, 1.42),
            19: (10.7, 7.32), 26: (5.04, 1.93), 34: (11.1, 1.95), 38: (0.85, 2.14), 42: (6.47, 3.08), 44: (0.58, 0.53),
            61: (2.06, 1.59), 77: (12.4, 4.07), 91: (2.19, 1.84), 93: (1.47, 1.40), 100: (7.95, 6.69)}
PACKING = 0.2
# Inductor's times of all 30, contiguous, the same GPU on another day.
INDUCTOR = {2: 2.52, 3: 2.05, 5: 2.75, 10: 5.23, 11: 1.23, 13: 7.25, 15: 1.24, 16: 3.11, 19: 7.38, 20: 1.03, 26: 2.03,
            34: 1.92, 36: 0.52, 38: 2.14, 42: 3.14, 44: 0.59, 49: 1.14, 50: 3.81, 58: 3.60, 60: 4.39, 61: 1.51, 72: 4.68,
            74: 0.71, 77: 3.89, 78: 2.87, 89: 4.08, 91: 1.71, 93: 1.44, 96: 4.16, 100: 6.42}
# A chain whose convolution ran twice for its running statistics: what it takes once was not measured.
TWICE = {11, 15, 77}
SLUGS = {int(entry[0].split("-")[1]): entry[0] for entry in _core.catalog() if entry[0].startswith("kernelbench")}


def graph_of(function, *tensors):
    """The functional ATen graph of a function, with fake tensors for values."""
    with torch.no_grad():
        return make_fx(functionalize(lambda *x: function(*x)), tracing_mode="real")(*tensors).graph


def calls(graph):
    return [node for node in graph.nodes if node.op == "call_function"]


def chain_costs(number):
    """Seconds of ours and of theirs on an H200."""
    with FakeTensorMode():
        model, shapes = full_chains.make(number)
        model.requires_grad_(False)
        graph = graph_of(model, *(torch.empty(shape) for shape in shapes))
    tensors = {"input": shapes[0], "kernel": tuple(model.conv.weight.shape)}
    if number == 26:
        tensors["addend"] = shapes[1]
    ours = _core.predicted_seconds(SLUGS[number], True, {}, tensors, "f32", "cuda", "fast", "auto", 0)
    return ours, _peer.estimate(calls(graph), GPU, tf32=True)


@pytest.fixture(scope="module")
def chains():
    if torch.cuda.is_available() and "H200" not in torch.cuda.get_device_name():
        pytest.skip("the figures are an H200's")
    return {number: chain_costs(number) for number in full_chains.SIZES}


def test_chains_that_were_slower_on_the_gpu_are_left(chains):
    for number, (ours, theirs) in chains.items():
        if number in MEASURED and (MEASURED[number][0] - PACKING) > 1.1 * MEASURED[number][1]:
            assert not _peer.pays(ours, theirs, GPU), (number, ours, theirs)


def test_chains_that_were_faster_on_the_gpu_are_taken(chains):
    """All 13 that the table does not list, and of those in it 11, 38, 44 and 93. 15 is lost, whose gain is uncertain."""
    wanted = set(full_chains.SIZES) - set(MEASURED) | {11, 38, 44, 93}
    assert {number for number, costs in chains.items() if _peer.pays(*costs, GPU)} == wanted


def test_predictions_of_the_gpu_are_near_what_was_measured(chains):
    for number, (ours, theirs) in chains.items():
        assert 0.6 < theirs * 1e3 / INDUCTOR[number] < 1.5, (number, theirs)
        if number in MEASURED and number not in TWICE:
            assert 0.7 < ours * 1e3 / (MEASURED[number][0] - PACKING) < 1.35, (number, ours)


def conv(x, weight, bias=None, **how):
    return (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.dim() - 3](x, weight, bias, **how)


CASES = {
    "plain": lambda x, k: conv(x, k, stride=2),
    "relu": lambda x, k: conv(x, k, stride=2).relu(),
    "layer norm": lambda x, k: F.layer_norm(conv(x, k, stride=2), (2 * x.shape[-1],)),
    "batch norm": lambda x, k: F.batch_norm(conv(x, k, stride=2), None, None, training=True),
    "group norm": lambda x, k: F.group_norm(conv(x, k, stride=2), 4),
    "softmax": lambda x, k: torch.softmax(conv(x, k, stride=2), 1),
    "pool": lambda x, k: F.max_pool2d(conv(x, k, stride=2), 2),
    "mean": lambda x, k: conv(x, k, stride=2).mean((2, 3)),
    "two readers": lambda x, k: (lambda y: y * y.sigmoid())(conv(x, k, stride=2)),
    "logsumexp": lambda x, k: torch.logsumexp(conv(x, k, stride=2), 1),
    "grouped": lambda x, k: conv(x, k[:, :4], stride=2, groups=4),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", [GPU, CPU], ids=str)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_twice_the_batch_costs_more(case, device, memory_format):
    costs = []
    with FakeTensorMode():
        for batch in (8, 16, 32):
            x = torch.empty(batch, 16, 32, 32).to(memory_format=memory_format)
            nodes = calls(graph_of(CASES[case], x, torch.empty(16, 16, 2, 2)))
            costs.append(_peer.estimate(nodes, device, tf32=True))
    assert all(0 < cost < 1 for cost in costs)
    assert costs[0] < costs[1] < costs[2]
    assert costs[2] < 4.5 * costs[0]


def test_more_stages_cost_no_less():
    with FakeTensorMode():
        x, k = torch.empty(8, 64, 64, 64), torch.empty(64, 64, 2, 2)
        for device in (GPU, CPU):
            plain, relu, norm = (_peer.estimate(calls(graph_of(CASES[case], x, k)), device)
                                 for case in ("plain", "relu", "group norm"))
            assert plain < relu < norm


def test_float32_without_tf32_costs_more():
    with FakeTensorMode():
        nodes = calls(graph_of(CASES["plain"], torch.empty(32, 64, 64, 64), torch.empty(64, 64, 2, 2)))
    assert _peer.estimate(nodes, GPU, tf32=False) > _peer.estimate(nodes, GPU, tf32=True)


def test_layout_counts():
    with FakeTensorMode():
        k = torch.empty(32, 32, 2, 2, 2)
        x = torch.empty(2, 32, 64, 64, 64)
        last = x.to(memory_format=torch.channels_last_3d)
        for device in (GPU, CPU):
            costs = [_peer.estimate(calls(graph_of(CASES["plain"], t, k)), device, tf32=True) for t in (x, last)]
            assert costs[1] < costs[0]
            assert _peer.copies([x], device) == 0 < _peer.copies([last], device)


def test_symbolic_shapes_get_no_guards():
    seen = []

    def compiler(module, _):
        shape_env = next(v.fake_mode.shape_env for v in (n.meta.get("val") for n in module.graph.nodes)
                         if isinstance(v, torch.Tensor) and v.fake_mode.shape_env is not None)
        before = len(shape_env.guards), dict(shape_env.replacements)
        seen.append(_peer.estimate(calls(module.graph), CPU))
        outputs = [n.meta["val"] for n in calls(module.graph) if isinstance(n.meta.get("val"), torch.Tensor)]
        assert any(not isinstance(e, int) for v in outputs for e in v.shape), "nothing is symbolic here"
        _peer.copies(outputs, CPU)
        assert (len(shape_env.guards), dict(shape_env.replacements)) == before
        return module.forward

    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=compiler, inference_compiler=compiler)
    compiled = torch.compile(CASES["group norm"], backend=backend, dynamic=True)
    with torch.no_grad():
        for size in (9, 12, 17):
            compiled(torch.randn(3, 16, size, size + 2), torch.randn(16, 8, 2, 2))
    assert len(seen) == 1 and seen[0] > 0  # a guard of ours would have had it compiled again


TEXT = "conv_transpose kernel s2 p1 | relu"


def test_plans_predict():
    one, two = (upweave.compile(TEXT, input=(batch, 32, 64, 64), kernel=(32, 32, 4, 4), threads=1) for batch in (1, 4))
    assert 0 < one.predicted_seconds < two.predicted_seconds < 6 * one.predicted_seconds
    assert upweave.compile(TEXT, input=(0, 32, 8, 8), kernel=(32, 32, 4, 4)).predicted_seconds == 0


def test_predictions_of_the_cpu_are_near_what_it_takes():
    """Within a factor of three of the thread's own time, beside whatever else this machine does: a wrong unit or a
    forgotten term errs by more."""
    import numpy

    for text, shape, kernel in ((TEXT, (2, 64, 64, 64), (64, 64, 4, 4)), ("conv_transpose kernel s2", (1, 64, 96, 96), (64, 32, 2, 2)),
                                ("conv_transpose kernel s2 p1 op1 | layer_norm channel | gelu", (1, 32, 8, 16, 16), (32, 64, 3, 3, 3))):
        plan = upweave.compile(text, input=shape, kernel=kernel, threads=1)
        weights = plan.pack(kernel=numpy.random.default_rng(0).standard_normal(kernel, dtype="f"))
        x, out = numpy.zeros(shape, "f") + 1, numpy.zeros(plan.shape, "f")
        times = []
        for _ in range(12):
            start = time.thread_time()
            plan(x, weights=weights, out=out)
            times.append(time.thread_time() - start)
        assert 1 / 3 < plan.predicted_seconds / min(times[2:]) < 3, (text, plan.predicted_seconds, min(times))


# --- measured choices


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UPWEAVE_CACHE", str(tmp_path / "cache"))
    _autotune.forget()
    yield tmp_path / "cache"
    _autotune.forget()


class Way:
    def __init__(self, seconds):
        self.seconds, self.calls = seconds, 0

    def __call__(self):
        self.calls += 1
        time.sleep(self.seconds)


KEY = "a key"


def entry_of(cache):
    (found,) = cache.glob("*.tune")
    return found


def test_the_faster_is_chosen_and_remembered(cache):
    for fast, slow, expected in ((0.0, 0.01, True), (0.01, 0.0, False)):
        key = f"{KEY} {expected}"
        ours, theirs = Way(fast), Way(slow)
        assert _autotune.choose(key, ours, theirs) is expected
        seen = ours.calls, theirs.calls
        assert min(seen) > 2
        assert _autotune.choose(key, ours, theirs) is expected  # this process
        _autotune.forget()
        assert _autotune.choose(key, ours, theirs) is expected  # from disk
        assert (ours.calls, theirs.calls) == seen
    assert stat.S_IMODE(os.stat(cache).st_mode) & 0o077 == 0


def test_a_choice_takes_no_longer_than_it_may(cache):
    start = time.perf_counter()
    _autotune.choose(KEY, Way(0.2), Way(0.2))
    assert time.perf_counter() - start < 2  # a first call and one round of each, or a second


def damaged(path):
    """Ways in which an entry may be no entry."""
    whole = path.read_bytes()
    entry = json.loads(whole)
    yield "cut short", lambda: path.write_bytes(whole[:-9])
    yield "empty", lambda: path.write_bytes(b"")
    yield "no JSON", lambda: path.write_bytes(b"\x00\xff" * 50)
    yield "nested deeply", lambda: path.write_bytes(b"[" * 200000)
    yield "a list", lambda: path.write_text("[]")
    yield "another key", lambda: path.write_text(json.dumps({**entry, "key": "another"}))
    yield "changed", lambda: path.write_text(json.dumps({**entry, "ours": 1e9}))
    yield "not finite", lambda: path.write_text(json.dumps({**entry, "ours": math.nan}))
    yield "text for a number", lambda: path.write_text(json.dumps({**entry, "theirs": "1"}))
    yield "huge", lambda: path.write_bytes(whole + b" " * (2 << 20))

    def folder():
        path.unlink()
        path.mkdir()

    def link():
        other = path.with_suffix(".real")
        other.write_bytes(whole)
        path.unlink()
        path.symlink_to(other)

    def pipe():
        path.unlink()
        os.mkfifo(path)

    yield "a pipe", pipe
    yield "a link", link
    yield "a folder", folder


def test_damaged_entries_are_measured_again(cache):
    _autotune.store(KEY, 1.0, 2.0)
    path = entry_of(cache)
    assert _autotune.load(KEY) == (1.0, 2.0)
    for what, damage in list(damaged(path)):
        damage()
        assert _autotune.load(KEY) is None, what
        _autotune.forget()
        ours = Way(0)
        assert _autotune.choose(KEY, ours, Way(0.005)), what
        assert ours.calls > 0, what
        if what != "a folder":
            assert _autotune.load(KEY) is not None, what  # mended
            _autotune.store(KEY, 1.0, 2.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_entries_of_others_are_not_believed(cache):
    _autotune.store(KEY, 1.0, 2.0)
    os.chown(entry_of(cache), 12345, 12345)
    assert _autotune.load(KEY) is None


def test_without_a_folder_it_still_chooses(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file" / "below"), "/proc/nowhere"):
        monkeypatch.setenv("UPWEAVE_CACHE", place)
        _autotune.forget()
        assert _autotune.choose(KEY, Way(0), Way(0.005))
    _autotune.forget()


def test_what_a_way_raises_is_raised_and_not_remembered(cache):
    def broken():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        _autotune.choose(KEY, broken, Way(0))
    assert not list(cache.glob("*")) if cache.exists() else True
    assert _autotune.choose(KEY, Way(0), Way(0.005))


def test_threads_measure_once(cache):
    ours, theirs = Way(0.002), Way(0.001)
    results = []
    threads = [threading.Thread(target=lambda: results.append(_autotune.choose(KEY, ours, theirs))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [False] * 8
    assert ours.calls == theirs.calls <= _autotune.ROUNDS + 1


def test_processes_at_once(cache):
    program = ("import time, sys; from upweave.torch import _autotune\n"
               "print(_autotune.choose('shared', lambda: None, lambda: time.sleep(0.002)))")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    running = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
               for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["True"] * 3
    assert _autotune.load("shared") is not None
    assert [p.suffix for p in cache.iterdir()] == [".tune"]


def test_keys_tell_what_differs():
    x = torch.zeros(2, 3, 4, 5)
    keys = [_autotune.key(TEXT, {"input": x}, CPU), _autotune.key(TEXT + " | relu", {"input": x}, CPU),
            _autotune.key(TEXT, {"input": x[:1]}, CPU), _autotune.key(TEXT, {"input": x.half()}, CPU),
            _autotune.key(TEXT, {"input": x.to(memory_format=torch.channels_last)}, CPU),
            _autotune.key(TEXT, {"input": x}, CPU, precision="fast")]
    assert len(set(keys)) == len(keys)
    assert _autotune.key(TEXT, {"input": x}, CPU) == keys[0]
