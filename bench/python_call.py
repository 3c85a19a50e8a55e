"""What a call through Python costs on top of the same call in C++: `python bench/python_call.py`."""

import sys
import time

import numpy as np

import upweave

RUNS = 50  # few enough to fit between two interruptions; the fastest of many repeats counts
REPEATS = 300
LIMIT = 15  # what a call may add


def microseconds(call):
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(RUNS):
            call()
        best = min(best, time.perf_counter() - start)
    return best / RUNS * 1e6


def main():
    x = np.random.rand(1, 1, 2).astype("float32")
    k = np.random.rand(1, 1, 2).astype("float32")
    kinds = {"numpy": (x, k)}
    try:
        import torch

        kinds["torch"] = (torch.from_numpy(x), torch.from_numpy(k))
    except ImportError:
        pass
    plan = upweave.compile("conv_transpose kernel", input=x, kernel=k, threads=1,
                           engine=sys.argv[1] if len(sys.argv) > 1 else None)
    native = min(plan._core.seconds(x, {"kernel": k}, plan(x, kernel=k), RUNS) for _ in range(REPEATS)) / RUNS * 1e6
    print(f"{'':<24}{'us a call':>10}{'added':>8}")
    print(f"{'C++':<24}{native:>10.2f}{'':>8}")
    for name, (xs, ks) in kinds.items():
        out = plan(xs, kernel=ks)
        for label, call in ((name, lambda: plan(xs, kernel=ks)), (f"{name}, out=", lambda: plan(xs, kernel=ks, out=out))):
            took = microseconds(call)
            print(f"{label:<24}{took:>10.2f}{took - native:>8.2f}")
            if took - native > LIMIT:
                print(f"{label}: more than {LIMIT} us")


if __name__ == "__main__":
    main()
