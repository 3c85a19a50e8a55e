"""Times a model eagerly, under torch.compile's default and under Upweave, in one process and on the same input."""

import argparse
import pathlib
import time

import torch

import upweave.torch


def _peak(run):
    """Bytes of host memory that one run needs on top of what is there (Linux), or of device memory."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = _status("VmRSS")
        run()
        return max(0, _status("VmHWM") - before)
    except OSError:
        return float("nan")


def _status(key):
    line = next(l for l in pathlib.Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) * 1024


def _milliseconds(run, seconds):
    """The median of as many runs as fit."""
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


def compare(title, model, make_input):
    """Prints the table and, if matplotlib is there and asked for, plots it. `make_input(quick)` gives the input."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="a small input, and without torch.compile's default")
    parser.add_argument("--seconds", type=float, default=3, help="how long each contender is timed")
    parser.add_argument("--plot", metavar="FILE", help="save time and memory as a picture (matplotlib)")
    options = parser.parse_args()
    seconds = 0.1 if options.quick else options.seconds

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = model.eval().to(device), make_input(options.quick).to(device)
    contenders = {"eager": model}
    if not options.quick:
        contenders["torch.compile"] = torch.compile(model)
    contenders["upweave"] = torch.compile(model, backend="upweave",
                                          options={"rest": "eager" if options.quick else "inductor"})

    rows = []
    with torch.inference_mode():
        expected = model(x)
        for name, run in contenders.items():
            y = run(x)  # compiles
            torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)
            rows.append((name, _milliseconds(lambda: run(x), seconds), _peak(lambda: run(x)) / 1e6))

    print(f"{title}: input {'x'.join(map(str, x.shape))}, {device}, {torch.get_num_threads()} threads")
    print(f"{'':<16}{'ms':>10}{'speed':>10}{'MB extra':>10}")
    for name, ms, mb in rows:
        print(f"{name:<16}{ms:>10.2f}{rows[0][1] / ms:>9.2f}x{mb:>10.1f}")
    print(upweave.torch.report(model, x))
    if options.plot:
        _plot(title, rows, options.plot)


def _plot(title, rows, file):
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 3), layout="constrained")
    figure.suptitle(title)
    for axes, column, label in zip(figure.subplots(1, 2), (1, 2), ("ms a forward", "MB on top")):
        axes.barh([row[0] for row in rows], [row[column] for row in rows], color=["#bbb", "#999", "#4a6fa5"][-len(rows):])
        axes.invert_yaxis()
        axes.set_xlabel(label)
    figure.savefig(file)
    print(f"wrote {file}")
