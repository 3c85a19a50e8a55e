#!/usr/bin/env python3
"""The five pipelines on a GPU: correctness against float64 first, then time beside PyTorch in the same run.

Every contender is timed alike, between events on one stream. Burst: 25 runs after an idle second, their median; the median of
five such rounds. Sustained: a loop of two seconds. Our time holds the pre-pass; `pack + run` holds the weights' packing too.
Extra memory is what a run needs beside its tensors and its output. --quick is for little time: two short rounds, nothing
sustained, and of PyTorch only torch.compile's default on the documents' layout in TF32.
"""
import argparse
import itertools
import json
import math
import statistics
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
# The largest relative Frobenius error that is still right: float32's and TF32's, or one rounding of the output.
LIMITS = {(torch.float32, "strict"): 2e-6, (torch.float32, "fast"): 1e-3}
LIMITS |= {(t, p): e for t, e in ((torch.float16, 2e-3), (torch.bfloat16, 1.5e-2)) for p in ("strict", "fast")}
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


def ours(library, slug, function, tensors, dtype, precision, args):
    row = {"pipeline": slug, "who": f"upweave {dtype} {precision}"}
    given = {name: t.to(DTYPES[dtype]) for name, t in tensors.items()}
    start = time.time()
    plan = library.plan(slug, given, precision)
    row["compile_s"] = time.time() - start
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
        with torch.no_grad():
            truth = function(*[t.double() for t in given.values()])
        row["rel_frobenius"], row["max_over_max"] = error(results[0], truth)
        row["right"] = row["same_bits"] and row["rel_frobenius"] <= LIMITS[DTYPES[dtype], precision]
        del truth
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


def theirs(slug, function, tensors, mode, layout, precision, args):
    row = {"pipeline": slug, "who": f"torch {mode} {layout} {precision}"}
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch._dynamo.reset()
    f = torch.compile(function, mode=MODES[mode]) if MODES[mode] else function
    given = list(tensors.values())
    if layout == "channels-last":
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        given = [t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t for t in given]
    with torch.no_grad():
        start = time.time()
        result = f(*given)
        torch.cuda.synchronize()
        row["compile_s"] = time.time() - start
        if not args.no_check:
            truth = function(*[t.double() for t in tensors.values()])
            row["rel_frobenius"], row["max_over_max"] = error(result.contiguous(), truth)
            del truth
        size = result.numel() * result.element_size()
        del result
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        f(*given)
        torch.cuda.synchronize()
        row["extra_mb"] = (torch.cuda.max_memory_allocated() - before - size) / 1e6
        times(row, lambda: f(*given), args)
    return row


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def summary(table):
    columns = [("burst_ms", "burst", 9), ("pack_and_run_ms", "pack+run", 9), ("sustained_ms", "sustained", 9),
               ("predicted_ms", "predicted", 9), ("floor_ms", "floor", 7), ("extra_mb", "extra MB", 9),
               ("rel_frobenius", "rel. error", 10)]
    print(f"\n{'pipeline':50} {'who':34}" + "".join(f" {title:>{width}}" for _, title, width in columns))
    for row in table:
        cells = []
        for key, _, width in columns:
            form = ".1e" if key == "rel_frobenius" else ".0f" if key == "extra_mb" else ".3f"
            cells.append(f" {row[key]:{width}{form}}" if key in row else " " * (width + 1))
        flaw = "" if row.get("right", True) else "  WRONG"
        print(f"{row['pipeline']:50} {row['who']:34}{''.join(cells)}{flaw} {row.get('failed', '')}")
    by = {(row["pipeline"], row["who"]): row["burst_ms"] for row in table if "burst_ms" in row}
    slugs = list(dict.fromkeys(row["pipeline"] for row in table))
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
    parser.add_argument("--json", default="", help="a file for every figure")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.idle, args.sustained = 2, 0.3, 0
        args.torch, args.layouts, args.torch_precisions = "compile", "contiguous", "tf32"
    words = lambda text: [w for w in text.split(",") if w and w != "none"]
    kinds = list(itertools.product(words(args.dtypes), words(args.precisions)))
    peers = list(itertools.product(words(args.torch), words(args.layouts), words(args.torch_precisions)))
    library = Library(args.library)
    torch.manual_seed(seed := int(time.time()))
    torch.backends.cudnn.benchmark = True
    head = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "seed": seed, "rounds": args.rounds, "idle_s": args.idle,
            "sustained_s": args.sustained}
    print(json.dumps(head), flush=True)
    table = []
    for slug, function, input_shape, parameters in PIPELINES:
        if args.only and not any(word in slug for word in args.only.split(",")):
            continue
        tensors = {"input": torch.randn(input_shape, device="cuda")}
        for name, shape in parameters.items():  # kernels are scaled so that nothing saturates
            tensors[name] = torch.randn(shape, device="cuda") * (0.05 if name == "kernel" else 1.0)
        for who in kinds + peers:
            try:
                if len(who) == 2:
                    row = ours(library, slug, function, tensors, *who, args)
                else:
                    row = theirs(slug, function, tensors, *who, args)
            except RuntimeError as failure:
                row = {"pipeline": slug, "who": " ".join(who), "failed": str(failure)[:300], "right": False}
            table.append(row)
            print(json.dumps(row), flush=True)
            if args.json:  # what is known so far, should the machine go away
                with open(args.json, "w") as file:
                    json.dump({**head, "rows": table}, file, indent=1)
    summary(table)
    return 0 if all(row.get("right", True) for row in table) else 1


if __name__ == "__main__":
    raise SystemExit(main())
