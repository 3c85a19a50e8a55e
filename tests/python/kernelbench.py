"""The 30 models of KernelBench level 2 that hold a transposed convolution, written from their formulas: the layers
around the convolution as they are there, the sizes small and uneven. Norms are in training mode, as it runs them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

SPACE2, SPACE3 = (2, 3), (2, 3, 4)


class Model(nn.Module):
    def __init__(self, forward, x, conv, conv_bias=True, layers=None, **parameters):
        super().__init__()
        out, kernel, stride, padding, extra = conv
        make = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(x) - 3]
        self.conv = make(x[1], out, kernel, stride=stride, padding=padding, output_padding=extra, bias=conv_bias)
        for name, layer in (layers or {}).items():
            self.add_module(name, layer)
        for name, shape in parameters.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.3))
        for parameter in self.parameters():  # affine weights of 1 and biases of 0 would hide a mistake
            if parameter.dim() == 1:
                nn.init.normal_(parameter)
        self.function, self.shape = forward, x

    def forward(self, *inputs):
        return self.function(self, *inputs)


def _13(m, x):
    return torch.tanh(torch.softmax(torch.mean(m.conv(x), dim=2, keepdim=True) + m.bias, dim=1)) * 2.0


def _15(m, x):
    x = m.norm(m.conv(x))
    return x - torch.mean(x, dim=SPACE3, keepdim=True)


def _20(m, x):
    original = m.conv(x)
    return ((original + m.bias) + original) * original + original


def _26(m, x, added):
    x = m.conv(x) + added
    return x * F.hardswish(x)


def _36(m, x):
    x = torch.min(m.conv(x), dim=1, keepdim=True)[0]
    return F.gelu(torch.sum(x, dim=2, keepdim=True)) + m.bias


def _38(m, x):
    x = torch.clamp(m.conv(m.pool(x)), 0.0, 1.0)
    b, c, d, h, w = x.shape
    return torch.softmax(x.view(b, c, -1), dim=2).view(b, c, d, h, w) * m.scale


def _42(m, x):
    x = torch.mean(m.conv(x), dim=SPACE2, keepdim=True) + m.bias
    x = torch.logsumexp(x, dim=1, keepdim=True)
    return torch.sum(x, dim=SPACE2) * 10.0


def _44(m, x):
    x = torch.mean(m.conv(x) * 0.5, dim=[2, 3], keepdim=True)
    return torch.mean(x, dim=[2, 3], keepdim=True)


def _58(m, x):
    x = torch.logsumexp(m.conv(x), dim=1, keepdim=True)
    return torch.clamp(x * torch.sigmoid(x + 3) / 6 - m.bias, min=-1, max=1)


def _60(m, x):
    x = m.conv(x)
    return F.hardswish(m.norm(torch.sigmoid(x) * x))


def _89(m, x):
    x = torch.softmax(m.pool(m.conv(x)), dim=1)
    x = x - m.subtract.view(1, -1, 1, 1, 1)
    return torch.max(torch.sigmoid(x) * x, dim=1)[0]


def _93(m, x):
    x = torch.min(m.conv(x) + 0.5, torch.tensor(0.0, device=x.device))
    return F.gelu(x) * 2.0


MODELS = {
    2: lambda: Model(lambda m, x: torch.clamp(torch.clamp(m.conv(x) + m.bias, 0.0, 1.0) * 2.0, 0.0, 1.0) / 2.0,
                     (2, 5, 7, 6), (6, 3, 2, 1, 1), bias=(6, 1, 1)),
    3: lambda: Model(lambda m, x: F.gelu(m.pool(m.norm(m.conv(x) + m.weight))), (2, 3, 3, 4, 4), (5, 3, 2, 1, 1),
                     layers={"norm": nn.LayerNorm(8), "pool": nn.AvgPool3d(2)}, weight=()),
    5: lambda: Model(lambda m, x: torch.tanh(m.conv(x) - m.bias), (2, 5, 6, 7), (6, 4, 2, 1, 1), bias=(6, 1, 1)),
    10: lambda: Model(lambda m, x: torch.tanh(torch.mean(m.limit(m.pool(m.conv(x))), dim=SPACE2, keepdim=True)),
                      (2, 5, 9, 8), (6, 3, 1, 1, 0), layers={"pool": nn.MaxPool2d(2, stride=2), "limit": nn.Hardtanh(-1, 1)}),
    11: lambda: Model(lambda m, x: m.group(m.pool(m.tanh(m.norm(m.conv(x))))), (4, 5, 6, 7), (8, 5, 1, 1, 0),
                      layers={"norm": nn.BatchNorm2d(8), "tanh": nn.Tanh(), "pool": nn.MaxPool2d(2, 2),
                              "group": nn.GroupNorm(4, 8)}),
    13: lambda: Model(_13, (2, 4, 5, 6, 7), (6, 3, 1, 1, 0), bias=(1, 6, 1, 1, 1)),
    15: lambda: Model(_15, (3, 4, 4, 5, 6), (6, 3, 2, 1, 0), layers={"norm": nn.BatchNorm3d(6)}),
    16: lambda: Model(lambda m, x: F.hardtanh(F.mish(m.conv(x)) + 0.5, min_val=-1, max_val=1) * 2.0, (2, 5, 6, 7),
                      (6, 3, 2, 1, 1)),
    19: lambda: Model(lambda m, x: m.norm(F.gelu(m.conv(x))), (2, 5, 6, 7), (8, 3, 1, 0, 0),
                      layers={"norm": nn.GroupNorm(4, 8)}),
    20: lambda: Model(_20, (2, 4, 3, 4, 5), (6, 3, 2, 1, 1), bias=(6, 1, 1, 1)),
    26: lambda: Model(_26, (2, 4, 3, 4, 5), (6, 3, 2, 1, 1)),
    34: lambda: Model(lambda m, x: m.gelu(m.norm(m.conv(x))) * 1.0, (2, 3, 3, 4, 4), (5, 4, 2, 1, 0),
                      layers={"norm": nn.LayerNorm(8, eps=1e-5), "gelu": nn.GELU()}),
    36: lambda: Model(_36, (2, 5, 6, 7), (6, 3, 2, 1, 1), bias=(1, 1, 1)),
    38: lambda: Model(_38, (2, 4, 6, 8, 6), (6, 3, 2, 1, 1), layers={"pool": nn.AvgPool3d(2)}, scale=(1, 6, 1, 1, 1)),
    42: lambda: Model(_42, (2, 5, 8, 9), (6, 3, 1, 0, 0), bias=(6, 1, 1)),
    44: lambda: Model(_44, (2, 5, 8, 9), (6, 3, 2, 1, 1)),
    49: lambda: Model(lambda m, x: m.sigmoid(m.softmax(m.conv(x))), (2, 4, 3, 4, 5), (6, 3, 2, 1, 1),
                      layers={"softmax": nn.Softmax(dim=1), "sigmoid": nn.Sigmoid()}),
    50: lambda: Model(lambda m, x: (m.pool(m.conv(x) * m.scale1) + m.bias) * m.scale2, (2, 3, 4, 5, 6), (6, 3, 2, 1, 0),
                      layers={"pool": nn.AvgPool3d(kernel_size=2)}, scale1=(), bias=(6, 1, 1, 1), scale2=()),
    58: lambda: Model(_58, (2, 3, 4, 5, 6), (6, 3, 2, 1, 0), bias=(1, 1, 1, 1)),
    60: lambda: Model(_60, (2, 3, 4, 5, 6), (8, 3, 2, 1, 0), layers={"norm": nn.GroupNorm(4, 8, eps=1e-5)}),
    61: lambda: Model(lambda m, x: m.norm(m.relu(m.conv(x))), (2, 4, 5, 4, 6), (8, 3, 1, 0, 0), conv_bias=False,
                      layers={"relu": nn.ReLU(), "norm": nn.GroupNorm(num_groups=4, num_channels=8)}),
    72: lambda: Model(lambda m, x: m.pool2(m.pool1(m.norm(m.conv(x)))), (3, 3, 6, 5, 6), (6, 3, 2, 1, 0),
                      layers={"norm": nn.BatchNorm3d(6), "pool1": nn.AvgPool3d(2), "pool2": nn.AvgPool3d(2)}),
    74: lambda: Model(lambda m, x: m.pool(m.leaky(m.leaky(m.conv(x)) * m.multiplier)), (2, 4, 3, 4, 5), (6, 3, 2, 1, 1),
                      layers={"leaky": nn.LeakyReLU(negative_slope=0.2), "pool": nn.MaxPool3d(kernel_size=2)},
                      multiplier=(6, 1, 1, 1)),
    77: lambda: Model(lambda m, x: m.pool(m.norm(m.conv(x) * 2.0)), (3, 4, 3, 4, 5), (6, 5, 1, 0, 0),
                      layers={"norm": nn.BatchNorm3d(6), "pool": nn.AdaptiveAvgPool3d((1, 1, 1))}),
    78: lambda: Model(lambda m, x: torch.sum(m.pool2(m.pool1(m.conv(x))), dim=1, keepdim=True), (2, 4, 5, 6, 7),
                      (6, 5, 2, 2, 0), layers={"pool1": nn.MaxPool3d(kernel_size=2), "pool2": nn.MaxPool3d(kernel_size=3)}),
    89: lambda: Model(_89, (2, 3, 4, 5, 6), (6, 3, 2, 1, 1), subtract=(6,),
                      layers={"pool": nn.MaxPool3d(kernel_size=2, stride=2, padding=0)}),
    91: lambda: Model(lambda m, x: torch.sigmoid((torch.softmax(m.conv(x), dim=1) + m.bias) * 2.0), (2, 5, 6, 7),
                      (8, 4, 2, 1, 1), bias=(8, 1, 1)),
    93: lambda: Model(_93, (2, 5, 6, 7), (8, 4, 2, 0, 0)),
    96: lambda: Model(lambda m, x: torch.clamp(m.mean(m.pool(m.conv(x) * 0.5)), min=0, max=1), (2, 3, 4, 5, 6),
                      (6, 3, 2, 1, 0), layers={"pool": nn.MaxPool3d(kernel_size=2), "mean": nn.AdaptiveAvgPool3d((1, 1, 1))}),
    100: lambda: Model(lambda m, x: torch.clamp(m.conv(x), min=-1.0) / 2.0, (2, 5, 3, 4, 5), (8, 3, 2, 1, 0)),
}


def make(number):
    """The model and its inputs, from a seed, with values that no function of the chain flattens."""
    torch.manual_seed(number)
    model = MODELS[number]()
    x = torch.randn(model.shape)
    if number == 36:  # a sum of minima: anything but small and positive is lost in gelu
        nn.init.uniform_(model.conv.bias, 0, 0.2)
        return model, (x * 0.05,)
    if number == 26:
        return model, (x, torch.randn(model.conv(x).shape))
    return model, (x,)
