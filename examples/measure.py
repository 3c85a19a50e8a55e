"""Times a model eagerly, under torch.compile's default and under Upweave: one process, the same input, in turns."""

import argparse
import ctypes
import pathlib
import platform
import time

import torch

import upweave.torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _machine():
    if DEVICE == "cuda":
        return torch.cuda.get_device_name()
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines() if platform.system() == "Linux" else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {torch.get_num_threads()} threads"


def _wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def _seconds(run):
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    return time.perf_counter() - start


def _status(key):
    line = next(l for l in pathlib.Path("/proc/self/status").read_text().splitlines() if l.startswith(key))
    return int(line.split()[1]) * 1024


def _peak(run):
    """Bytes that one run needs at most, its result among them, on top of what is kept between runs."""
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that taking it again is seen
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = _status("VmRSS")
        run()
        return max(0, _status("VmHWM") - before)
    except (OSError, AttributeError):  # not Linux, not glibc, or not allowed
        return float("nan")


def compare(title, model, make_inputs):
    """Prints the table and, if asked, plots it. `make_inputs(quick)` gives the inputs."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="small inputs, and without torch.compile's default")
    parser.add_argument("--seconds", type=float, default=9, help="how long the contenders are timed, all together")
    parser.add_argument("--plot", metavar="FILE", help="save time and memory as a picture (needs matplotlib)")
    options = parser.parse_args()

    model = model.eval().to(DEVICE)
    inputs = [x.to(DEVICE) for x in make_inputs(options.quick)]
    contenders = {"eager": model}
    if not options.quick:
        contenders["torch.compile"] = torch.compile(model)
    contenders["upweave"] = torch.compile(model, backend="upweave",
                                          options={"rest": "eager" if options.quick else "inductor"})

    times, memory = {name: [] for name in contenders}, {}
    with torch.inference_mode():
        expected = model(*inputs)
        for name, run in contenders.items():
            torch.testing.assert_close(run(*inputs), expected, rtol=1e-3, atol=1e-4)  # also compiles
            run(*inputs)
            memory[name] = _peak(lambda: run(*inputs))
        end = time.perf_counter() + (0.1 if options.quick else options.seconds)
        while len(times["eager"]) < 5 or time.perf_counter() < end:
            for name, run in contenders.items():
                times[name].append(_seconds(lambda: run(*inputs)))
    rows = [(name, sorted(times[name])[len(times[name]) // 2] * 1e3, memory[name] / 1e6) for name in contenders]

    shapes = ", ".join("x".join(map(str, x.shape)) for x in inputs)
    print(f"{title}, input {shapes}; PyTorch {torch.__version__} on {_machine()}; medians of {len(times['eager'])} runs")
    print(f"{'':<16}{'ms':>10}{'speed':>10}{'MB extra':>10}")
    for name, ms, mb in rows:
        print(f"{name:<16}{ms:>10.2f}{rows[0][1] / ms:>9.2f}x{mb:>10.1f}")
    print(upweave.torch.report(model, *inputs))
    if options.plot:
        _plot(title, rows, options.plot)


def _plot(title, rows, file):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    figure.suptitle(title)
    for axes, column, label in zip(figure.subplots(1, 2), (1, 2), ("ms a forward", "MB a forward needs on top")):
        bars = axes.barh([row[0] for row in rows], [row[column] for row in rows],
                         color=["#bbb", "#999", "#4a6fa5"][-len(rows):])
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.margins(x=0.15)
        axes.invert_yaxis()
        axes.set_xlabel(label)
    figure.savefig(file)
    print(f"wrote {file}")
