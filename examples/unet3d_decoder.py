"""The decoder of a 3D U-Net: k2 s2 transposed convolutions with InstanceNorm and LeakyReLU, and the encoder's values
come in from the side.

    python examples/unet3d_decoder.py [--quick] [--plot unet3d.png]
"""

import torch
from torch import nn

from measure import compare


def normed(convolution):
    return nn.Sequential(convolution, nn.InstanceNorm3d(convolution.out_channels, affine=True),
                         nn.LeakyReLU(0.01, inplace=True))


class Up(nn.Module):
    """Doubles every axis, then mixes with what the encoder had at that size."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = normed(nn.ConvTranspose3d(inputs, outputs, 2, stride=2))
        self.mix = normed(nn.Conv3d(2 * outputs, outputs, 3, padding=1))

    def forward(self, x, skip):
        return self.mix(torch.cat([self.up(x), skip], 1))


class Decoder(nn.Module):
    def __init__(self, widths=(128, 64, 32, 16), classes=3):
        super().__init__()
        self.ups = nn.ModuleList(Up(*pair) for pair in zip(widths, widths[1:]))
        self.last = nn.Conv3d(widths[-1], classes, 1)

    def forward(self, x, *skips):
        for up, skip in zip(self.ups, skips):
            x = up(x, skip)
        return self.last(x)


def make_inputs(quick):
    depth, height, width = (2, 4, 4) if quick else (8, 16, 16)
    return [torch.randn(1, 128 >> i, depth << i, height << i, width << i) for i in range(4)]


if __name__ == "__main__":
    torch.manual_seed(0)
    compare("3D U-Net decoder", Decoder(), make_inputs)
