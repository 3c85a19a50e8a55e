"""The decoder of a 3D U-Net: upsampling by k2 s2 transposed convolutions with InstanceNorm and LeakyReLU.

    python examples/unet3d_decoder.py [--quick] [--plot unet3d.png]
"""

import torch
from torch import nn

from measure import compare


class Up(nn.Module):
    """Doubles every axis, then mixes."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.up = nn.Sequential(nn.ConvTranspose3d(inputs, outputs, 2, stride=2),
                                nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU(0.01, inplace=True))
        self.mix = nn.Sequential(nn.Conv3d(outputs, outputs, 1), nn.LeakyReLU(0.01, inplace=True))

    def forward(self, x):
        return self.mix(self.up(x))


class Decoder(nn.Sequential):
    def __init__(self):
        super().__init__(Up(128, 64), Up(64, 32), Up(32, 16), nn.Conv3d(16, 3, 1))


if __name__ == "__main__":
    torch.manual_seed(0)
    compare("3D U-Net decoder", Decoder(), lambda quick: torch.randn(1, 128, *(4, 4, 4) if quick else (8, 16, 16)))
