"""Upweave inside PyTorch.

    model = torch.compile(model, backend="upweave")   # one line in a model that is there
    print(upweave.torch.report(model, x))             # what it covers, what it leaves, and why
"""

from ._backend import backend
from ._op import Statistics, run, statistics
from ._report import Report, report
from ._weights import weights_changed

__all__ = ["Report", "Statistics", "backend", "report", "run", "statistics", "weights_changed"]
