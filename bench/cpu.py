"""The CPU benchmark: the five pipelines, Upweave beside PyTorch and oneDNN, in one run.

    make bench                        everything, a table and build/bench.json
    bench/run --full                  at the documents' own sizes (batches of 32, 32, 16, 32 and 512)
    bench/run --only max --rounds 9 --contenders upweave,onednn

Every contender is a process of its own that is checked against a float64 evaluation first, then asked for three runs
at a time (at full size, one), in turns, whose median is a sample; before each sample the FMA peak of both cores is
measured. Reported are medians over the rounds, and the ratio to the peak that was there at that moment. Data is signed
and seeded. Our weights are packed once, as the oneDNN program reorders its own; "pack+run" packs them in every run, as
the five C functions do. "first call" is what is done once, before the first run: for us planning and packing, for
PyTorch its first run (with torch.compile, the compilation).
"""
import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import numpy as np

import cpu_cases


class Worker:
    """A contender's process, spoken to in lines."""

    def __init__(self, name, command, **variables):
        self.name, self.times, self.peaks = name, [], []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
        if self.process.stdout.readline().strip() != "ready":
            said = self.process.stderr.read().strip().splitlines()
            raise RuntimeError(said[-1] if said else "ended without a word")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return [float(x) for x in self.process.stdout.readline().split()]

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        return self.process.stderr.read().strip()


def busy_seconds():
    """What all cores have worked since the start, whoever for."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, irq, soft, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


class Others:
    """How much of the cores programs other than these took meanwhile: where it is not about 0, times mean little."""

    def __init__(self, workers):
        self.workers = workers
        self.begin, self.before = time.monotonic(), self.seconds()

    def seconds(self):
        return busy_seconds() - sum(worker.cpu_seconds() for worker in self.workers) - time.process_time()

    def share(self):
        return max(0.0, (self.seconds() - self.before) / (time.monotonic() - self.begin) / os.cpu_count())


def available_bytes():
    with open("/proc/meminfo") as info:
        return next(int(line.split()[1]) * 1024 for line in info if line.startswith("MemAvailable"))


def affordable(wanted, free):
    """Those of the contenders that fit into memory together: each keeps its tensors, one runs at a time."""
    kept, largest, chosen = 0, 0, {}
    for name, contender in wanted.items():
        _, _, keeps, more = contender
        if kept + keeps + max(largest, more) > free:
            print(f"  {name}: left out, {(kept + keeps + max(largest, more)) / 2**30:.1f} GiB would be needed and "
                  f"{free / 2**30:.1f} are free", file=sys.stderr)
            continue
        kept, largest = kept + keeps, max(largest, more)
        chosen[name] = contender
    return chosen


def start(name, contender, folder, batch, samples, answer):
    """The contender's process and its first figures, or None if its answer is wrong or it cannot run here."""
    command, output, _, _ = contender
    try:
        worker = Worker(name, command)
    except (RuntimeError, OSError) as error:
        print(f"  {name}: {error}", file=sys.stderr)
        return None
    error, allowed = cpu_cases.error(f"{folder}/{output}", batch, samples, answer)
    if not error < allowed:
        print(f"  {name}: wrong answer, off by {error:.2e} of the largest value; not timed", file=sys.stderr)
        worker.close()
        return None
    worker.row = {"error": error}
    once = worker.ask("first")
    if once:
        worker.row["first_call_ms"] = sum(once)
        if len(once) == 2:
            worker.row["plan_ms"], worker.row["pack_ms"] = once
    return worker


def explain(args, slug, batch):
    shape = "x".join(map(str, cpu_cases.input_shape(slug, batch)))
    explained = subprocess.run([args.upweave, "explain", slug, "--json", "--input", shape],
                               capture_output=True, text=True, check=True)
    return json.loads(explained.stdout)


def measure(args, slug):
    batch = args.batch or cpu_cases.BATCH[slug][args.full]
    folder = os.path.join(args.folder, slug)
    cpu_cases.write_tensors(slug, batch, folder, args.seed)
    samples, answer = cpu_cases.truth(slug, batch, folder)
    plan = explain(args, slug, batch)
    gflop = plan["cost"]["flops"] / 1e9  # real taps only, of the outputs that are needed
    wanted = cpu_cases.contenders(args.peers, slug, batch, folder)
    if args.contenders:
        wanted = {name: wanted[name] for name in args.contenders.split(",")}
    elif args.full:
        del wanted["upweave pack+run"]  # packing is a thousandth of such a run
    # Its threads must not spin on beside the run that follows.
    peak = Worker("peak", [os.path.join(args.peers, "peak"), "2"], OMP_WAIT_POLICY="passive")
    workers = [start(name, contender, folder, batch, samples, answer)
               for name, contender in affordable(wanted, 0.9 * available_bytes()).items()]
    workers = [worker for worker in workers if worker]
    others = Others([*workers, peak])
    for _ in range(args.rounds):
        for worker in workers:
            if not args.full:
                worker.ask("run 1")  # wakes its threads and its caches
            worker.peaks.append(peak.ask("run 1")[0])
            worker.times.append(statistics.median(worker.ask("run 1" if args.full else "run 3")))
    disturbed, rows = others.share(), {}
    for worker in workers:
        row = rows[worker.name] = worker.row
        row["ms_per_item"] = statistics.median(worker.times) / batch
        threads = 1 if worker.name.endswith("1 thread") else 2
        floors = [gflop / (p * threads / 2) * 1e3 / t for p, t in zip(worker.peaks, worker.times)]
        row["of_fma_peak"] = statistics.median(floors)
        row["fma_gflops"] = statistics.median(worker.peaks)
        row["samples_ms"], row["samples_fma_gflops"] = worker.times, worker.peaks
        row["peak_rss_mb"] = worker.ask("memory")[0]
        row["note"] = worker.close()
    peak.close()
    return {"batch": batch, "gflop": gflop, "engine_notes": plan["engine_notes"], "others_share": disturbed,
            "contenders": rows}


def base_of(name):
    return "upweave bf16" if name.endswith("bf16") else "upweave"


def show(slug, result):
    rows = result["contenders"]
    print(f"\n{slug}, batch {result['batch']} (other programs took {result['others_share']:.0%} of the cores)")
    print(f"  {'':<20} {'ms/item':>9} {'of FMA peak':>12} {'GFLOP/s peak':>13} {'error':>9} {'peak MB':>8} "
          f"{'first call':>11}   vs upweave of its type")
    for name, row in rows.items():
        ours = rows.get(base_of(name), {}).get("ms_per_item")
        ratio = f"{row['ms_per_item'] / ours:8.2f}x" if ours else ""
        first = f"{row['first_call_ms']:8.1f} ms" if "first_call_ms" in row else ""
        print(f"  {name:<20} {row['ms_per_item']:9.3f} {row['of_fma_peak']:12.2f} {row['fma_gflops']:13.0f} "
              f"{row['error']:9.1e} {row['peak_rss_mb']:8.0f} {first:>11} {ratio}")


def geometric_mean(values):
    return float(np.exp(np.mean(np.log(values))))


def summary(results):
    """How much faster we are than the best of each kind of contender, pipeline by pipeline."""
    def ratios(ours, pick):
        for result in results.values():
            rows = result["contenders"]
            theirs = [row["ms_per_item"] for name, row in rows.items() if pick(name)]
            if theirs and ours in rows:
                yield min(theirs) / rows[ours]["ms_per_item"]
    print()
    kinds = (("oneDNN tile by tile", "upweave", lambda n: n == "onednn"),
             ("oneDNN tile by tile, direct method", "upweave direct", lambda n: n == "onednn"),
             ("oneDNN tile by tile, bf16", "upweave bf16", lambda n: n == "onednn bf16"),
             ("PyTorch's best", "upweave", lambda n: n.startswith("torch")),
             ("our direct method", "upweave", lambda n: n == "upweave direct"),
             ("one thread", "upweave", lambda n: n == "upweave 1 thread"))
    means = {}
    for label, ours, pick in kinds:
        values = list(ratios(ours, pick))
        if values:
            means[label] = geometric_mean(values)
            print(f"faster than {label}: {means[label]:.2f}x (geometric mean; {', '.join(f'{v:.2f}' for v in values)})")
    return means


def machine(args):
    import torch
    with open("/proc/cpuinfo") as info:
        facts = dict(line.split(":", 1) for line in info.read().split("\n\n")[0].splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}

    def said(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        onednn = "3.2 (onednn-cpu-gomp " + importlib.metadata.version("onednn-cpu-gomp") + ")"
    except importlib.metadata.PackageNotFoundError:
        onednn = "3.2"
    return {"cpu": facts.get("model name", "?"), "cores": os.cpu_count(),
            "bf16 dot products": "avx512_bf16" in facts.get("flags", ""), "kernel": platform.release(),
            "upweave": said(args.upweave, "--version").split()[-1], "torch": torch.__version__, "onednn": onednn,
            "g++": said("g++", "-dumpfullversion"), "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="build/peers", help="folder of the contenders' programs")
    parser.add_argument("--upweave", default="build/upweave", help="the command")
    parser.add_argument("--folder", default="build/bench-data", help="where tensors are kept")
    parser.add_argument("--only", default="", help="pipelines whose slug has this in it")
    parser.add_argument("--contenders", default="", help="comma-separated; all of them by default")
    parser.add_argument("--full", action="store_true", help="the documents' batches: 32, 32, 16, 32, 512")
    parser.add_argument("--rounds", type=int, default=0, help="11 by default, at full size 3")
    parser.add_argument("--batch", type=int, default=0, help="instead of 2, 2, 1, 2, 16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", default="", help="build/bench.json by default, at full size build/bench-full.json")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.full else 11)
    facts = machine(args)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    results = {}
    for slug in cpu_cases.BATCH:
        if args.only in slug:
            results[slug] = measure(args, slug)
            show(slug, results[slug])
    means = summary(results)
    with open(args.json or ("build/bench-full.json" if args.full else "build/bench.json"), "w") as out:
        json.dump({"machine": facts, "rounds": args.rounds, "results": results, "faster_than": means}, out, indent=2)


if __name__ == "__main__":
    main()
