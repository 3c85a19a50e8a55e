"""Upweave inside PyTorch.

    model = torch.compile(model, backend="upweave")   # one line in a model that is there
    print(upweave.torch.report(model, x))             # what it covers, what it leaves, and why
"""

from ._backend import Report, backend, report
from ._op import Statistics, run, statistics

__all__ = ["Report", "Statistics", "backend", "report", "run", "statistics"]
