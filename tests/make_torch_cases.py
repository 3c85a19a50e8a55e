#!/usr/bin/env python3
"""Makes small test cases with PyTorch (CPU, float64), independently of Upweave's own reference.

    python3 tests/make_torch_cases.py                      # rewrites tests/data/torch
    python3 tests/make_torch_cases.py --seed 7 --output d  # other cases of the same kinds, in d

The manifest (cases.jsonl) has one line a case: its name, the pipeline's text with all numbers filled in, the names
and shapes of its tensors and the shape of its output. Their float64 values lie end to end in the 1-d array `file`
from element `offset` on. Inputs and parameters are bfloat16 and float16 numbers at once, so an engine of any
element type must come near the same output.
"""

import argparse
import json
import pathlib
import re
import zlib

import numpy as np
import torch

import torch_operations
import torch_pipelines

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMITTED_SEED = 1883896738  # drew shapes that once broke a plan and a bound
MOST_VALUES = 900  # of a drawn case's tensors, and of its output: keeps tests/data small
WIDE = [33, 37, 65]  # channels: more than a vector's lanes, and never a multiple of them


def values(rng, shape, scale=1.0):
    """Normal numbers with 8 significant bits, none of them nearer to zero than 2^-10."""
    a = torch.tensor(rng.normal(0, scale, shape)).bfloat16().double().numpy()
    return np.where(np.abs(a) < 2.0**-10, 2.0**-10, a)


def put_strange(rng, a, words):
    """Puts the named values into the first sample, so that the others show that nothing leaks."""
    first = a[0].reshape(-1)
    for place, word in zip(rng.choice(first.size, size=len(words), replace=False), words):
        first[place] = float(word)


def telling(output):
    """Whether a case says more than one number."""
    return np.unique(output).size > 1


def by_x(extents):
    return "x".join(str(e) for e in extents)


# --- Geometry of a transposed convolution --------------------------------------------------------------------


def output_extents(g):
    return tuple((i - 1) * s - 2 * p + d * (k - 1) + 1 + op for i, k, s, p, op, d in
                 zip(g["extents"], g["kernel"], g["stride"], g["padding"], g["output_padding"], g["dilation"]))


def uneven(values_per_axis):
    return len(values_per_axis) == 1 or len(set(values_per_axis)) > 1


def draw_geometry(rng, rank, kind, least, output_padding=True):
    """kind: "asymmetric", "dilated": nothing equal over the axes; "thin": axes of extent 1; "sparse": kernel < stride;
    "wide": small, to have room for many channels."""
    pick = lambda lo, hi: int(rng.integers(lo, hi + 1))
    while True:
        g = {name: [] for name in ("extents", "kernel", "stride", "padding", "output_padding", "dilation")}
        for axis in range(rank):
            thin = kind == "thin" and (axis == 0 or pick(0, 1))
            i = 1 if thin else pick(2, 7 if rank == 1 else 5)
            k = pick(1, 2) if kind == "sparse" else pick(1, least + 2 if thin else 3 if kind == "wide" else 5)
            s = k + pick(1, 2) if kind == "sparse" else pick(1, 3)
            g["extents"].append(i)
            g["kernel"].append(k)
            g["stride"].append(s)
            g["padding"].append(pick(0, min(k, 3)))
            g["output_padding"].append(pick(0, s - 1) if output_padding else 0)
            g["dilation"].append(pick(1, 3) if kind == "dilated" else 1)
        free = ["kernel", "stride", "padding"] + ["output_padding"] * output_padding
        if kind == "dilated":
            free.append("dilation")
        if kind in ("asymmetric", "dilated") and not (all(uneven(g[name]) for name in free) and
                                                      any(i % 2 for i in g["extents"])):
            continue
        if all(least <= o <= least + 6 for o in output_extents(g)):
            return {name: tuple(extents) for name, extents in g.items()}


# --- Cases ---------------------------------------------------------------------------------------------------


def read_upw(path):
    """The `key: value` lines of a pipeline's file; a text may go on over indented lines."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    fields = {}
    for line in lines:
        if line.startswith(" "):
            fields[key] += " " + line.strip()
        else:
            key, value = line.split(": ", 1)
            fields[key] = value
    fields["set"] = dict(word.split("=") for word in fields.get("set", "").split())
    return fields


def resolve(text, settings):
    words = {name: by_x(v) if isinstance(v, tuple) else str(v) for name, v in settings.items()}
    return re.sub(r"\$(\w+)", lambda m: words[m.group(1)], text)


def number(word):
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)


def default_geometry(rng, pipeline, file):
    """The kernel, strides and paddings that it is measured at, on a small input."""
    g = {name: (int(file["set"].get(name, "0")),) * pipeline.rank for name in ("stride", "padding", "output_padding")}
    g["kernel"] = tuple(int(k) for k in file["shape"].split("=")[1].split("x")[2:])
    g["dilation"] = (1,) * pipeline.rank
    while True:
        g["extents"] = tuple(int(rng.integers(2, 6)) for _ in range(pipeline.rank))
        if min(output_extents(g)) >= pipeline.least:
            return g


def pipeline_case(rng, pipeline, kind, strange="", overrides=None):
    file = read_upw(ROOT / "pipelines" / f"{pipeline.slug}.upw")
    settings = {name: number(word) for name, word in file["set"].items()} | (overrides or {})
    while True:
        if kind == "default":
            g = default_geometry(rng, pipeline, file)
        else:
            g = draw_geometry(rng, pipeline.rank, kind, pipeline.least, "output_padding" in settings)
        settings |= {name: g[name] for name in ("stride", "padding", "output_padding") if name in settings}
        channels = int(rng.choice([1, 2, 3, 5])), int(rng.choice(WIDE if kind == "wide" else [3, 5, 6, 7, 9, 11, 17]))
        if "num_groups" in settings:
            settings["num_groups"] = int(rng.choice([1, 2, 3]))
            each = [11, 13, 17] if kind == "wide" else [2, 3, 5]
            channels = channels[0], settings["num_groups"] * int(rng.choice(each))
        batch = int(rng.integers(2 if pipeline.batch_statistics or strange else 1, 4))
        divisor = settings.get("pool_kernel", pipeline.divisor)
        extents = tuple(i * divisor + int(rng.integers(0, divisor)) for i in g["extents"])
        follow = {"channel": channels[1:], "scalar": (1,), "full": (batch, channels[1], *output_extents(g)),
                  "last": output_extents(g)[-1:]}
        shapes = {"input": (batch, channels[0], *extents), "kernel": channels + g["kernel"]}
        shapes |= {name: follow[what] for name, what in pipeline.tensors.items()}
        stored = sum(int(np.prod(shape)) for shape in shapes.values())
        if stored > MOST_VALUES:
            continue
        tensors = {name: values(rng, shape, 0.5 if name == "kernel" else 1.0) for name, shape in shapes.items()}
        if kind == "sparse":
            for name in tensors:
                if name.endswith("_weight") and tensors[name].size > 1:
                    tensors[name][1] = 0.0  # neither sign: the boundary of the rule for pools behind a norm
        put_strange(rng, tensors["input"], strange.split())
        t = {name: torch.tensor(a) for name, a in tensors.items()}
        output = pipeline.function(t["input"], t, settings).numpy()
        if output.size <= MOST_VALUES and (strange or telling(output) or settings.get("scaling_factor") == 0):
            return resolve(file["text"], settings), tensors, output


def pipeline_cases(rng_of):
    for pipeline in torch_pipelines.PIPELINES:
        plans = [("default", "", {}), ("asymmetric", "", {}), ("thin", "", {}), ("sparse", "", {}),
                 ("asymmetric", "nan", {}), ("asymmetric", "inf -inf", {}), ("wide", "", {})]
        plans += [("asymmetric", "", overrides) for overrides in pipeline.sweep]
        for i, (kind, strange, overrides) in enumerate(plans):
            name = f"{pipeline.slug}-{i}-{kind}" + "".join("-" + w.strip("-") for w in strange.split())
            yield pipeline.slug, name, *pipeline_case(rng_of(name), pipeline, kind, strange, overrides)


def conv_case(rng, rank, kind, bias):
    while True:
        g = draw_geometry(rng, rank, {"grouped": "dilated", "strange": "asymmetric"}.get(kind, kind), 1)
        groups = int(rng.choice([2, 3])) if kind == "grouped" else 1
        cin, cout = groups * int(rng.integers(1, 4)), groups * int(rng.choice(WIDE if kind == "wide" else [1, 3, 5]))
        shapes = {"input": (int(rng.integers(1, 4)), cin, *g["extents"]), "kernel": (cin, cout // groups, *g["kernel"])}
        if bias:
            shapes["bias"] = (cout,)
        if sum(int(np.prod(shape)) for shape in shapes.values()) > MOST_VALUES:
            continue
        tensors = {name: values(rng, shape) for name, shape in shapes.items()}
        if kind == "strange":
            put_strange(rng, tensors["input"], ["nan", "inf"] if bias else ["-inf"])
        t = {name: torch.tensor(a) for name, a in tensors.items()}
        output = torch_operations.conv(t["input"], t["kernel"], t.get("bias"), stride=g["stride"],
                                       padding=g["padding"], output_padding=g["output_padding"],
                                       dilation=g["dilation"], groups=groups).numpy()
        if output.size <= MOST_VALUES and telling(output):
            words = [f"{word}{by_x(g[name])}" for word, name in
                     (("s", "stride"), ("p", "padding"), ("op", "output_padding"), ("d", "dilation"))]
            text = " ".join(["conv_transpose kernel", *(["bias"] if bias else []), *words, f"g{groups}"])
            return text, tensors, output


def conv_cases(rng_of):
    """The convolution alone: every rank and kind, with and without bias, groups and dilation."""
    for rank in (1, 2, 3):
        for kind in ("asymmetric", "thin", "sparse", "dilated", "grouped", "strange", "wide"):
            for bias in (False, True):
                name = f"conv_transpose-{rank}d-{kind}" + "-bias" * bias
                yield f"conv_transpose-{rank}d", name, *conv_case(rng_of(name), rank, kind, bias)


def operation_cases(rng_of):
    for row in torch_operations.rows():
        rng = rng_of(row.name)
        tensors = {"input": values(rng, row.shape, row.scale)}
        tensors |= {name: values(rng, shape) for name, shape in row.tensors.items()}
        put_strange(rng, tensors["input"], row.strange.split())
        t = {name: torch.tensor(a) for name, a in tensors.items()}
        yield row.family, row.name, row.text, tensors, row.function(t["input"], t).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=COMMITTED_SEED)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "tests" / "data" / "torch")
    options = parser.parse_args()
    print(f"seed {options.seed}, torch {torch.__version__}", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    # Each case has its own generator, so that one more case leaves the others as they are.
    rng_of = lambda name: np.random.default_rng([options.seed, zlib.crc32(name.encode())])
    lines, files = [], {}
    for make in (pipeline_cases, conv_cases, operation_cases):
        for family, name, text, tensors, output in make(rng_of):
            assert output.dtype == np.float64, name
            parts = files.setdefault(f"{family}.npy", [])
            case = {"name": re.sub(r"\W+", "_", name), "text": text, "file": f"{family}.npy",
                    "offset": sum(part.size for part in parts),
                    "tensors": [[n, list(a.shape)] for n, a in tensors.items()], "output": list(output.shape)}
            parts += [a.reshape(-1) for a in [*tensors.values(), output]]
            lines.append(json.dumps(case))
    for file, parts in files.items():
        np.save(options.output / file, np.concatenate(parts))
    (options.output / "cases.jsonl").write_text("\n".join(lines) + "\n")
    names = [json.loads(line)["name"] for line in lines]
    assert len(set(names)) == len(names), {name for name in names if names.count(name) > 1}
    print(f"{len(lines)} cases in {options.output}")


if __name__ == "__main__":
    main()
