"""KernelBench's 30 models (kernelbench.py) at the sizes it measures them at."""

import torch
import torch.nn as nn

import kernelbench

# Input, and the convolution's (channels, kernel, stride, padding, output padding).
SIZES = {
    2: ((128, 64, 128, 128), (64, 3, 2, 1, 1)),
    3: ((32, 32, 16, 32, 32), (64, 3, 2, 1, 1)),
    5: ((32, 64, 256, 256), (64, 4, 2, 1, 1)),
    10: ((128, 64, 256, 256), (64, 3, 1, 1, 0)),
    11: ((512, 64, 32, 32), (128, 5, 1, 1, 0)),
    13: ((16, 16, 32, 128, 128), (64, 3, 1, 1, 0)),
    15: ((16, 16, 16, 32, 32), (32, 3, 2, 1, 0)),
    16: ((128, 64, 128, 128), (64, 3, 2, 1, 1)),
    19: ((128, 64, 256, 256), (64, 3, 1, 0, 0)),
    20: ((16, 32, 16, 32, 32), (64, 3, 2, 1, 1)),
    26: ((128, 32, 16, 16, 16), (64, 3, 2, 1, 1)),
    34: ((32, 32, 16, 32, 32), (64, 4, 2, 1, 0)),
    36: ((16, 64, 128, 128), (128, 3, 2, 1, 1)),
    38: ((32, 32, 32, 64, 64), (64, 3, 2, 1, 1)),
    42: ((16, 64, 512, 512), (128, 3, 1, 0, 0)),
    44: ((16, 64, 128, 128), (128, 3, 2, 1, 1)),
    49: ((16, 32, 16, 32, 32), (64, 3, 2, 1, 1)),
    50: ((128, 3, 16, 32, 32), (16, 3, 2, 1, 0)),
    58: ((128, 3, 16, 32, 32), (16, 3, 2, 1, 0)),
    60: ((128, 3, 16, 32, 32), (16, 3, 2, 1, 0)),
    61: ((16, 64, 32, 32, 32), (128, 3, 1, 0, 0)),
    72: ((64, 3, 32, 32, 32), (16, 3, 2, 1, 0)),
    74: ((16, 16, 16, 32, 32), (32, 3, 2, 1, 1)),
    77: ((16, 64, 16, 32, 32), (128, 5, 1, 0, 0)),
    78: ((16, 32, 32, 32, 32), (64, 5, 2, 2, 0)),
    89: ((128, 3, 16, 32, 32), (16, 3, 2, 1, 1)),
    91: ((128, 64, 64, 64), (128, 4, 2, 1, 1)),
    93: ((128, 64, 64, 64), (128, 4, 2, 0, 0)),
    96: ((128, 3, 16, 32, 32), (16, 3, 2, 1, 0)),
    100: ((16, 64, 24, 48, 48), (128, 3, 2, 1, 0)),
}
GROUPS = {11: 8, 19: 8, 60: 4, 61: 8}


def make(number, batch=None):
    """The model of full size and the shapes of its inputs; `batch` replaces that of KernelBench."""
    shape, (out, kernel, stride, padding, extra) = SIZES[number]
    if batch is not None:
        shape = (batch, *shape[1:])
    model = kernelbench.MODELS[number]()
    small = model.conv.out_channels
    model.conv = type(model.conv)(shape[1], out, kernel, stride=stride, padding=padding, output_padding=extra,
                                  bias=model.conv.bias is not None)
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.GroupNorm):
            setattr(model, name, nn.GroupNorm(GROUPS[number], out))
        elif isinstance(layer, (nn.BatchNorm2d, nn.BatchNorm3d)):
            setattr(model, name, type(layer)(out))
        elif isinstance(layer, nn.LayerNorm):
            setattr(model, name, nn.LayerNorm(64))
    for name, parameter in list(model.named_parameters(recurse=False)):
        size = [out if extent == small and small > 1 else extent for extent in parameter.shape]
        setattr(model, name, nn.Parameter(torch.randn(size) * 0.3))
    shapes = [shape]
    if number == 26:
        shapes.append((shape[0], out, *(stride * extent for extent in shape[2:])))
    return model, shapes
