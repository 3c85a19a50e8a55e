"""Measured choices, remembered on disk beside the CUDA engine's kernels: for a region and its shapes, whether ours or
PyTorch's way is the faster on this machine.

An entry is one small file, `<digest of the key>.tune`: JSON with the key itself, both times and a digest of all that. It is
written under another name and renamed, so that readers see all of it or nothing; one that is damaged, somebody else's, a link
or no regular file counts as none. A folder that cannot be used costs time, never correctness.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import stat
import tempfile
import threading
import time
from typing import Any, Callable, Mapping, Optional, Sequence

import torch

from .. import _core

BUDGET = 0.5  # seconds that a choice may take, beyond the first call of each
ROUNDS = 15
_LARGEST = 1 << 20  # bytes of an entry

_lock = threading.Lock()
_choices: dict[str, bool] = {}
_measuring: dict[str, threading.Lock] = {}


def folder() -> Optional[str]:
    """Where the CUDA engine keeps its kernels: UPWEAVE_CACHE, or ~/.cache/upweave."""
    given, home = os.environ.get("UPWEAVE_CACHE"), os.environ.get("HOME")
    return given if given else os.path.join(home, ".cache", "upweave") if home else None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def key(text: str, tensors: Mapping[str, Any], device: torch.device, **more: Any) -> str:
    """What a choice depends on. `tensors` are the region's, by name (tensors or fake ones); `more` is whatever else does:
    precision, algorithm."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    described = {n: [list(map(int, t.shape)), list(map(int, t.stride())), str(t.dtype)] for n, t in sorted(tensors.items())}
    return json.dumps({"text": text, "tensors": described, "engine": device.type, "machine": name,
                       "threads": torch.get_num_threads(), "torch": torch.__version__, "upweave": _core.version,
                       "more": {n: str(v) for n, v in sorted(more.items())}}, sort_keys=True)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _path(key: str) -> Optional[str]:
    root = folder()
    return os.path.join(root, _digest(key) + ".tune") if root else None


def _seal(key: str, ours: float, theirs: float) -> str:
    return _digest(json.dumps([key, ours, theirs]))


def load(key: str) -> Optional[tuple[float, float]]:
    """The times of an entry, ours and theirs, or None."""
    path = _path(key)
    if path is None:
        return None
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_size > _LARGEST:
            return None
        with os.fdopen(file, "rb", closefd=False) as content:
            entry = json.loads(content.read(_LARGEST + 1))
        ours, theirs = entry["ours"], entry["theirs"]
        if not all(isinstance(t, float) and math.isfinite(t) and t > 0 for t in (ours, theirs)):
            return None
        return (ours, theirs) if entry["key"] == key and entry["seal"] == _seal(key, ours, theirs) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        os.close(file)


def store(key: str, ours: float, theirs: float) -> None:
    path = _path(key)
    if path is None:
        return
    temporary = None
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        file, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=os.path.dirname(path))
        with os.fdopen(file, "w", encoding="utf-8") as content:
            json.dump({"key": key, "ours": ours, "theirs": theirs, "seal": _seal(key, ours, theirs)}, content)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            try:
                os.unlink(temporary)
            except OSError:
                pass


def _median(times: Sequence[float]) -> float:
    return sorted(times)[len(times) // 2]


def measure(ours: Callable[[], Any], theirs: Callable[[], Any], sync: Callable[[], Any] = lambda: None,
            budget: float = BUDGET) -> tuple[float, float]:
    """Median seconds of both, in turns, so that whatever slows the machine down slows down both."""
    ways = (ours, theirs)
    for way in ways:  # compiles, allocates, packs
        way()
        sync()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + budget
    for done in range(ROUNDS):
        for which in ((0, 1) if done % 2 == 0 else (1, 0)):
            start = time.perf_counter()
            ways[which]()
            sync()
            times[which].append(max(time.perf_counter() - start, 1e-9))
        if time.perf_counter() > end:
            break
    return _median(times[0]), _median(times[1])


def choose(key: str, ours: Callable[[], Any], theirs: Callable[[], Any],
           sync: Callable[[], Any] = lambda: None) -> bool:
    """Whether `ours` is the faster: measured the first time that a machine meets the key, then remembered. Threads that ask
    for one key wait for one measurement; processes that ask at once may each measure, and the last one's entry stays. What
    the functions raise is raised here, and nothing is remembered."""
    with _lock:
        if key in _choices:
            return _choices[key]
        turn = _measuring.setdefault(key, threading.Lock())
    with turn:
        with _lock:
            if key in _choices:
                return _choices[key]
        times = load(key)
        if times is None:
            times = measure(ours, theirs, sync)
            store(key, *times)
        choice = times[0] < times[1]
        with _lock:
            _choices[key] = choice
            _measuring.pop(key, None)
        return choice


def forget() -> None:
    """Forgets what this process knows; entries on disk stay."""
    with _lock:
        _choices.clear()
