"""The CPU benchmark: the five pipelines, Upweave beside PyTorch and oneDNN, in one run.

    make bench                        everything, a table and build/bench.json
    python bench/cpu.py --only max --rounds 9 --contenders upweave,onednn

Every contender is a process of its own that is checked against a float64 evaluation first, then asked for three runs
at a time, in turns, whose median is a sample; before each sample the FMA peak of both cores is measured. Reported are
medians over the rounds, and the ratio to the peak that was there at that moment. Data is signed and seeded; weights are packed inside our time.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "peers"))

BATCH = {
    "conv-transpose3d-sum-layernorm-avgpool-gelu": 2,
    "conv-transpose3d-layernorm-gelu-scaling": 2,
    "conv-transpose3d-max-max-sum": 1,
    "conv-transpose3d-avgpool-clamp-softmax-multiply": 2,
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": 16,
}

class Worker:
    """A contender's process, spoken to in lines."""

    def __init__(self, name, command, **variables):
        self.name, self.times, self.peaks = name, [], []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(self.process.stderr.read().strip().splitlines()[-1])

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return [float(x) for x in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        return self.process.stderr.read().strip()


def make_case(slug, batch, folder, seed):
    """Signed tensors, small enough that the clamp does not saturate, and the float64 answer."""
    import torch
    import torch_peer
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(seed)
    os.makedirs(f"{folder}/bf16", exist_ok=True)
    for name, shape in torch_peer.SHAPES[slug].items():
        shape = tuple(extent or batch for extent in shape)
        data = (rng.random(shape, dtype=np.float32) - 0.5) * (0.3 if name == "kernel" else 1.0)
        bits = data.view(np.uint32) & 0xFFFF0000  # exact in bfloat16 too, so one answer serves both element types
        bits.tofile(f"{folder}/{name}.bin")
        (bits >> 16).astype(np.uint16).tofile(f"{folder}/bf16/{name}.bin")
    tensors = [t.double() for t in torch_peer.load(slug, folder, batch)]
    return torch_peer.FORMS[slug][0](*tensors).contiguous().numpy()


def read_output(path):
    """The elements, and how far they may be off in all: a contender's own arithmetic, and one rounding to bfloat16."""
    if "bf16" in os.path.basename(path):
        return (np.fromfile(path, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32), 2.0**-8
    return np.fromfile(path, dtype=np.float32), 1e-4


def explain_input(slug, batch):
    import torch_peer
    return "x".join(str(extent or batch) for extent in torch_peer.SHAPES[slug]["input"])


def contenders(args, slug, batch, folder):
    peers = args.peers
    torch = [sys.executable, os.path.join(HERE, "peers", "torch_peer.py"), slug, folder, str(batch)]
    ours = [os.path.join(peers, "upweave"), slug, folder, str(batch), "f32"]
    all_of_them = {
        "upweave": (ours + ["auto", "2"], "upweave-f32-auto.bin"),
        "upweave direct": (ours + ["direct", "2"], "upweave-f32-direct.bin"),
        "upweave 1 thread": (ours + ["auto", "1"], "upweave-f32-auto.bin"),
        "upweave bf16": (ours[:2] + [f"{folder}/bf16", str(batch), "bf16", "auto", "2"], "bf16/upweave-bf16-auto.bin"),
        "onednn": ([os.path.join(peers, "onednn"), slug, folder, str(batch)], "onednn.bin"),
        "torch eager": (torch + ["eager", "contiguous", "f32"], "torch-eager-contiguous-f32.bin"),
        "torch compile": (torch + ["compile", "contiguous", "f32"], "torch-compile-contiguous-f32.bin"),
        "torch eager cl": (torch + ["eager", "channels_last", "f32"], "torch-eager-channels_last-f32.bin"),
        "torch compile cl": (torch + ["compile", "channels_last", "f32"], "torch-compile-channels_last-f32.bin"),
    }
    if not args.contenders:
        return all_of_them
    return {name: value for name, value in all_of_them.items() if name in args.contenders.split(",")}


def measure(args, slug):
    batch = args.batch or BATCH[slug]
    folder = os.path.join(args.folder, slug)
    os.makedirs(folder, exist_ok=True)
    truth = make_case(slug, batch, folder, args.seed)
    explained = subprocess.run([args.upweave, "explain", slug, "--json", "--input", explain_input(slug, batch)],
                               capture_output=True, text=True, check=True)
    gflop = json.loads(explained.stdout)["cost"]["flops"] / 1e9  # real taps only, of the outputs that are needed
    workers, rows = [], {}
    # Its threads must not spin on beside the run that follows.
    peak = Worker("peak", [os.path.join(args.peers, "peak"), "2"], OMP_WAIT_POLICY="passive")
    for name, (command, output) in contenders(args, slug, batch, folder).items():
        try:
            worker = Worker(name, command)
        except (RuntimeError, OSError) as error:
            print(f"  {name}: {error}", file=sys.stderr)
            continue
        got, allowed = read_output(f"{folder}/{output}")
        error = float(np.abs(got.reshape(truth.shape) - truth).max() / np.abs(truth).max())
        if not error < allowed:
            print(f"  {name}: wrong answer, off by {error:.2e} of the largest value; not timed", file=sys.stderr)
            worker.close()
            continue
        rows[name] = {"error": error}
        workers.append(worker)
    for _ in range(args.rounds):
        for worker in workers:
            worker.ask("run 1")  # wakes its threads and its caches
            worker.peaks.append(peak.ask("run 1")[0])
            worker.times.append(statistics.median(worker.ask("run 3")))
    for worker in workers:
        row = rows[worker.name]
        row["ms_per_item"] = statistics.median(worker.times) / batch
        threads = 1 if worker.name.endswith("1 thread") else 2
        floors = [gflop / (p * threads / 2) * 1e3 / t for p, t in zip(worker.peaks, worker.times)]
        row["of_fma_peak"] = statistics.median(floors)
        row["fma_gflops"] = statistics.median(worker.peaks)
        row["peak_rss_mb"] = worker.ask("memory")[0]
        row["note"] = worker.close()
    peak.close()
    return rows


def show(slug, rows):
    print(f"\n{slug}, batch {BATCH[slug]}")
    print(f"  {'':<18} {'ms/item':>9} {'of FMA peak':>12} {'error':>9} {'peak MB':>8}   vs upweave")
    ours = rows.get("upweave", {}).get("ms_per_item")
    for name, row in rows.items():
        ratio = f"{row['ms_per_item'] / ours:8.2f}x" if ours else ""
        print(f"  {name:<18} {row['ms_per_item']:9.3f} {row['of_fma_peak']:12.2f} {row['error']:9.1e} "
              f"{row['peak_rss_mb']:8.0f} {ratio}")


def geometric_mean(values):
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


def summary(results):
    def ratios(pick):
        out = []
        for rows in results.values():
            theirs = [row["ms_per_item"] for name, row in rows.items() if pick(name)]
            if theirs and "upweave" in rows:
                out.append(min(theirs) / rows["upweave"]["ms_per_item"])
        return out
    print()
    for label, pick in (("oneDNN tile by tile", lambda n: n == "onednn"), ("PyTorch's best", lambda n: n.startswith("torch")),
                        ("our direct method", lambda n: n == "upweave direct"), ("one thread", lambda n: n == "upweave 1 thread")):
        values = ratios(pick)
        if values:
            print(f"faster than {label}: {geometric_mean(values):.2f}x (geometric mean; {', '.join(f'{v:.2f}' for v in values)})")


def machine():
    import torch
    with open("/proc/cpuinfo") as info:
        model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "?")
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "torch": torch.__version__,
            "onednn": "3.2", "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="build/peers", help="folder of the contenders' programs")
    parser.add_argument("--upweave", default="build/upweave", help="the command")
    parser.add_argument("--folder", default="build/bench-data", help="where tensors are kept")
    parser.add_argument("--only", default="", help="pipelines whose slug has this in it")
    parser.add_argument("--contenders", default="", help="comma-separated; all of them by default")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--batch", type=int, default=0, help="instead of 2, 2, 1, 2, 16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="build/bench.json")
    args = parser.parse_args()
    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    results = {}
    for slug in BATCH:
        if args.only in slug:
            results[slug] = measure(args, slug)
            show(slug, results[slug])
    summary(results)
    with open(args.json, "w") as out:
        json.dump({"machine": facts, "results": results}, out, indent=2)


if __name__ == "__main__":
    main()
