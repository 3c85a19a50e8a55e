"""The C interface, as far as the GPU's benchmark needs it."""
import ctypes
import re

import torch


class ShapeOf(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("extents", ctypes.POINTER(ctypes.c_int64)), ("rank", ctypes.c_size_t)]


class TensorOf(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_void_p)]


class Sized(ctypes.Structure):
    """Begins with its size, by which the library tells versions of it apart."""

    def __init__(self, *members):
        super().__init__(ctypes.sizeof(type(self)), *members)


class Options(Sized):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (n, ctypes.c_int) for n in ("dtype", "engine", "precision", "algorithm", "threads")]


class Call(Sized):
    _fields_ = [("size", ctypes.c_size_t), ("tensors", ctypes.POINTER(TensorOf)), ("count", ctypes.c_size_t),
                ("weights", ctypes.c_void_p), ("output", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("stream", ctypes.c_void_p)]


class Library:
    DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.upweave_last_error.restype = ctypes.c_char_p
        self.c.upweave_explain.restype = ctypes.c_char_p
        self.c.upweave_workspace_bytes.restype = ctypes.c_size_t
        self.c.upweave_output_rank.restype = ctypes.c_size_t
        self.c.upweave_output_extents.restype = ctypes.POINTER(ctypes.c_int64)

    def check(self, status):
        if status:
            raise RuntimeError(self.c.upweave_last_error().decode())

    def plan(self, slug, tensors, precision):
        pipeline, plan = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.c.upweave_named(slug.encode(), None, ctypes.c_size_t(0), ctypes.byref(pipeline)))
        shapes = (ShapeOf * len(tensors))()
        hold = []
        for s, (name, t) in zip(shapes, tensors.items()):
            extents = (ctypes.c_int64 * t.dim())(*t.shape)
            hold.append(extents)
            s.name, s.extents, s.rank = name.encode(), extents, t.dim()
        options = Options(self.DTYPES[tensors["input"].dtype], 1, 1 if precision == "fast" else 0, 0, 0)
        self.check(self.c.upweave_compile(pipeline, shapes, ctypes.c_size_t(len(tensors)), ctypes.byref(options),
                                          ctypes.byref(plan)))
        self.c.upweave_pipeline_free(pipeline)
        return Plan(self, plan, tensors)


class Plan:
    """A plan with an output and a workspace of its own, on PyTorch's current stream; the input is the first tensor."""

    def __init__(self, library, plan, tensors):
        self.library, self.plan, self.tensors = library, plan, tensors
        c = library.c
        extents = c.upweave_output_extents(plan)
        shape = [extents[i] for i in range(c.upweave_output_rank(plan))]
        self.output = torch.empty(shape, device="cuda", dtype=tensors["input"].dtype)
        self.workspace = torch.empty(c.upweave_workspace_bytes(plan), device="cuda", dtype=torch.uint8)
        stream = torch.cuda.current_stream().cuda_stream
        self.list = (TensorOf * len(tensors))()
        for entry, (name, t) in zip(self.list, tensors.items()):
            entry.name, entry.data = name.encode(), t.data_ptr()
        self.weights = ctypes.c_void_p()
        library.check(c.upweave_pack(plan, ctypes.byref(self.list[1]), ctypes.c_size_t(len(tensors) - 1),
                                     ctypes.c_void_p(stream), ctypes.byref(self.weights)))
        ends = (self.output.data_ptr(), self.workspace.data_ptr(), stream)
        self.whole = Call(self.list, len(tensors), None, *ends)
        self.packed = Call(self.list, 1, self.weights, *ends)

    def __del__(self):
        self.library.c.upweave_weights_free(self.weights)
        self.library.c.upweave_plan_free(self.plan)

    def run(self):
        self.library.check(self.library.c.upweave_run(self.plan, ctypes.byref(self.packed)))

    def pack_and_run(self):
        self.library.check(self.library.c.upweave_run(self.plan, ctypes.byref(self.whole)))

    def explain(self):
        return self.library.c.upweave_explain(self.plan).decode()

    def predicted(self):
        """(milliseconds, the floor's) as explain says."""
        found = re.search(r"predicted: ([0-9.]+) ms, .* floor of ([0-9.]+) ms", self.explain())
        return (float(found[1]), float(found[2])) if found else (float("nan"), float("nan"))
