#!/usr/bin/env python3
"""torch.compile(backend="upweave") beside Inductor, as their user has them: wall time of a call.

    python bench/models.py                     KernelBench's 30 chains on the CPU, two samples each
    python bench/models.py --device cuda       the same at full size
    python bench/models.py --decoders          published decoders at the sizes that people run (bench/decoders.py)
    python bench/models.py --modules           a hundred small modules of other people (tests/python/zoo.py)

Each contender's result is compared with float64 first; then they take turns, and medians are printed. PyTorch runs eagerly
and by Inductor; `--layouts` adds both with channels-last inputs and weights, and `best` is the fastest of them. `taken` counts
our calls, `inside` is the share of the convolutions' floating-point work that is in them; `--why` says where they stop."""

import argparse
import copy
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))

import full_chains  # noqa: E402
import upweave.torch as ut  # noqa: E402


def chains(arguments):
    for number in full_chains.SIZES:
        def build(number=number):
            torch.manual_seed(number)
            model, shapes = full_chains.make(number, None if arguments.device == "cuda" else arguments.batch)
            return model, [torch.rand(s) - 0.5 for s in shapes]
        yield f"chain {number}", build


def modules(arguments):
    import zoo

    for name, case in zoo.CASES.items():
        def build(case=case):
            model, inputs = case.make()
            return model.eval(), inputs
        yield name, build


def published(arguments):
    import decoders

    yield from decoders.cases(arguments.device)


def to(x, **how):
    return x.to(**how) if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def tensors(result):
    return [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def error(result, truth):
    """The largest error of any result, in parts of that result's largest magnitude."""
    return max(((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-30)).item()
               for a, b in zip(tensors(result), tensors(truth)))


def seconds(run, inputs, device, budget):
    """A call's wall time, from a loop that fills the budget."""
    count, start = 0, time.perf_counter()
    while True:
        run(*inputs)
        count += 1
        if device == "cuda":
            torch.cuda.synchronize()
        if time.perf_counter() - start > budget:
            return (time.perf_counter() - start) / count


def last(x):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.to(memory_format=formats[x.dim()]) if isinstance(x, torch.Tensor) and x.dim() in formats else x


def channels_last(model):
    """The module with every weight in channels-last order."""
    for parameter in model.parameters():
        parameter.data = last(parameter.data)
    return model


def measure(name, build, arguments):
    model, inputs = build()
    device = arguments.device
    model, inputs = model.to(device), [to(x, device=device) for x in inputs]
    truth = None
    if not arguments.unchecked:
        truth = copy.deepcopy(model).double()(*(to(x, dtype=torch.float64) for x in inputs))
    options = {"precision": arguments.precision} if arguments.precision else {}
    options |= {"take": "all"} if arguments.all else {}
    options |= {"autotune": True} if arguments.autotune else {}
    ours = torch.compile(copy.deepcopy(model), backend="upweave", options=options, dynamic=False)
    contenders = {"upweave": (ours, inputs), "eager": (copy.deepcopy(model), inputs),
                  "inductor": (torch.compile(copy.deepcopy(model), dynamic=False), inputs)}
    if arguments.layouts:
        turned = [last(x) for x in inputs]
        contenders["eager, channels last"] = (channels_last(copy.deepcopy(model)), turned)
        contenders["inductor, channels last"] = (torch.compile(channels_last(copy.deepcopy(model)), dynamic=False), turned)
    row, calls = {"name": name}, ut.statistics()
    for who, (run, given) in contenders.items():
        result = run(*given)
        if truth is not None:
            row[f"{who} error"] = error(result, truth)
        if who == "upweave":
            row["taken"] = ut.statistics().calls - calls.calls
    del truth, result
    times = {who: [] for who in contenders}
    for _ in range(arguments.rounds):
        for who, (run, given) in contenders.items():
            times[who].append(seconds(run, given, device, arguments.budget))
    row |= {who: statistics.median(t) * 1e3 for who, t in times.items()}
    row["best"] = min((row[who], who) for who in contenders if who != "upweave")
    row["ratio"] = row["best"][0] / row["upweave"]
    row |= inside(model, inputs, options)
    return row


def inside(model, inputs, options):
    """The share of the convolutions' multiplications that is in our calls, and why it is not more."""
    report = ut.report(model, *inputs, options=options)
    return {"inside": report.share, "why": report.reasons}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--modules", action="store_true", help="other people's modules instead of the chains")
    parser.add_argument("--decoders", action="store_true", help="published decoders instead of the chains")
    parser.add_argument("--only", default="", help="cases whose name holds this; several with commas")
    parser.add_argument("--batch", type=int, default=2, help="samples of a chain on the CPU (2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of a contender in a round (0.2)")
    parser.add_argument("--precision", default="", choices=("", "strict", "fast"))
    parser.add_argument("--all", action="store_true", help="take what is not predicted to pay, too")
    parser.add_argument("--autotune", action="store_true")
    parser.add_argument("--layouts", action="store_true", help="PyTorch on channels-last inputs and weights, too")
    parser.add_argument("--why", action="store_true", help="what is not in our calls, and why")
    parser.add_argument("--unchecked", action="store_true", help="without the comparison with float64")
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--minutes", type=float, default=60, help="start no case after this long")
    arguments = parser.parse_args()
    rows, begin = [], time.time()
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
          + (f", {torch.cuda.get_device_name()}" if arguments.device == "cuda" else ""))
    print(f"{'':24}{'taken':>6}{'inside':>8}{'upweave':>10}{'eager':>10}{'inductor':>10}{'best':>10}{'ratio':>7}{'error':>9}{'theirs':>9}")
    kind = modules if arguments.modules else published if arguments.decoders else chains
    for name, build in kind(arguments):
        words = [w for w in arguments.only.split(",") if w]
        if words and not any(name == w or w in name.split() for w in words):
            continue
        if time.time() - begin > arguments.minutes * 60:
            print(f"{name}: no time left")
            continue
        torch._dynamo.reset()
        try:
            with torch.no_grad():
                row = measure(name, build, arguments)
        except ImportError as error:
            print(f"{name}: {error}")
            continue
        rows.append(row)
        print(f"{name:24}{row['taken']:6}{row['inside']:8.0%}{row['upweave']:10.3f}{row['eager']:10.3f}{row['inductor']:10.3f}"
              f"{row['best'][0]:10.3f}{row['ratio']:7.2f}{row.get('upweave error', float('nan')):9.1e}"
              f"{row.get('inductor error', float('nan')):9.1e}", flush=True)
        for reason in row["why"] if arguments.why else ():
            print(f"    {reason}")
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(rows, indent=1))
    if rows:
        mean = statistics.geometric_mean(r["ratio"] for r in rows)
        print(f"{len(rows)} cases: {mean:.2f} times PyTorch's best in the geometric mean, least {min(r['ratio'] for r in rows):.2f}")


if __name__ == "__main__":
    main()
