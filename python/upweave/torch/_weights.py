"""Weights are packed once: what a plan makes of them is kept while they stay as they are.

A tensor is the same as before if its memory is (a weak reference to its storage), and if PyTorch's version counter, which
every operation that changes a tensor moves, stands where it stood. What goes past PyTorch (writes through `.data`, NumPy's
view of a tensor's memory, DLPack, another library's kernel) moves no counter: `weights_changed` says so."""

from __future__ import annotations

import collections
import os
import threading
from typing import Any, NamedTuple, Optional, Sequence

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .._plan import Plan


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Entry(NamedTuple):
    plan: Plan
    packed: Any
    storages: tuple[StorageWeakRef, ...]
    device: torch.device

    def alive(self) -> bool:
        return not any(s.expired() for s in self.storages)


def key(tensors: Sequence[Tensor], *more: Any) -> Optional[tuple]:
    """What the tensors are now, and where they are used; None if a change of theirs could not be seen."""
    marks: list[Any] = list(more)
    for t in tensors:
        if t.is_inference():  # it has no counter
            return None
        marks += (t.untyped_storage()._cdata, t.data_ptr(), t._version, t.dtype, t.shape, t.stride())
    return tuple(marks)


class Kept:
    """Packed weights of this process, at most a quarter of the memory of each device."""

    SWEEP = 1024  # calls between two looks for weights that are gone

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: collections.OrderedDict[tuple, Entry] = collections.OrderedDict()
        self.packed = self.calls = 0

    def find(self, key: Optional[tuple]) -> Optional[Entry]:
        if key is None:
            return None
        with self.lock:
            self.calls += 1
            if self.calls % self.SWEEP == 0:
                self._sweep()
            entry = self.entries.get(key)
            if entry is None or not entry.alive():
                return None
            self.entries.move_to_end(key)
            return entry

    def add(self, key: Optional[tuple], plan: Plan, weights: dict[str, Tensor], tensors: Sequence[Tensor]) -> Any:
        """The plan's weights, packed and kept under the key; as they are if there is none."""
        cuda = any(t.is_cuda for t in weights.values())
        if key is None or not weights or cuda and torch.cuda.is_current_stream_capturing():
            return weights
        packed = plan._core.pack(weights, None)
        if cuda:  # whichever stream reads them next finds them there
            torch.cuda.current_stream().synchronize()
        device = next(iter(weights.values())).device
        storages = tuple(StorageWeakRef(t.untyped_storage()) for t in tensors)
        with self.lock:
            self.packed += 1
            self._sweep()
            self.entries[key] = Entry(plan, packed, storages, device)
            room = _memory(device) // 4
            while len(self.entries) > 1 and self.bytes(device) > room:
                self.entries.popitem(last=False)
        return packed

    def bytes(self, device: torch.device) -> int:
        return sum(e.plan._core.packed_bytes for e in self.entries.values() if e.device == device)

    def _sweep(self) -> None:
        for key in [key for key, entry in self.entries.items() if not entry.alive()]:
            del self.entries[key]

    def forget(self) -> None:
        with self.lock:
            self.entries.clear()


kept = Kept()


def weights_changed() -> None:
    """Says that weights were written past PyTorch: by `.data`, through NumPy or DLPack, or by a kernel of your own. What
    was packed of any weights is forgotten and made anew at the next call."""
    kept.forget()
