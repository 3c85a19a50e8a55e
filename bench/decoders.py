"""Published decoders at the sizes that people run them at: random weights, built from PyPI's packages. What is not
installed is left out."""

import torch
from torch import nn

import zoo  # noqa: F401 -- torchvision can be imported after it, whichever build of PyTorch it was made for


class Sam(nn.Module):
    """The upscaling of SAM's mask decoder."""

    def __init__(self):
        super().__init__()
        from transformers.models.sam.modeling_sam import SamMaskDecoder, SamMaskDecoderConfig

        whole = SamMaskDecoder(SamMaskDecoderConfig())
        for name in ("upscale_conv1", "upscale_conv2", "upscale_layer_norm", "activation"):
            setattr(self, name, getattr(whole, name))

    def forward(self, x):
        x = self.activation(self.upscale_layer_norm(self.upscale_conv1(x)))
        return self.activation(self.upscale_conv2(x))


def hifigan():
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return SpeechT5HifiGan(SpeechT5HifiGanConfig())


def dac():
    from transformers import DacConfig, DacModel

    return DacModel(DacConfig()).decoder


class Vitpose(nn.Module):
    def __init__(self):
        super().__init__()
        from transformers import VitPoseBackboneConfig, VitPoseConfig
        from transformers.models.vitpose.modeling_vitpose import VitPoseClassicDecoder

        self.head = VitPoseClassicDecoder(VitPoseConfig(backbone_config=VitPoseBackboneConfig(hidden_size=768), num_labels=17))

    def forward(self, x):
        return self.head(x)


def monai_unet():
    from monai.networks.nets import UNet

    return UNet(3, 1, 2, (16, 32, 64, 128, 256), (2, 2, 2, 2), num_res_units=2)


def dynunet():
    from monai.networks.nets import DynUNet

    return DynUNet(3, 1, 3, [3] * 5, [1, 2, 2, 2, 2], [2] * 4, filters=[32, 64, 128, 256, 320])


def dcgan():
    layers, channels = [], [100, 512, 256, 128, 64]
    for i, (a, b) in enumerate(zip(channels, channels[1:])):
        layers += [nn.ConvTranspose2d(a, b, 4, 2 if i else 1, 1 if i else 0, bias=False), nn.BatchNorm2d(b), nn.ReLU(True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


class Vae(nn.Module):
    """The decoder of Stable Diffusion's AutoencoderKL."""

    def __init__(self):
        super().__init__()
        from diffusers import AutoencoderKL

        whole = AutoencoderKL(3, 3, ["DownEncoderBlock2D"] * 4, ["UpDecoderBlock2D"] * 4, (128, 256, 512, 512), 2)
        self.post_quant_conv, self.decoder = whole.post_quant_conv, whole.decoder

    def forward(self, x):
        return self.decoder(self.post_quant_conv(x))


# How it is built, and its input on a GPU and on a CPU.
DECODERS = {
    "SAM upscaling": (Sam, (8, 256, 64, 64), (1, 256, 64, 64)),
    "SpeechT5HifiGan": (hifigan, (8, 200, 80), (1, 60, 80)),
    "DAC decoder": (dac, (4, 1024, 172), (1, 1024, 20)),
    "ViTPose classic head": (Vitpose, (64, 768, 16, 12), (2, 768, 16, 12)),
    "MONAI UNet": (monai_unet, (2, 1, 128, 128, 128), (1, 1, 64, 64, 64)),
    "MONAI DynUNet": (dynunet, (2, 1, 128, 128, 128), (1, 1, 64, 64, 64)),
    "DCGAN generator": (dcgan, (256, 100, 1, 1), (16, 100, 1, 1)),
    "AutoencoderKL decoder": (Vae, (4, 4, 64, 64), (1, 4, 16, 16)),
}


def cases(device):
    for name, (build, gpu, cpu) in DECODERS.items():
        def make(build=build, shape=gpu if device == "cuda" else cpu):
            torch.manual_seed(0)
            return build().eval(), [torch.randn(shape) * 0.5]
        yield name, make
