"""Weights are packed once: what a plan makes of them is kept while they stay as they are.

A tensor is the same as before if its memory is (a weak reference to its storage), and if PyTorch's version counter, which
every operation that changes a tensor moves, stands where it stood. What goes past PyTorch (writes through `.data`, NumPy's
view of a tensor's memory, DLPack, another library's kernel) moves no counter: `weights_changed` says so."""

from __future__ import annotations

import collections
import operator
import os
import threading
import weakref
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


class Marks:
    """What tensors were when they were packed: objects, addresses, counters and strides. Looking takes a fraction of a
    microsecond for each; only where something differs is it worth a longer look."""

    __slots__ = ("tensors", "addresses", "versions", "strides", "entry")

    def __init__(self, tensors: Sequence[Tensor], entry: Entry) -> None:
        self.tensors = [weakref.ref(t) for t in tensors]
        self.addresses = list(map(Tensor.data_ptr, tensors))
        self.versions = [t._version for t in tensors]
        self.strides = list(map(Tensor.stride, tensors))
        self.entry = entry

    def hold(self, tensors: Sequence[Tensor]) -> bool:
        return (len(tensors) == len(self.tensors) and all(map(operator.is_, (r() for r in self.tensors), tensors))
                and self.addresses == list(map(Tensor.data_ptr, tensors))
                and self.versions == [t._version for t in tensors]
                and self.strides == list(map(Tensor.stride, tensors)))


class Kept:
    """Packed weights of this process, at most a quarter of the memory of each device."""

    SWEEP = 1024  # calls between two looks for weights that are gone

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entries: collections.OrderedDict[tuple, Entry] = collections.OrderedDict()
        self.last: dict[tuple, Marks] = {}  # by use: what the call before this one found
        self.packed = self.calls = 0

    def find(self, use: Optional[tuple], tensors: Sequence[Tensor]) -> Optional[Entry]:
        """What was packed of these tensors for this use."""
        if use is None:
            return None
        marks = self.last.get(use)
        if marks is not None and marks.hold(tensors):
            return marks.entry
        found = key(tensors, *use)
        if found is None:
            return None
        with self.lock:
            self.calls += 1
            if self.calls % self.SWEEP == 0:
                self._sweep()
            entry = self.entries.get(found)
            if entry is None or not entry.alive():
                return None
            self.entries.move_to_end(found)
            self.last[use] = Marks(tensors, entry)
            return entry

    def add(self, use: Optional[tuple], plan: Plan, weights: dict[str, Tensor], tensors: Sequence[Tensor]) -> Any:
        """The plan's weights, packed and kept under the key; as they are if there is none."""
        cuda = any(t.is_cuda for t in weights.values())
        found = key(tensors, *use) if use is not None else None
        if found is None or not weights or cuda and torch.cuda.is_current_stream_capturing():
            return weights
        packed = plan._core.pack(weights, None)
        if cuda:  # whichever stream reads them next finds them there
            torch.cuda.current_stream().synchronize()
        device = next(iter(weights.values())).device
        storages = tuple(StorageWeakRef(t.untyped_storage()) for t in tensors)
        with self.lock:
            self.packed += 1
            self._sweep()
            self.entries[found] = Entry(plan, packed, storages, device)
            room = _memory(device) // 4
            while len(self.entries) > 1 and self.bytes(device) > room:
                self.entries.popitem(last=False)
            self._tidy()
        return packed

    def bytes(self, device: torch.device) -> int:
        return sum(e.plan._core.packed_bytes for e in self.entries.values() if e.device == device)

    def _sweep(self) -> None:
        for key in [key for key, entry in self.entries.items() if not entry.alive()]:
            del self.entries[key]
        self._tidy()

    def _tidy(self) -> None:
        """What is kept no longer is not found either."""
        alive = {id(entry) for entry in self.entries.values()}
        self.last = {use: marks for use, marks in self.last.items() if id(marks.entry) in alive}

    def forget(self) -> None:
        with self.lock:
            self.entries.clear()
            self.last = {}


kept = Kept()


def weights_changed() -> None:
    """Says that weights were written past PyTorch: by `.data`, through NumPy or DLPack, or by a kernel of your own. What
    was packed of any weights is forgotten and made anew at the next call."""
    kept.forget()
