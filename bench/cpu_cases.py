"""The CPU benchmark's cases: tensors in files, the float64 answer, and what each contender is started with."""
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "peers"))
import torch_peer  # noqa: E402

BATCH = {  # small enough for an afternoon's tuning; the documents' own
    "conv-transpose3d-sum-layernorm-avgpool-gelu": (2, 32),
    "conv-transpose3d-layernorm-gelu-scaling": (2, 32),
    "conv-transpose3d-max-max-sum": (1, 16),
    "conv-transpose3d-avgpool-clamp-softmax-multiply": (2, 32),
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": (16, 512),
}
OVER_THE_BATCH = "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm"  # every output depends on every sample


def input_shape(slug, batch):
    return tuple(extent or batch for extent in torch_peer.SHAPES[slug]["input"])


def write_tensors(slug, batch, folder, seed):
    """Signed, seeded, small enough that the clamp does not saturate, and exact in bfloat16 too, so that one answer
    serves both element types."""
    rng = np.random.default_rng(seed)
    os.makedirs(f"{folder}/bf16", exist_ok=True)
    for name, shape in torch_peer.SHAPES[slug].items():
        shape = tuple(extent or batch for extent in shape)
        data = (rng.random(shape, dtype=np.float32) - 0.5) * (0.3 if name == "kernel" else 1.0)
        bits = data.view(np.uint32) & 0xFFFF0000
        bits.tofile(f"{folder}/{name}.bin")
        (bits >> 16).astype(np.uint16).tofile(f"{folder}/bf16/{name}.bin")


def truth(slug, batch, folder):
    """The float64 answer of some samples: all of them, or the first and the last of many that do not depend on each
    other. Returns their numbers and their outputs."""
    import torch
    torch.set_grad_enabled(False)
    samples = list(range(batch)) if batch <= 16 or slug == OVER_THE_BATCH else [0, batch - 1]
    tensors = torch_peer.load(slug, folder, batch)
    tensors[0] = tensors[0][samples]
    form = torch_peer.FORMS[slug][0]
    return samples, form(*(t.double() for t in tensors)).contiguous().numpy()


def error(path, batch, samples, answer):
    """The largest error over the largest value, and what is allowed: a contender's own arithmetic, and for bfloat16
    one rounding."""
    if "bf16" in os.path.basename(path):
        got, allowed = np.memmap(path, dtype=np.uint16, mode="r"), 2.0**-8
    else:
        got, allowed = np.memmap(path, dtype=np.float32, mode="r"), 1e-4
    got = got.reshape(batch, -1)[samples]
    if got.dtype == np.uint16:
        got = (got.astype(np.uint32) << 16).view(np.float32)
    return float(np.abs(got.reshape(answer.shape) - answer).max() / np.abs(answer).max()), allowed


def contenders(peers, slug, batch, folder):
    """Name -> (command, the file its answer goes to, bytes it keeps, bytes of its largest run besides)."""
    torch = [sys.executable, os.path.join(HERE, "peers", "torch_peer.py"), slug, folder, str(batch)]
    ours = [os.path.join(peers, "upweave"), slug, folder, str(batch), "f32"]
    ours16 = [os.path.join(peers, "upweave"), slug, f"{folder}/bf16", str(batch), "bf16"]
    onednn = [os.path.join(peers, "onednn"), slug]
    inputs, upsampled, output = sizes(slug, batch)
    all_of_them = {
        "upweave": (ours + ["auto", "2", "once"], "upweave-f32-auto.bin", inputs + output, 0),
        "upweave pack+run": (ours + ["auto", "2", "each"], "upweave-f32-auto.bin", inputs + output, 0),
        "upweave direct": (ours + ["direct", "2", "once"], "upweave-f32-direct.bin", inputs + output, 0),
        "upweave 1 thread": (ours + ["auto", "1", "once"], "upweave-f32-auto.bin", inputs + output, 0),
        "onednn": (onednn + [folder, str(batch), "f32"], "onednn-f32.bin", inputs + output, 0),
        "upweave bf16": (ours16 + ["auto", "2", "once"], "bf16/upweave-bf16-auto.bin", (inputs + output) // 2, 0),
        "onednn bf16": (onednn + [f"{folder}/bf16", str(batch), "bf16"], "bf16/onednn-bf16.bin",
                        (inputs + output) // 2, 0),
    }
    if slug == OVER_THE_BATCH:  # the convolution's outputs are kept between its sweeps
        for name in ("onednn", "onednn bf16"):
            command, file, keeps, more = all_of_them[name]
            all_of_them[name] = (command, file, keeps + upsampled, more)
    for mode in ("eager", "compile"):
        for layout, suffix in (("contiguous", ""), ("channels_last_input", " cl in"), ("channels_last", " cl")):
            # Up to five tensors of the upsampled size live at once; they are given back after each run.
            all_of_them[f"torch {mode}{suffix}"] = (torch + [mode, layout, "f32"], f"torch-{mode}-{layout}-f32.bin",
                                                    2 * inputs, 5 * upsampled)
    return all_of_them


def sizes(slug, batch):
    """Bytes of the inputs, of the upsampled tensor and of the output, in float32."""
    shapes = torch_peer.SHAPES[slug]
    inputs = 4 * int(np.prod(input_shape(slug, batch)))
    channels = shapes["kernel"][1]
    voxels = {3: 32 * 64 * 64, 4: 32 * 64 * 64, 5: 63**3}[shapes["kernel"][2]] if len(shapes["kernel"]) == 5 else 34**2
    upsampled = 4 * batch * channels * voxels
    pooled = 8 if "avgpool-gelu" in slug else 216 * 64 if "max-max" in slug else 4 if slug == OVER_THE_BATCH else 1
    return inputs, upsampled, upsampled // pooled
