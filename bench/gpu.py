#!/usr/bin/env python3
"""The five pipelines on a GPU: correctness against float64 first, then time beside PyTorch in the same run.

usage: gpu.py [--library libupweave.so] [--only words] [--rounds 5] [--idle 1.0] [--torch peers] [--sustained] [--json file]

Burst: 25 runs after an idle second, each between two events, the median; the median of five such rounds. Sustained: a loop
of two seconds. Our time holds the pre-pass; `pack + run` holds the weights' packing too.
"""
import argparse
import ctypes
import json
import statistics
import time

import torch
import torch.nn.functional as F

DEVICE = "cuda"


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
    ("conv-transpose3d-layernorm-gelu-scaling", layernorm_gelu, (32, 32, 16, 32, 32), {"kernel": (32, 64, 4, 4, 4)}),
    ("conv-transpose3d-sum-layernorm-avgpool-gelu", sum_layernorm, (32, 32, 16, 32, 32), {"kernel": (32, 64, 3, 3, 3)}),
    ("conv-transpose3d-avgpool-clamp-softmax-multiply", softmax, (32, 32, 32, 64, 64), {"kernel": (32, 64, 3, 3, 3), "scale": (64,)}),
    ("conv-transpose2d-batchnorm-tanh-maxpool-groupnorm", batchnorm, (512, 64, 32, 32),
     {"kernel": (64, 128, 5, 5), "bn_weight": (128,), "bn_bias": (128,), "gn_weight": (128,), "gn_bias": (128,)}),
    ("conv-transpose3d-max-max-sum", max_max_sum, (16, 32, 32, 32, 32), {"kernel": (32, 64, 5, 5, 5), "conv_bias": (64,)}),
]


class Setting(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class ShapeOf(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("extents", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_size_t)]


class TensorOf(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in ("dtype", "engine", "precision", "algorithm", "threads")]


class Call(ctypes.Structure):
    _fields_ = [("tensors", ctypes.POINTER(TensorOf)), ("count", ctypes.c_size_t), ("weights", ctypes.c_void_p),
                ("output", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


class Library:
    DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.upweave_last_error.restype = ctypes.c_char_p
        self.c.upweave_explain.restype = ctypes.c_char_p
        self.c.upweave_workspace_bytes.restype = ctypes.c_size_t
        self.c.upweave_output_rank.restype = ctypes.c_size_t
        self.c.upweave_output_extents.restype = ctypes.POINTER(ctypes.c_int64)

    def check(self, status):
        if status:
            raise RuntimeError(self.c.upweave_last_error().decode())

    def plan(self, slug, tensors, dtype, precision):
        pipeline, plan = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.c.upweave_named(slug.encode(), None, ctypes.c_size_t(0), ctypes.byref(pipeline)))
        shapes = (ShapeOf * len(tensors))()
        hold = []
        for s, (name, t) in zip(shapes, tensors.items()):
            extents = (ctypes.c_int64 * t.dim())(*t.shape)
            hold.append(extents)
            s.name, s.extents, s.rank = name.encode(), extents, t.dim()
        options = Options(self.DTYPES[dtype], 1, 1 if precision == "fast" else 0, 0, 0)
        self.check(self.c.upweave_compile(pipeline, shapes, ctypes.c_size_t(len(tensors)), ctypes.byref(options), ctypes.byref(plan)))
        return Plan(self, plan, tensors, dtype)


class Plan:
    def __init__(self, library, plan, tensors, dtype):
        self.library, self.plan, self.tensors = library, plan, tensors
        c = library.c
        rank, extents = c.upweave_output_rank(plan), c.upweave_output_extents(plan)
        self.output = torch.empty([extents[i] for i in range(rank)], device=DEVICE, dtype=dtype)
        self.workspace_bytes = c.upweave_workspace_bytes(plan)
        self.workspace = torch.empty(self.workspace_bytes, device=DEVICE, dtype=torch.uint8)
        self.stream = torch.cuda.current_stream().cuda_stream
        self.list = (TensorOf * len(tensors))()
        for entry, (name, t) in zip(self.list, tensors.items()):
            entry.name, entry.data = name.encode(), t.data_ptr()
        self.weights = ctypes.c_void_p()
        library.check(c.upweave_pack(plan, ctypes.byref(self.list[1]) if len(tensors) > 1 else None,
                                     ctypes.c_size_t(len(tensors) - 1), ctypes.c_void_p(self.stream), ctypes.byref(self.weights)))
        self.whole = Call(self.list, len(tensors), None, self.output.data_ptr(), self.workspace.data_ptr(), self.stream)
        self.packed = Call(self.list, 1, self.weights, self.output.data_ptr(), self.workspace.data_ptr(), self.stream)

    def run(self):
        self.library.check(self.library.c.upweave_run(self.plan, ctypes.byref(self.packed)))

    def pack_and_run(self):
        self.library.check(self.library.c.upweave_run(self.plan, ctypes.byref(self.whole)))

    def explain(self):
        return self.library.c.upweave_explain(self.plan).decode()


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


def sustained(f, seconds=2.0):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    f()
    torch.cuda.synchronize()
    start, runs = time.time(), 0
    while time.time() - start < seconds / 2:  # the clock settles
        for _ in range(20):
            f()
        torch.cuda.synchronize()
    begin.record()
    while time.time() - start < seconds:
        for _ in range(20):
            f()
        runs += 20
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
    e = output.double() - truth
    return (e.norm() / truth.norm()).item(), (e.abs().max() / truth.abs().max()).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="libupweave.so")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle", type=float, default=1.0)
    parser.add_argument("--precisions", default="fast,strict")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--torch", default="eager-tf32,compile-tf32,autotune-tf32,eager-fp32", help="peers: MODE-PRECISION, or none")
    parser.add_argument("--sustained", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument("--no-check", action="store_true", help="times alone")
    parser.add_argument("--profile", action="store_true", help="our kernels' own times")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    library = Library(args.library)
    torch.manual_seed(int(time.time()))
    torch.backends.cudnn.benchmark = True
    table = []
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    for slug, function, input_shape, parameters in PIPELINES:
        if args.only and not any(word in slug for word in args.only.split(",")):
            continue
        x = torch.randn(input_shape, device=DEVICE)
        tensors = {"input": x}
        for name, shape in parameters.items():
            tensors[name] = torch.randn(shape, device=DEVICE) * (0.05 if name == "kernel" else 1.0)
        truth = None
        for dtype_name in args.dtypes.split(","):
            dtype = getattr(torch, dtype_name)
            given = {name: t.to(dtype) for name, t in tensors.items()}
            if not args.no_check:
                with torch.no_grad():  # kernels are scaled so that nothing saturates
                    truth = function(*[t.double() for t in given.values()])
            for precision in [p for p in args.precisions.split(",") if p and p != "none"]:
                row = {"pipeline": slug, "who": f"upweave {precision} {dtype_name}"}
                try:
                    start = time.time()
                    plan = library.plan(slug, given, dtype, precision)
                    row["compile_s"] = time.time() - start
                    results = []
                    for _ in range(2):
                        plan.output.fill_(float("nan"))
                        plan.workspace.fill_(255)
                        plan.run()
                        torch.cuda.synchronize()
                        results.append(plan.output.clone())
                    row["same_bits"] = torch.equal(results[0], results[1])
                    if truth is not None:
                        row["rel_frobenius"], row["max_over_max"] = error(results[0].view(truth.shape), truth)
                    row["finite"] = bool(torch.isfinite(results[0]).all())
                    row["burst_ms"] = burst(plan.run, args.rounds, args.idle)
                    row["pack_and_run_ms"] = burst(plan.pack_and_run, 1, args.idle)
                    row["workspace_mb"] = plan.workspace_bytes / 1e6
                    if args.sustained:
                        row["sustained_ms"] = sustained(plan.run)
                    if args.profile:
                        profile(plan.run)
                    if args.explain:
                        print(plan.explain())
                    del plan, results
                except RuntimeError as failure:
                    row["failed"] = str(failure)[:300]
                table.append(row)
                print(json.dumps(row), flush=True)
        for peer in [p for p in args.torch.split(",") if p and p != "none"]:
            mode, precision = peer.split("-")
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
            torch._dynamo.reset()
            f = {"eager": lambda: function, "compile": lambda: torch.compile(function),
                 "autotune": lambda: torch.compile(function, mode="max-autotune-no-cudagraphs")}[mode]()
            row = {"pipeline": slug, "who": f"torch {mode} {precision}"}
            with torch.no_grad():
                result = f(*tensors.values())
                if truth is not None:
                    row["rel_frobenius"], row["max_over_max"] = error(result, truth)
                row["burst_ms"] = burst(lambda: f(*tensors.values()), args.rounds, args.idle)
                if args.sustained:
                    row["sustained_ms"] = sustained(lambda: f(*tensors.values()))
            table.append(row)
            print(json.dumps(row), flush=True)
        del truth
    print(f"\n{'pipeline':52} {'who':28} {'burst':>8} {'pack+run':>8} {'sustained':>9} {'rel.F':>9} {'max':>9}")
    for row in table:
        print(f"{row['pipeline']:52} {row['who']:28} {row.get('burst_ms', float('nan')):8.3f} "
              f"{row.get('pack_and_run_ms', float('nan')):8.3f} {row.get('sustained_ms', float('nan')):9.3f} "
              f"{row.get('rel_frobenius', float('nan')):9.1e} {row.get('max_over_max', float('nan')):9.1e} {row.get('failed', '')}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
