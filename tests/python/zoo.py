"""Modules that other people wrote around transposed convolutions: random weights, small sizes, nothing downloaded.

CASES maps a name to a Case; its `make()` gives the module and its arguments. Packages that are not there leave their
cases out, and MISSING says so.
"""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import nn


@dataclass(frozen=True)
class Case:
    package: str
    build: Callable[[], tuple]

    def make(self, seed: int = 0) -> tuple[nn.Module, tuple]:
        torch.manual_seed(seed)
        model, *args = self.build()
        for module in model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = 0.0  # it draws numbers that no two of float32, float64 and a graph share
            for name, value in vars(module).items():  # weight_norm's product cannot be copied; each call makes it again
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    setattr(module, name, value.detach())
        # Weights that a checkpoint would fill may start as constants: norms and biases get values that matter.
        with torch.no_grad():
            for name, t in model.named_parameters():
                if t.is_floating_point() and t.numel() > 1 and t.min() == t.max():
                    t.add_(torch.randn_like(t) * 0.1)
            for name, t in model.named_buffers():
                if name.endswith("running_mean"):
                    t.copy_(torch.randn_like(t) * 0.1)
                elif name.endswith("running_var"):
                    t.copy_(torch.rand_like(t) + 0.5)
        return model, tuple(args)


CASES: dict[str, Case] = {}
# Why a package is missing, or nothing where it is there.
MISSING: dict[str, str] = {}


def _import(package: str) -> None:
    try:
        importlib.import_module(package)
    except RuntimeError:
        if package != "torchvision":
            raise
        # Its wheel holds kernels for another build of PyTorch. What is used of it is Python, which only wants to know
        # that these operators exist.
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module(package)


def _have(package: str) -> bool:
    if package not in MISSING:
        try:
            _import(package)
            MISSING[package] = ""
        except Exception as error:  # a package that is there but does not import is not there
            MISSING[package] = f"{type(error).__name__}: {error}"
    return not MISSING[package]


def case(name: str, build: Callable[[], tuple], package: str = "torch") -> None:
    if _have(package):
        CASES[name] = Case(package, build)


def get(path: str, name: str) -> Any:
    return getattr(importlib.import_module(path), name)


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


class Part(nn.Module):
    """A method of a module as a module, or a call with arguments that are no tensors."""

    def __init__(self, inner: nn.Module, call: Callable):
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *args: Any) -> Any:
        return self.call(self.inner, *args)


_have("torchvision")  # first: others import it where it is installed

# --- As papers and tutorials write them ---


def up(*channels: int, axes: int = 2, kernel: int = 4, norm: bool = True, act: Callable = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    conv = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 1]
    batch_norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
    for a, b in zip(channels, channels[1:]):
        layers += [conv(a, b, kernel, 2, kernel // 2 - 1, bias=not norm), *([batch_norm(b)] if norm else []), act()]
    return nn.Sequential(*layers)


class Decoder(nn.Module):
    """A U-Net's decoder: up, concatenate, convolve."""

    def __init__(self, axes: int = 2):
        super().__init__()
        conv_up = (nn.ConvTranspose2d, nn.ConvTranspose3d)[axes - 2]
        conv = (nn.Conv2d, nn.Conv3d)[axes - 2]
        self.up1, self.up2 = conv_up(16, 8, 2, 2), conv_up(8, 4, 2, 2)
        self.conv1, self.conv2 = conv(16, 8, 3, padding=1), conv(8, 4, 3, padding=1)

    def forward(self, low, middle, high):
        y = torch.relu_(self.conv1(torch.cat([self.up1(low), middle], 1)))
        return torch.relu_(self.conv2(torch.cat([self.up2(y), high], 1)))


class Gated(nn.Module):
    """Attention gate over a skip."""

    def __init__(self):
        super().__init__()
        self.up, self.gate = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 1, 1)

    def forward(self, low, skip):
        y = self.up(low)
        return torch.cat([y, skip * torch.sigmoid(self.gate(torch.cat([y, skip], 1)))], 1)


case("dcgan generator",
    lambda: (nn.Sequential(nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(
    True), up(32, 16, 8), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()), x(2, 16, 1, 1)))
case("gan 3d",
    lambda: (nn.Sequential(up(8, 8, 4, axes=3), nn.ConvTranspose3d(4, 1, 4, 2, 1), nn.Sigmoid()), x(2, 8, 2, 2, 2)))
case("wavegan", lambda: (up(16, 8, 4, 1, axes=1, kernel=25 + 1, act=nn.LeakyReLU), x(2, 16, 8)))
case("pix2pix block", lambda: (nn.Sequential(nn.ReLU(True), nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.InstanceNorm2d(4),
                                             nn.Dropout(0.5)), x(2, 8, 6, 6)))
case("cyclegan tail", lambda: (nn.Sequential(
    nn.ConvTranspose2d(16, 8, 3, 2, 1, output_padding=1), nn.InstanceNorm2d(8), nn.ReLU(True),
    nn.ReflectionPad2d(3), nn.Conv2d(8, 3, 7), nn.Tanh()), x(1, 16, 8, 9)))
case("fsrcnn", lambda: (nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.PReLU(8), nn.ConvTranspose2d(8, 1, 9, 3, 4, 2)),
                        x(2, 1, 9, 8)))
case("unet decoder", lambda: (Decoder(), x(2, 16, 4, 4), x(2, 8, 8, 8), x(2, 4, 16, 16)))
case("unet decoder 3d", lambda: (Decoder(3), x(1, 16, 2, 3, 2), x(1, 8, 4, 6, 4), x(1, 4, 8, 12, 8)))
case("attention gate", lambda: (Gated(), x(2, 8, 5, 4), x(2, 8, 10, 8)))
case("simple baselines head", lambda: (nn.Sequential(up(16, 8, 8, 8), nn.Conv2d(8, 5, 1)), x(2, 16, 4, 3)))
case("depthwise upsampling", lambda: (nn.Sequential(nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=8, bias=False), nn.Conv2d(
    8, 4, 1), nn.SiLU()), x(2, 8, 6, 7)))
case("dilated", lambda: (nn.Sequential(nn.ConvTranspose2d(6, 4, 3, 2, 2, 1, dilation=2), nn.GroupNorm(2, 4), nn.Mish()),
                         x(2, 6, 6, 7)))
case("vae decoder", lambda: (nn.Sequential(nn.Linear(8, 8 * 16), nn.Unflatten(1, (8, 4, 4)), up(8, 8, 4), nn.Conv2d(
    4, 1, 3, padding=1), nn.Sigmoid()), x(3, 8)))

# --- MONAI ---

NETS = "monai.networks.nets"


def monai(name: str, build: Callable[[], tuple]) -> None:
    case(f"monai {name}", build, "monai")


def net(name: str, *args: Any, **keywords: Any) -> nn.Module:
    return get(NETS, name)(*args, **keywords)


monai("UNet 2d", lambda: (net("UNet", 2, 1, 2, (4, 8, 16), (2, 2)), x(2, 1, 16, 16)))
monai("UNet 3d", lambda: (net("UNet", 3, 1, 2, (4, 8, 8), (2, 2)), x(1, 1, 8, 12, 8)))
monai("UNet residual units", lambda: (net("UNet", 2, 1, 2, (4, 8, 16), (2, 2), num_res_units=2), x(2, 1, 16, 24)))
monai("UNet batch norm", lambda: (net("UNet", 2, 3, 2, (4, 8), (2,), norm="batch", act="relu"), x(2, 3, 12, 16)))
monai("BasicUNet 2d", lambda: (net("BasicUNet", 2, 1, 2, (4, 4, 8, 8, 8, 4)), x(2, 1, 32, 32)))
monai("DynUNet 2d", lambda: (net("DynUNet", 2, 1, 2, (3, 3, 3), (1, 2, 2), (2, 2), filters=(4, 8, 8)), x(2, 1, 16, 16)))
monai("DynUNet 3d", lambda: (net("DynUNet", 3, 1, 2, (3, 3, 3), (1, 2, 2), (2, 2), filters=(4, 4, 8), res_block=True,
                                 trans_bias=True), x(1, 1, 8, 8, 12)))
monai("DynUNet deep supervision", lambda: (net("DynUNet", 2, 1, 2, (3, 3, 3, 3), (1, 2, 2, 2), (2, 2, 2), filters=(
    4, 8, 8, 8), deep_supervision=True, deep_supr_num=1), x(2, 1, 16, 16)))
monai("SegResNet", lambda: (net("SegResNet", 2, 4, 1, 2, blocks_down=(1, 1, 1), blocks_up=(1, 1), norm=("GROUP", {
    "num_groups": 4}), upsample_mode="deconv"), x(2, 1, 16, 16)))
monai("SegResNet 3d", lambda: (net("SegResNet", 3, 4, 1, 2, blocks_down=(1, 1), blocks_up=(1,), norm=("GROUP", {
    "num_groups": 2}), upsample_mode="deconv"), x(1, 1, 8, 8, 8)))
monai("SegResNet resize",
    lambda: (net("SegResNet", 2, 4, 1, 2, blocks_down=(1, 1, 1), blocks_up=(1, 1), norm=("GROUP", {
    "num_groups": 4})), x(2, 1, 16, 16)))
monai("SegResNetDS", lambda: (net("SegResNetDS", 3, 4, 1, 2, blocks_down=(1, 1), norm="instance"), x(1, 1, 8, 8, 8)))
monai("VNet up transition", lambda: (get(NETS + ".vnet", "UpTransition")(3, 8, 8, 1, "elu"), x(1, 8, 4, 4, 4),
                                     x(1, 4, 8, 8, 8)))
monai("AttentionUnet 2d", lambda: (net("AttentionUnet", 2, 1, 2, (4, 8, 8), (2, 2)), x(2, 1, 16, 16)))
monai("AttentionUnet 3d", lambda: (net("AttentionUnet", 3, 1, 2, (4, 4), (2,)), x(1, 1, 8, 8, 8)))
monai("UNETR 2d", lambda: (net("UNETR", 1, 2, (32, 32), feature_size=4, hidden_size=12, mlp_dim=16, num_heads=3,
                               spatial_dims=2), x(1, 1, 32, 32)))
monai("UNETR up block",
    lambda: (get("monai.networks.blocks", "UnetrUpBlock")(3, 8, 4, 3, 2, "instance"), x(1, 8, 3, 4, 3),
                                 x(1, 4, 6, 8, 6)))
monai("UNETR projection block", lambda: (get("monai.networks.blocks", "UnetrPrUpBlock")(
    2, 8, 4, 2, 3, 1, 2, "instance", conv_block=True, res_block=True), x(2, 8, 3, 4)))
monai("SwinUNETR up block", lambda: (get("monai.networks.blocks", "UnetrUpBlock")(2, 8, 4, 3, 2, "instance", True),
                                     x(2, 8, 5, 4), x(2, 4, 10, 8)))
monai("AutoEncoder 2d", lambda: (net("AutoEncoder", 2, 1, 1, (4, 8), (2, 2)), x(2, 1, 16, 16)))
monai("AutoEncoder 3d", lambda: (net("AutoEncoder", 3, 1, 1, (4, 8), (2, 2), num_res_units=1), x(1, 1, 8, 8, 8)))
monai("VarAutoEncoder decoder", lambda: (Part(net("VarAutoEncoder", 2, (1, 16, 16), 1, 4, (4, 8), (2, 2)),
                                              lambda m, z: m.decode_forward(z)), x(2, 4)))
monai("Generator", lambda: (net("Generator", (8,), (8, 4, 4), (8, 4), (2, 2)), x(2, 8)))
monai("AutoencoderKL decoder", lambda: (Part(net(
    "AutoencoderKL", 2, channels=(4, 8), num_res_blocks=1, latent_channels=3, norm_num_groups=4,
    attention_levels=(False, False), use_convtranspose=True), lambda m, z: m.decode(z)), x(2, 3, 6, 6)))
monai("VQVAE decoder", lambda: (Part(net(
    "VQVAE", 2, 1, 1, channels=(4, 8), num_res_channels=(4, 8), num_res_layers=1, num_embeddings=8, embedding_dim=4,
    downsample_parameters=((2, 4, 1, 1), (2, 4, 1, 1)), upsample_parameters=((2, 4, 1, 1, 0), (2, 4, 1, 1, 0))),
    lambda m, z: m.decode(z)), x(2, 4, 5, 4)))
monai("UpSample deconv",
    lambda: (get("monai.networks.blocks", "UpSample")(3, 4, 4, 2, mode="deconv"), x(1, 4, 3, 4, 5)))
monai("UpSample deconv groups", lambda: (get("monai.networks.blocks", "UpSample")(2, 4, 4, 2, mode="deconvgroup"),
                                         x(2, 4, 4, 5)))
monai("UpSample pixel shuffle", lambda: (get("monai.networks.blocks", "UpSample")(2, 4, 4, 2, mode="pixelshuffle"),
                                         x(2, 4, 4, 5)))
monai("ViTAutoEnc",
    lambda: (net("ViTAutoEnc", 1, (16, 16), (4, 4), hidden_size=12, mlp_dim=16, num_layers=1, num_heads=3,
                                 spatial_dims=2, deconv_chns=4), x(2, 1, 16, 16)))
monai("MedNeXt up block", lambda: (get("monai.networks.blocks.mednext_block", "MedNeXtUpBlock")(4, 4, dim="2d"),
                                   x(2, 4, 5, 6)))
monai("LocalNet upsampling", lambda: (get(NETS + ".regunet", "AdditiveUpSampleBlock")(2, 8, 4), x(2, 8, 5, 6)))

# --- torchvision ---


def vision(name: str, build: Callable[[], tuple]) -> None:
    case(f"torchvision {name}", build, "torchvision")


DETECTION = "torchvision.models.detection."
vision("keypoint predictor", lambda: (get(DETECTION + "keypoint_rcnn", "KeypointRCNNPredictor")(8, 3), x(3, 8, 7, 7)))
vision("keypoint heads", lambda: (nn.Sequential(get(DETECTION + "keypoint_rcnn", "KeypointRCNNHeads")(4, (8, 8)), get(
    DETECTION + "keypoint_rcnn", "KeypointRCNNPredictor")(8, 3)), x(2, 4, 6, 6)))
vision("mask predictor", lambda: (get(DETECTION + "mask_rcnn", "MaskRCNNPredictor")(8, 4, 2), x(3, 8, 7, 7)))
vision("mask heads", lambda: (nn.Sequential(get(DETECTION + "mask_rcnn", "MaskRCNNHeads")(4, (8, 8), 1), get(
    DETECTION + "mask_rcnn", "MaskRCNNPredictor")(8, 4, 2)), x(2, 4, 6, 6)))

# --- Transformers ---


def hugging(name: str, build: Callable[[], tuple]) -> None:
    case(f"transformers {name}", build, "transformers")


def modeling(family: str, name: str, *args: Any, **keywords: Any) -> nn.Module:
    return get(f"transformers.models.{family}.modeling_{family}", name)(*args, **keywords)


def config(family: str, name: str, **keywords: Any) -> Any:
    made = get(f"transformers.models.{family}.configuration_{family}", name)(**keywords)
    made._attn_implementation = "eager"
    return made


def sam(family: str, prefix: str, *features: Any, **settings: Any) -> Callable[[], tuple]:
    """A mask decoder on an image of 4 x 4 tokens with two prompts."""

    def build() -> tuple:
        c = config(family, f"{prefix}MaskDecoderConfig", hidden_size=16, mlp_dim=16, num_hidden_layers=1,
                   num_attention_heads=2, iou_head_hidden_dim=8, **settings)
        high = [x(1, 2, 16, 16), x(1, 4, 8, 8)]
        more = {"hq": (False, [x(1, 4, 4, 8)]), "high": (high,)}.get(features[0] if features else "", ())

        def call(m: nn.Module, *tensors: torch.Tensor) -> Any:
            rest = more if not features else tensors[4:]
            if features and features[0] == "hq":
                return m(*tensors[:4], True, False, [tensors[4]])
            return m(*tensors[:4], True, *([list(rest)] if features else []))

        extra = [t for t in pytree_leaves(more) if isinstance(t, torch.Tensor)]
        return (Part(modeling(family, f"{prefix}MaskDecoder", c), call), x(1, 16, 4, 4), x(1, 16, 4, 4), x(1, 2, 3, 16),
                x(1, 16, 4, 4), *extra)

    return build


def pytree_leaves(tree: Any) -> list:
    return torch.utils._pytree.tree_leaves(tree)


hugging("SAM mask decoder", sam("sam", "Sam"))
hugging("SAM-HQ mask decoder", sam("sam_hq", "SamHQ", "hq", vit_dim=8))
hugging("SAM2 mask decoder", sam("sam2", "Sam2", "high", dynamic_multimask_via_stability=False))
hugging("EdgeTAM mask decoder", sam("edgetam", "EdgeTam", "high", dynamic_multimask_via_stability=False))
hugging("SAM3 tracker mask decoder", sam("sam3_tracker", "Sam3Tracker", "high", dynamic_multimask_via_stability=False))
for scale in (4.0, 2.0):
    hugging(f"SAM3 FPN layer {scale}",
        lambda scale=scale: (modeling("sam3", "Sam3FPNLayer", 8, 4, scale), x(2, 8, 4, 5)))


def clipseg(complex_form: bool) -> tuple:
    vision_config = dict(hidden_size=12, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, patch_size=8,
                         image_size=32)
    c = config("clipseg", "CLIPSegConfig", vision_config=vision_config, reduce_dim=8, projection_dim=6,
        extract_layers=[0, 1],
               decoder_num_attention_heads=2, decoder_intermediate_size=8,
               use_complex_transposed_convolution=complex_form)
    c.vision_config._attn_implementation = "eager"
    model = modeling("clipseg", "CLIPSegDecoder", c)
    return Part(model, lambda m, a, b, e: m((a, b), e)[0]), x(2, 17, 12), x(2, 17, 12), x(2, 6)


hugging("CLIPSeg decoder", lambda: clipseg(False))
hugging("CLIPSeg complex decoder", lambda: clipseg(True))
hugging("BEiT up block", lambda: (nn.Sequential(modeling("beit", "BeitFPNUpBlock", 8), modeling(
    "beit", "BeitFPNUpBlock", 8)), x(2, 8, 4, 4)))


def data2vec() -> tuple:
    c = config_of("data2vec", "vision", "Data2VecVisionConfig", hidden_size=8, num_hidden_layers=4,
        num_attention_heads=2,
                  intermediate_size=8, image_size=16, patch_size=4, out_indices=[0, 1, 2, 3], num_labels=3,
                  auxiliary_channels=4, use_relative_position_bias=False)
    model = get("transformers.models.data2vec.modeling_data2vec_vision", "Data2VecVisionForSemanticSegmentation")(c)
    return Part(model.fpn1, lambda m, t: m(t)), x(2, 8, 4, 4)


def config_of(family: str, what: str, name: str, **keywords: Any) -> Any:
    return get(f"transformers.models.{family}.configuration_{family}_{what}", name)(**keywords)


hugging("Data2Vec upscaling", data2vec)
for family, prefix in (("dpt", "DPT"), ("depth_anything", "DepthAnything"), ("zoedepth", "ZoeDepth"),
                       ("prompt_depth_anything", "PromptDepthAnything"), ("tipsv2_dpt", "Tipsv2Dpt")):
    hugging(f"{prefix} reassemble", lambda family=family, prefix=prefix: (modeling(
        family, f"{prefix}ReassembleLayer", types.SimpleNamespace(
            hidden_size=8, reassemble_hidden_size=8, backbone_hidden_size=8, readout_type="ignore",
            neck_hidden_sizes=[4, 4],
            backbone_config=types.SimpleNamespace(hidden_size=8)), 4, 4), x(2, 8, 4, 5)))
hugging("DepthPro upsampling", lambda: (modeling(
    "depth_pro", "DepthProFeatureUpsampleBlock", types.SimpleNamespace(), 8, 4, 4, 2), x(2, 8, 4, 5)))
hugging("DepthPro head", lambda: (modeling("depth_pro", "DepthProDepthEstimationHead", types.SimpleNamespace(
    fusion_hidden_size=8, num_fov_head_layers=1)), x(2, 8, 5, 4)))
hugging("DepthPro fusion", lambda: (modeling("depth_pro", "DepthProFeatureFusionLayer", types.SimpleNamespace(
    fusion_hidden_size=8, use_batch_norm_in_fusion_residual=True, use_bias_in_fusion_residual=False)), x(2, 8, 5, 4),
    x(2, 8, 5, 4)))
hugging("EoMT scale layers", lambda: (nn.Sequential(*(modeling("eomt", "EomtScaleLayer", types.SimpleNamespace(
    hidden_size=8, hidden_act="gelu")) for _ in range(2))), x(2, 8, 4, 4)))
hugging("VidEoMT scale layer", lambda: (modeling("videomt", "VideomtScaleLayer", types.SimpleNamespace(
    hidden_size=8, hidden_act="gelu")), x(2, 8, 4, 4)))
hugging("LW-DETR sampling", lambda: (modeling("lw_detr", "LwDetrSamplingLayer", types.SimpleNamespace(), 8, 2.0),
                                     x(2, 8, 5, 4)))
for family, prefix in (("pp_ocrv5_mobile_det", "PPOCRV5MobileDet"), ("pp_ocrv6_small_det", "PPOCRV6SmallDet"),
                       ("pp_ocrv6_medium_det", "PPOCRV6MediumDet")):
    hugging(f"{prefix} head", lambda family=family, prefix=prefix: (modeling(
        family, f"{prefix}Head", types.SimpleNamespace(neck_out_channels=16, kernel_list=[3, 2, 2])), x(2, 16, 5, 6)))
hugging("ViTPose decoder", lambda: (modeling("vitpose", "VitPoseClassicDecoder", types.SimpleNamespace(
    backbone_config=types.SimpleNamespace(hidden_size=4), num_labels=3)), x(1, 4, 2, 2)))
hugging("xcodec semantic decoder", lambda: (modeling("xcodec", "SemanticDecoderBlock", types.SimpleNamespace(
    unit_kernel_size=3, block_dilations=[1, 2], kernel_size=3, strides=[2], channel_ratios=[1],
    semantic_hidden_size=8), 8, 8, 2), x(2, 8, 9)))
hugging("Qwen3 Omni causal",
    lambda: (modeling("qwen3_omni_moe", "Qwen3OmniMoeCausalTransConvNet", 8, 4, 4, 2), x(2, 8, 9)))

HIFI = dict(model_in_dim=8, upsample_initial_channel=16, upsample_rates=[2, 2], upsample_kernel_sizes=[4, 4],
            resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]])
hugging("SpeechT5 HiFi-GAN", lambda: (modeling("speecht5", "SpeechT5HifiGan", config(
    "speecht5", "SpeechT5HifiGanConfig", **HIFI)), x(2, 10, 8)))
hugging("FastSpeech2 HiFi-GAN", lambda: (modeling("fastspeech2_conformer", "FastSpeech2ConformerHifiGan", config(
    "fastspeech2_conformer", "FastSpeech2ConformerHifiGanConfig", **HIFI)), x(2, 10, 8)))
hugging("VITS HiFi-GAN", lambda: (modeling("vits", "VitsHifiGan", config(
    "vits", "VitsConfig", flow_size=8, speaker_embedding_size=4,
    **{k: v for k, v in HIFI.items() if k != "model_in_dim"})),
    x(2, 8, 10), x(2, 4, 1)))
for family, prefix in (("seamless_m4t", "SeamlessM4T"), ("seamless_m4t_v2", "SeamlessM4Tv2")):
    hugging(f"{prefix} HiFi-GAN", lambda family=family, prefix=prefix: (modeling(family, f"{prefix}HifiGan", config(
        family, f"{prefix}Config", unit_embed_dim=4, lang_embed_dim=2, spkr_embed_dim=2,
        **{k: v for k, v in HIFI.items() if k != "model_in_dim"})), x(2, 8, 10)))
hugging("UnivNet", lambda: (modeling("univnet", "UnivNetModel", config(
    "univnet", "UnivNetConfig", model_in_channels=4, model_hidden_channels=4, num_mel_bins=6, resblock_kernel_sizes=[3],
    resblock_stride_sizes=[4], resblock_dilation_sizes=[[1, 3]], kernel_predictor_hidden_channels=4,
    kernel_predictor_num_blocks=1)), x(1, 5, 6), x(1, 5, 4)))
hugging("DAC decoder", lambda: (modeling("dac", "DacDecoder", config(
    "dac", "DacConfig", hidden_size=8, decoder_hidden_size=16, upsampling_ratios=[2, 2], downsampling_ratios=[2, 2],
    encoder_hidden_size=4)), x(2, 8, 9)))
hugging("EnCodec decoder", lambda: (modeling("encodec", "EncodecDecoder", config(
    "encodec", "EncodecConfig", hidden_size=8, num_filters=4, upsampling_ratios=[2, 2], num_lstm_layers=1)),
    x(2, 8, 9)))
hugging("Mimi decoder", lambda: (modeling("mimi", "MimiDecoder", config(
    "mimi", "MimiConfig", hidden_size=8, num_filters=4, upsampling_ratios=[2, 2])), x(2, 8, 9)))
hugging("Mimi depthwise", lambda: (modeling("mimi", "MimiConvTranspose1d", config(
    "mimi", "MimiConfig", hidden_size=8), 8, 8, 4, 2, groups=8, bias=False), x(2, 8, 9)))
hugging("Pocket TTS decoder", lambda: (modeling("pocket_tts_audio_tokenizer", "PocketTTSAudioTokenizerDecoder", config(
    "pocket_tts_audio_tokenizer", "PocketTTSAudioTokenizerConfig", hidden_size=8, num_filters=4,
    upsampling_ratios=[2, 2])),
    x(2, 8, 9)))

# --- Diffusers ---


def diffusers(name: str, build: Callable[[], tuple]) -> None:
    case(f"diffusers {name}", build, "diffusers")


ENCODERS, UPSAMPLING = "diffusers.models.autoencoders.", "diffusers.models.upsampling"
diffusers("Upsample1D", lambda: (get(UPSAMPLING, "Upsample1D")(6, use_conv_transpose=True, out_channels=4), x(2, 6, 9)))
diffusers("Upsample2D",
    lambda: (get(UPSAMPLING, "Upsample2D")(6, use_conv_transpose=True, out_channels=4), x(2, 6, 5, 4)))
diffusers("Upsample2D resize", lambda: (get(UPSAMPLING, "Upsample2D")(6, use_conv=True, out_channels=4), x(2, 6, 5, 4)))
diffusers("Oobleck block", lambda: (get(ENCODERS + "autoencoder_oobleck", "OobleckDecoderBlock")(8, 4, 2), x(2, 8, 9)))
diffusers("Oobleck decoder", lambda: (get(ENCODERS + "autoencoder_oobleck", "OobleckDecoder")(
    4, 4, 2, [2, 2], [1, 2]), x(2, 4, 9)))
diffusers("VAE decoder", lambda: (Part(get("diffusers", "AutoencoderKL")(
    block_out_channels=(8, 8), up_block_types=("UpDecoderBlock2D",) * 2, down_block_types=("DownEncoderBlock2D",) * 2,
    layers_per_block=1, norm_num_groups=4), lambda m, z: m.decode(z).sample), x(1, 4, 5, 4)))
diffusers("masked UpSample", lambda: (get(ENCODERS + "vae", "UpSample")(8, 4), x(2, 8, 5, 4)))
diffusers("KVAE audio decoder", lambda: (get(ENCODERS + "autoencoder_kl_kvae_audio", "KVAEAudioDecoder")(
    4, 8, [2, 2], 1), x(2, 4, 9)))
diffusers("Cosmos audio block",
    lambda: (get(ENCODERS + "autoencoder_cosmos3_audio", "Cosmos3AudioDecoderBlock")(8, 4, 2),
                                         x(2, 8, 9)))
diffusers("MiniMax vocoder block",
    lambda: (get(ENCODERS + "minimax_music3_vocoder", "MiniMaxMusic3VocoderBlock")(8, 4, 2),
                                            x(2, 8, 9)))
diffusers("Kandinsky block", lambda: (get("diffusers.models.unets.unet_kandinsky3", "Kandinsky3ResNetBlock")(
    8, 8, 6, norm_groups=4, up_resolutions=(None, True, None, None)), x(2, 8, 4, 5), x(2, 6)))
diffusers("LTX2 vocoder", lambda: (get("diffusers.pipelines.ltx2.vocoder", "LTX2Vocoder")(
    8, 16, 2, [4, 4], [2, 2], [3], [[1, 3]]), x(1, 2, 9, 4)))
