"""PyTorch as a contender: `torch_peer.py SLUG FOLDER BATCH eager|compile LAYOUT f32|bf16`, where LAYOUT is
contiguous, channels_last_input (the weights contiguous) or channels_last (input and weights).

Speaks the protocol of worker.h. Each pipeline has two forms of the same mathematics, as a user would write it and
without permutes (kinder to graph compilers); the one that is faster on a few samples is kept.
"""
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

SHAPES = {  # tensors in the documents' order; 0 stands for the batch
    "conv-transpose3d-sum-layernorm-avgpool-gelu": {"input": (0, 32, 16, 32, 32), "kernel": (32, 64, 3, 3, 3)},
    "conv-transpose3d-layernorm-gelu-scaling": {"input": (0, 32, 16, 32, 32), "kernel": (32, 64, 4, 4, 4)},
    "conv-transpose3d-max-max-sum": {"input": (0, 32, 32, 32, 32), "kernel": (32, 64, 5, 5, 5), "conv_bias": (64,)},
    "conv-transpose3d-avgpool-clamp-softmax-multiply": {
        "input": (0, 32, 32, 64, 64), "kernel": (32, 64, 3, 3, 3), "scale": (1, 64, 1, 1, 1)},
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": {
        "input": (0, 64, 32, 32), "kernel": (64, 128, 5, 5), "bn_weight": (128,), "bn_bias": (128,),
        "gn_weight": (128,), "gn_bias": (128,)},
}


def norm_last(x):
    return F.layer_norm(x.permute(0, 2, 3, 4, 1), (x.shape[1],)).permute(0, 4, 1, 2, 3)


def norm_means(x):
    d = x - x.mean(1, keepdim=True)
    return d * torch.rsqrt((d * d).mean(1, keepdim=True) + 1e-5)


def sum_layernorm(norm):
    return lambda x, k: F.gelu(F.avg_pool3d(norm(F.conv_transpose3d(x, k, stride=2, padding=1, output_padding=1) + 1.0), 2))


def layernorm(norm):
    return lambda x, k: F.gelu(norm(F.conv_transpose3d(x, k, stride=2, padding=1))) * 1.0


def max_written(x, k, b):
    return F.max_pool3d(F.max_pool3d(F.conv_transpose3d(x, k, b, stride=2, padding=2), 2), 3).sum(1, keepdim=True)


def max_merged(x, k, b):
    return F.max_pool3d(F.conv_transpose3d(x, k, None, stride=2, padding=2), 6).sum(1, keepdim=True) + b.sum()


def softmax_written(x, k, s):
    y = F.conv_transpose3d(F.avg_pool3d(x, 2), k, stride=2, padding=1, output_padding=1).clamp(0.0, 1.0)
    return torch.softmax(y.flatten(2), 2).view_as(y) * s


def softmax_plain(x, k, s):
    e = torch.exp(F.conv_transpose3d(F.avg_pool3d(x, 2), k, stride=2, padding=1, output_padding=1).clamp(0.0, 1.0))
    return e * (s / e.sum((2, 3, 4), keepdim=True))


def batchnorm(x, k, bw, bb, gw, gb):
    y = F.batch_norm(F.conv_transpose2d(x, k, stride=1, padding=1), None, None, bw, bb, training=True)
    return F.group_norm(F.max_pool2d(torch.tanh(y), 2), 8, gw, gb)


FORMS = {
    "conv-transpose3d-sum-layernorm-avgpool-gelu": [sum_layernorm(norm_last), sum_layernorm(norm_means)],
    "conv-transpose3d-layernorm-gelu-scaling": [layernorm(norm_last), layernorm(norm_means)],
    "conv-transpose3d-max-max-sum": [max_written, max_merged],
    "conv-transpose3d-avgpool-clamp-softmax-multiply": [softmax_written, softmax_plain],
    "conv-transpose2d-batchnorm-tanh-maxpool-groupnorm": [batchnorm],
}


def load(slug, folder, batch):
    tensors = []
    for name, shape in SHAPES[slug].items():
        shape = tuple(extent or batch for extent in shape)
        tensors.append(torch.from_numpy(np.fromfile(f"{folder}/{name}.bin", dtype=np.float32).reshape(shape)))
    return tensors


def once(f, tensors):
    start = time.perf_counter()
    f(*tensors)
    return (time.perf_counter() - start) * 1e3


def main():
    slug, folder, batch, mode, layout, dtype = sys.argv[1:7]
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    tensors = load(slug, folder, int(batch))
    if dtype == "bf16":
        tensors = [t.bfloat16() for t in tensors]
    for i in range({"contiguous": 0, "channels_last_input": 1, "channels_last": 2}[layout]):  # input, then kernel
        form = torch.channels_last_3d if tensors[i].dim() == 5 else torch.channels_last
        tensors[i] = tensors[i].contiguous(memory_format=form)
    few = [tensors[0][:16 if tensors[0].dim() == 4 else 2], *tensors[1:]]
    best, best_time = None, float("inf")
    for form in FORMS[slug]:
        f = torch.compile(form, dynamic=False) if mode == "compile" else form
        compiled = once(f, few)
        once(f, few)
        least = min(once(f, few) for _ in range(3))
        if least < best_time:
            best, best_time, first = f, least, compiled
    if few[0].shape != tensors[0].shape:
        first = once(best, tensors)  # with torch.compile, another compilation
    best(*tensors).float().contiguous().numpy().tofile(f"{folder}/torch-{mode}-{layout}-{dtype}.bin")
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "run":
            print(*(f"{once(best, tensors):.6f}" for _ in range(int(words[1]))), flush=True)
        elif words[0] == "first":
            print(f"{first:.3f}", flush=True)
        elif words[0] == "memory":
            with open("/proc/self/status") as status:
                print(next(float(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")), flush=True)


if __name__ == "__main__":
    main()
