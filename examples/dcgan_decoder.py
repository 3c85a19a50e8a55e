"""The generator of a DCGAN, which is also the decoder of a convolutional VAE: from 100 numbers to a 64x64 picture.

    python examples/dcgan_decoder.py [--quick] [--plot dcgan.png]
"""

import torch
from torch import nn

from measure import compare


def block(inputs, outputs, stride=2, padding=1):
    return [nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True)]


class Generator(nn.Sequential):
    def __init__(self, width=64):
        super().__init__(*block(100, width * 8, 1, 0), *block(width * 8, width * 4), *block(width * 4, width * 2),
                         *block(width * 2, width), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


if __name__ == "__main__":
    torch.manual_seed(0)
    compare("DCGAN generator", Generator(), lambda quick: [torch.randn(1 if quick else 16, 100, 1, 1)])
