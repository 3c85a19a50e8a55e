"""The upsampling half of a HiFi-GAN style vocoder: from 80 mel bands to a waveform, 256 samples a frame.

    python examples/vocoder.py [--quick] [--plot vocoder.png]
"""

import torch
import torch.nn.functional as F
from torch import nn

from measure import compare


class Residual(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=dilation, dilation=dilation)

    def forward(self, x):
        return x + self.conv(F.leaky_relu(x, 0.1))


class Vocoder(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.mixes = nn.ModuleList(), nn.ModuleList()
        for stride, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, kernel, stride, (kernel - stride) // 2))
            width //= 2
            self.mixes.append(nn.Sequential(Residual(width, 1), Residual(width, 3)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel):
        x = self.first(mel)
        for up, mix in zip(self.ups, self.mixes):
            x = mix(up(F.leaky_relu(x, 0.1)))
        return torch.tanh(self.last(F.leaky_relu(x)))


if __name__ == "__main__":
    torch.manual_seed(0)
    compare("HiFi-GAN style vocoder", Vocoder(), lambda quick: [torch.randn(1, 80, 8 if quick else 64)])
