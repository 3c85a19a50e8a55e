#!/usr/bin/env python3
"""The five pipelines on a GPU: correctness against float64 first, then time beside PyTorch in the same run.

Every contender is timed alike, between events on one stream. Burst: 25 runs after an idle second, their median; the median of
five such rounds. Sustained: a loop of two seconds. Our time holds the pre-pass; `pack + run` holds the weights' packing too.
Extra memory is what a run needs beside its tensors and its output. A first call compiles, with empty caches. --quick is for
little time: two short rounds, nothing sustained, and of PyTorch only torch.compile's default on the documents' layout in TF32.

The whole takes about 20 minutes. --json keeps every figure and continues where an earlier call with the same file ended,
--minutes says when to stop; --prepare compiles PyTorch's kernels in several processes before anything is timed.
"""
import argparse
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

from library import Library


def layer_norm(x):
    mean = x.mean(1, keepdim=True)
    return (x - mean) / torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)


def sum_layernorm(x, kernel):
    x = F.conv_transpose3d(x, kernel, stride=2, padding=1, output_padding=1) + 1.0
    return F.gelu(F.avg_pool3d(layer_norm(x), 2))


def layernorm_gelu(x, kernel):
    return F.gelu(layer_norm(F.conv_transpose3d(x, kernel, stride=2, padding=1))) * 1.0


def max_max_sum(x, kernel, conv_bias):
    x = F.conv_transpose3d(x, kernel, conv_bias, stride=2, padding=2)
    return F.max_pool3d(F.max_pool3d(x, 2), 3).sum(1, keepdim=True)


def softmax(x, kernel, scale):
    x = F.conv_transpose3d(F.avg_pool3d(x, 2), kernel, stride=2, padding=1, output_padding=1)
    x = torch.clamp(x, 0.0, 1.0)
    return torch.softmax(x.flatten(2), 2).view_as(x) * scale.view(1, -1, 1, 1, 1)


def batchnorm(x, kernel, bn_weight, bn_bias, gn_weight, gn_bias):
    x = F.conv_transpose2d(x, kernel, padding=1)
    x = F.batch_norm(x, None, None, bn_weight, bn_bias, True, 0.0, 1e-5)
    return F.group_norm(F.max_pool2d(torch.tanh(x), 2), 8, gn_weight, gn_bias, 1e-5)


# slug, PyTorch, input, parameters
PIPELINES = [
    ("conv-transpose3d-sum-layernorm-avgpool-gelu", sum_layernorm, (32, 32, 16, 32, 32), {"kernel": (32, 64, 3, 3, 3)}),
    ("conv-transpose3d-layernorm-gelu-scaling", layernorm_gelu, (32, 32, 16, 32, 32), {"kernel": (32, 64, 4, 4, 4)}),
    ("conv-transpose3d-max-max-sum", max_max_sum, (16, 32, 32, 32, 32), {"kernel": (32, 64, 5, 5, 5), "conv_bias": (64,)}),
    ("conv-transpose3d-avgpool-clamp-softmax-multiply", softmax, (32, 32, 32, 64, 64),
     {"kernel": (32, 64, 3, 3, 3), "scale": (64,)}),
    ("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", batchnorm, (512, 64, 32, 32),
     {"kernel": (64, 128, 5, 5), "bn_weight": (128,), "bn_bias": (128,), "gn_weight": (128,), "gn_bias": (128,)}),
]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DTYPES |= {str(t).removeprefix("torch."): t for t in DTYPES.values()}
# The largest relative Frobenius error that is still right: float32's or TF32's, beside the rounding of a 16-bit output.
LIMITS = {"strict": 2e-6, "fast": 1e-3}
# A graph would copy the input into a place of its own first.
MODES = {"eager": None, "compile": "default", "autotune": "max-autotune-no-cudagraphs"}


def burst(f, rounds, idle, runs=25):
    medians = []
    for _ in range(rounds):
        for _ in range(3):
            f()
        torch.cuda.synchronize()
        time.sleep(idle)
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
        for begin, end in events:
            begin.record()
            f()
            end.record()
        torch.cuda.synchronize()
        medians.append(statistics.median(b.elapsed_time(e) for b, e in events))
    return statistics.median(medians)


def sustained(f, seconds):
    """Milliseconds a run over the second half of a loop: in the first, the clock settles under the power cap."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start, runs = time.time(), 0
    while (passed := time.time() - start) < seconds:
        if runs == 0 and passed >= seconds / 2:
            begin.record()
        for _ in range(20):
            f()
        runs += 20 if passed >= seconds / 2 else 0
        torch.cuda.synchronize()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / runs


def profile(f, runs=10):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
        for _ in range(runs):
            f()
        torch.cuda.synchronize()
    for e in sorted(p.key_averages(), key=lambda e: -e.device_time_total):
        print(f"    {e.key[:40]:40} {e.device_time_total / runs:9.1f} us", flush=True)


def error(output, truth):
    e = output.double().view(truth.shape) - truth
    return (e.norm() / truth.norm()).item(), (e.abs().max() / truth.abs().max()).item()


def times(row, run, args):
    row["burst_ms"] = burst(run, args.rounds, args.idle)
    if args.sustained:
        row["sustained_ms"] = sustained(run, args.sustained)


class Truths:
    """What a pipeline gives in float64, computed once for each element type that the tensors were rounded to."""

    def __init__(self, function):
        self.function, self.known = function, {}

    def of(self, dtype, given):
        if dtype not in self.known:
            self.known.clear()  # gigabytes each
            with torch.no_grad():
                self.known[dtype] = self.function(*[t.double() for t in given.values()])
        return self.known[dtype]


def name_of(who):
    return " ".join(("upweave" if len(who) == 2 else "torch", *who))


def ours(library, slug, truths, tensors, dtype, precision, args):
    row = {"pipeline": slug, "who": name_of((dtype, precision))}
    given = {name: t.to(DTYPES[dtype]) for name, t in tensors.items()}
    for key in ("first_s", "cached_s"):  # compiled, and with the kernels from disk
        start = time.time()
        plan = library.plan(slug, given, precision)
        row[key] = time.time() - start
    row["predicted_ms"], row["floor_ms"] = plan.predicted()
    results = []
    for _ in range(2):
        plan.output.fill_(float("nan"))
        plan.workspace.fill_(255)
        plan.run()
        torch.cuda.synchronize()
        results.append(plan.output.clone())
    row["same_bits"] = torch.equal(results[0], results[1])  # a NaN that was left is unequal to itself
    if not args.no_check:
        truth = truths.of(DTYPES[dtype], given)
        row["rel_frobenius"], row["max_over_max"] = error(results[0], truth)
        # What rounding the truth itself would err by: much where a softmax's outputs are float16's subnormals. 2% more, for it is
        # not the truth that was rounded.
        rounding = 0 if dtype == "f32" else 1.02 * error(truth.to(DTYPES[dtype]), truth)[0]
        row["right"] = row["same_bits"] and row["rel_frobenius"] <= LIMITS[precision] + rounding
        if not row["right"]:
            return row
    del results
    row["extra_mb"] = plan.workspace.numel() / 1e6
    times(row, plan.run, args)
    row["pack_and_run_ms"] = burst(plan.pack_and_run, args.rounds, args.idle)
    if args.profile:
        profile(plan.run)
    if args.explain:
        print(plan.explain())
    return row


def contender(function, tensors, mode, layout, precision):
    """PyTorch's function and what it is called with."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch._dynamo.reset()
    f = torch.compile(function, mode=MODES[mode]) if MODES[mode] else function
    given = list(tensors.values())
    if layout == "channels-last":
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        given = [t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t for t in given]
    return lambda: f(*given)


def theirs(slug, truths, tensors, mode, layout, precision, args):
    row = {"pipeline": slug, "who": name_of((mode, layout, precision))}
    f = contender(truths.function, tensors, mode, layout, precision)
    with torch.no_grad():
        start = time.time()
        result = f()
        torch.cuda.synchronize()
        row["compile_s"] = time.time() - start
        if not args.no_check:
            row["rel_frobenius"], row["max_over_max"] = error(result.contiguous(), truths.of(torch.float32, tensors))
        size = result.numel() * result.element_size()
        del result
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f()
        torch.cuda.synchronize()
        row["extra_mb"] = (torch.cuda.max_memory_allocated() - before - size) / 1e6
        times(row, f, args)
    return row


def make_tensors(input_shape, parameters):
    tensors = {"input": torch.randn(input_shape, device="cuda")}
    for name, shape in parameters.items():  # kernels are scaled so that nothing saturates
        tensors[name] = torch.randn(shape, device="cuda") * (0.05 if name == "kernel" else 1.0)
    return tensors


def prepare(missing, jobs):
    """Compiles PyTorch's contenders in `jobs` processes at once, into inductor's cache: the time of most rows. Which of
    its kernels are fastest is not kept: it was measured with others on the GPU, and the row itself finds out again."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor"))
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": threads, "OMP_NUM_THREADS": threads}
    tasks = [(slug, who) for slug, who in missing if len(who) == 3 and MODES[who[0]]]
    running, start = [], time.time()
    while tasks or running:
        while tasks and len(running) < jobs:
            slug, who = tasks.pop(0)
            command = [sys.executable, __file__, "--only", slug, "--precisions", "none", "--compile-alone"]
            command += ["--torch", who[0], "--layouts", who[1], "--torch-precisions", who[2]]
            running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        running = [process for process in running if process.poll() is None]
        time.sleep(0.1)
    for choice in pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.best_config"):
        choice.unlink()
    print(f"prepared in {time.time() - start:.0f} s", flush=True)


class Table:
    """The rows so far, and the file that keeps them from one call to the next."""

    def __init__(self, path, head):
        self.path, self.head, self.rows = path, head, []
        if not path or not os.path.exists(path):
            return
        with open(path) as file:
            old = json.load(file)
        for key in ("gpu", "torch", "cuda", "cudnn", "rounds", "idle_s", "sustained_s"):
            if old.get(key) != head[key]:
                raise SystemExit(f"{path} was measured with {key} = {old.get(key)}, not {head[key]}: name another file")
        # What PyTorch cannot do it could not do the second time either; ours is tried again.
        self.rows = [row for row in old["rows"] if "burst_ms" in row or row["who"].startswith("torch")]

    def has(self, slug, who):
        return any(row["pipeline"] == slug and row["who"] == name_of(who) for row in self.rows)

    def add(self, row):
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.path:
            with open(self.path + ".new", "w") as file:
                json.dump({**self.head, "rows": self.rows}, file, indent=1)
            os.replace(self.path + ".new", self.path)


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def summary(table):
    columns = [("burst_ms", "burst", 9), ("pack_and_run_ms", "pack+run", 9), ("sustained_ms", "sustained", 9),
               ("predicted_ms", "predicted", 9), ("floor_ms", "floor", 7), ("extra_mb", "extra MB", 9),
               ("rel_frobenius", "rel. error", 10), ("first_s", "first s", 7), ("cached_s", "cached s", 8)]
    order = [slug for slug, *_ in PIPELINES]
    table = sorted(table, key=lambda row: (order.index(row["pipeline"]), row["who"].startswith("torch")))
    print(f"\n{'pipeline':50} {'who':34}" + "".join(f" {title:>{width}}" for _, title, width in columns))
    for row in table:
        cells = []
        for key, _, width in columns:
            form = ".1e" if key == "rel_frobenius" else ".0f" if key == "extra_mb" else ".3f"
            cells.append(f" {row[key]:{width}{form}}" if key in row else " " * (width + 1))
        flaw = "" if row.get("right", True) else "  WRONG"
        print(f"{row['pipeline']:50} {row['who']:34}{''.join(cells)}{flaw} {row.get('failed', '')}")
    by = {(row["pipeline"], row["who"]): row["burst_ms"] for row in table if "burst_ms" in row}
    slugs = [slug for slug, *_ in PIPELINES if any(row["pipeline"] == slug for row in table)]
    print()
    for who, layout in itertools.product(("f32 fast", "f32 strict"), ("contiguous", "channels-last")):
        ratios = []
        for slug in slugs:
            peers = [ms for (of, name), ms in by.items() if of == slug and "torch" in name and f"{layout} tf32" in name]
            if peers and (slug, f"upweave {who}") in by:
                ratios.append(min(peers) / by[slug, f"upweave {who}"])
        if ratios:
            print(f"upweave {who} against PyTorch's best in TF32, {layout}: {geometric_mean(ratios):.2f}x in the geometric mean "
                  f"({', '.join(f'{r:.2f}' for r in ratios)})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", default="libupweave.so")
    parser.add_argument("--only", default="", help="words, one of which a pipeline's name must have: softmax,max-max")
    parser.add_argument("--dtypes", default="f32,f16,bf16", help="of our runs")
    parser.add_argument("--precisions", default="strict,fast", help="of our runs, or none")
    parser.add_argument("--torch", default="eager,compile,autotune", help="PyTorch's modes, or none")
    parser.add_argument("--layouts", default="contiguous,channels-last", help="PyTorch's")
    parser.add_argument("--torch-precisions", default="tf32,fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=1.0, help="seconds before a round")
    parser.add_argument("--sustained", type=float, nargs="?", default=2.0, const=2.0, help="seconds, or 0")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--no-check", action="store_true", help="times alone")
    parser.add_argument("--profile", action="store_true", help="our kernels' own times")
    parser.add_argument("--json", default="", help="a file for every figure; rows that it has are not measured again")
    parser.add_argument("--minutes", type=float, default=0, help="start no row after so long; the file is continued later")
    parser.add_argument("--prepare", type=int, default=0, metavar="JOBS", help="compile PyTorch's kernels ahead, so many at once")
    parser.add_argument("--compile-alone", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.idle, args.sustained = 2, 0.3, 0
        args.torch, args.layouts, args.torch_precisions = "compile", "contiguous", "tf32"
    words = lambda text: [w for w in text.split(",") if w and w != "none"]
    kinds = list(itertools.product(words(args.dtypes), words(args.precisions)))
    peers = list(itertools.product(words(args.torch), words(args.layouts), words(args.torch_precisions)))
    torch.manual_seed(seed := int(time.time()))
    torch.backends.cudnn.benchmark = not args.compile_alone
    pipelines = [p for p in PIPELINES if not args.only or any(word in p[0] for word in args.only.split(","))]
    if args.compile_alone:
        for (_, function, *shapes), who in itertools.product(pipelines, peers):
            with torch.no_grad():
                contender(function, make_tensors(*shapes), *who)()
        return 0
    start = time.time()
    head = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "seed": seed, "rounds": args.rounds, "idle_s": args.idle,
            "sustained_s": args.sustained}
    print(json.dumps(head), flush=True)
    table = Table(args.json, head)
    if args.prepare:
        prepare([(p[0], who) for p, who in itertools.product(pipelines, peers) if not table.has(p[0], who)], args.prepare)
    cache = tempfile.TemporaryDirectory(prefix="upweave")  # empty, and NVRTC's own is off: first calls are cold
    os.environ |= {"UPWEAVE_CACHE": cache.name, "CUDA_CACHE_DISABLE": "1"}
    library = Library(args.library) if kinds else None
    left = 0
    for slug, function, *shapes in pipelines:
        tensors, truths = make_tensors(*shapes), Truths(function)
        for who in kinds + peers:
            if table.has(slug, who):
                continue
            if args.minutes and time.time() - start > 60 * args.minutes:
                left += 1
                continue
            try:
                if len(who) == 2:
                    row = ours(library, slug, truths, tensors, *who, args)
                else:
                    row = theirs(slug, truths, tensors, *who, args)
            except Exception as failure:  # PyTorch's compilers have errors of many kinds
                row = {"pipeline": slug, "who": name_of(who), "failed": str(failure)[:300]}
                row["right"] = len(who) == 3
            table.add(row)
        del tensors, truths
    summary(table.rows)
    if left:
        print(f"{left} rows are left: the same call again continues")
    return 0 if not left and all(row.get("right", True) for row in table.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
