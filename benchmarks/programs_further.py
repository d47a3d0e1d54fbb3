"""Further models of `programs.py`, of many families, with `--further`; as in `programs_models.py`.

With them it was looked for models that rewrites make slower, or leave much of outside of delegates.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from programs_models import (
    HELD_OUT,
    LISTED,
    Factory,
    Field,
    Made,
    adding_to,
    image,
    tokens,
    torchvision_model,
)
from torch import nn
from torch.nn import functional

FURTHER: dict[str, Factory] = {}
_TINY = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}


def every() -> dict[str, Factory]:
    """All models by name."""
    return LISTED | HELD_OUT | FURTHER


def _transformers(
    name: str, config: str, inputs: tuple[torch.Tensor, ...], field: str, **options: Any
) -> Made:
    import transformers

    model = getattr(transformers, name)(getattr(transformers, config)(**options))
    return Field(model, field), inputs


def _states(name: str, inputs: tuple[torch.Tensor, ...], **options: Any) -> Made:
    """A model that gives the states of its last layer."""
    config = f"{name.removesuffix('Model').removesuffix('Encoder')}Config"
    return _transformers(name, config, inputs, "last_hidden_state", **options)


def _classes(family: str, pixels: int = 224, **options: Any) -> Made:
    """A classifier of images."""
    name = f"{family}ForImageClassification"
    return _transformers(name, f"{family}Config", image(pixels), "logits", **options)


@adding_to(FURTHER)
def dinov2_small() -> Made:
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 6}
    return _states("Dinov2Model", image(), **sizes)


@adding_to(FURTHER)
def deit_tiny() -> Made:
    return _classes("DeiT", **_TINY)


@adding_to(FURTHER)
def beit_tiny() -> Made:
    return _classes("Beit", **_TINY)


@adding_to(FURTHER)
def siglip_vision() -> Made:
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    return _states("SiglipVisionModel", image(), **sizes, num_hidden_layers=4)


@adding_to(FURTHER)
def yolos_tiny() -> Made:
    config = {**_TINY, "image_size": [256, 256], "num_detection_tokens": 50}
    return _transformers("YolosForObjectDetection", "YolosConfig", image(256), "logits", **config)


@adding_to(FURTHER)
def audio_spectrogram() -> Made:
    signal = torch.randn(1, 256, 128)
    return _states("ASTModel", (signal,), **_TINY, num_hidden_layers=6, max_length=256)


@adding_to(FURTHER)
def t5_encoder() -> Made:
    return _transformers(
        "T5EncoderModel", "T5Config", (tokens(),), "last_hidden_state", num_layers=4
    )


@adding_to(FURTHER)
def gpt2_4_layers() -> Made:
    return _states("GPT2Model", (tokens(),), n_layer=4, use_cache=False)


@adding_to(FURTHER)
def llama_4_layers() -> Made:
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
    shared = {"num_key_value_heads": 4, "num_hidden_layers": 4, "use_cache": False}
    return _states("LlamaModel", (tokens(64),), **sizes, **shared)


@adding_to(FURTHER)
def hubert_4_layers() -> Made:
    return _states("HubertModel", (torch.randn(1, 16000),), num_hidden_layers=4)


@adding_to(FURTHER)
def data2vec_audio() -> Made:
    return _states("Data2VecAudioModel", (torch.randn(1, 16000),), num_hidden_layers=2)


@adding_to(FURTHER)
def mpnet_4_layers() -> Made:
    return _states("MPNetModel", (tokens(),), num_hidden_layers=4)


@adding_to(FURTHER)
def squeezebert() -> Made:
    return _states("SqueezeBertModel", (tokens(),), num_hidden_layers=4)


@adding_to(FURTHER)
def deberta_v2() -> Made:
    """Looks up positions in its scores (gather), which XNNPACK does not."""
    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
    return _states("DebertaV2Model", (tokens(),), **sizes, **relative, num_hidden_layers=2)


@adding_to(FURTHER)
def clip_text() -> Made:
    return _states("CLIPTextModel", (tokens(77),), num_hidden_layers=4)


@adding_to(FURTHER)
def convnext_v2() -> Made:
    return _classes("ConvNextV2", hidden_sizes=[40, 80, 160, 320], depths=[2, 2, 6, 2])


@adding_to(FURTHER)
def poolformer() -> Made:
    return _classes("PoolFormer")


@adding_to(FURTHER)
def pvt_tiny() -> Made:
    return _classes("Pvt")


@adding_to(FURTHER)
def pvt_v2_b0() -> Made:
    return _classes("PvtV2")


@adding_to(FURTHER)
def cvt_13() -> Made:
    return _classes("Cvt")


@adding_to(FURTHER)
def focalnet() -> Made:
    return _classes("FocalNet")


@adding_to(FURTHER)
def mobilenet_v1() -> Made:
    return _classes("MobileNetV1")


@adding_to(FURTHER)
def mobilevit_v2() -> Made:
    return _classes("MobileViTV2", 256)


@adding_to(FURTHER)
def swiftformer() -> Made:
    return _classes("SwiftFormer")


@adding_to(FURTHER)
def resnet50() -> Made:
    return torchvision_model("resnet50"), image()


@adding_to(FURTHER)
def googlenet() -> Made:
    return torchvision_model("googlenet", init_weights=False, aux_logits=False), image()


@adding_to(FURTHER)
def inception_v3() -> Made:
    return torchvision_model("inception_v3", init_weights=False, aux_logits=False), image(299)


class _Recurrent(nn.Module):
    """A recurrent layer with an embedding before it and a linear layer behind it."""

    def __init__(self, layer: nn.Module, first: nn.Module, width: int) -> None:
        super().__init__()
        self.first, self.layer, self.last = first, layer, nn.Linear(width, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layer(self.first(x))[0])
        return found


@adding_to(FURTHER)
def lstm() -> Made:
    layer = nn.LSTM(80, 256, batch_first=True)
    return _Recurrent(layer, nn.Identity(), 256), (torch.randn(1, 50, 80),)


@adding_to(FURTHER)
def gru_both_ways() -> Made:
    layer = nn.GRU(64, 128, batch_first=True, bidirectional=True)
    return _Recurrent(layer, nn.Embedding(1000, 64), 256), (tokens(32),)


@adding_to(FURTHER)
def torch_transformer() -> Made:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return model, (torch.randn(1, 64, 256),)


class _Unet(nn.Module):
    """With GroupNorm and SiLU, as diffusion models have it."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        ins = [(3, widths[0]), *pairs]
        self.down = nn.ModuleList([_twice(before, after) for before, after in ins])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs[::-1]])
        self.joined = nn.ModuleList([_twice(b, a) for a, b in pairs[::-1]])
        self.last = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for down in self.down:
            x = down(functional.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, joined, beside in zip(self.up, self.joined, kept[-2::-1], strict=True):
            x = joined(torch.cat([up(x), beside], 1))
        found: torch.Tensor = self.last(x)
        return found


def _twice(before: int, after: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in (before, after):
        layers += [nn.Conv2d(width, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU()]
    return nn.Sequential(*layers)


@adding_to(FURTHER)
def unet() -> Made:
    return _Unet(), image(128)


@adding_to(FURTHER)
def super_resolution() -> Made:
    layers = [
        nn.Conv2d(3, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.PReLU(),
        nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2),
    ]  # fmt: skip
    return nn.Sequential(*layers), image(128)


class _Mixer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.across, self.along = _mixing(tokens, 256), _mixing(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        found: torch.Tensor = x + self.along(self.norms[1](x))
        return found


def _mixing(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class _MlpMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 16, 16)
        self.layers = nn.Sequential(*[_Mixer(196, 256) for _ in range(6)])
        self.last = nn.Linear(256, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.layers(self.patches(x).flatten(2).transpose(1, 2))
        found: torch.Tensor = self.last(tokens.mean(1))
        return found


@adding_to(FURTHER)
def mlp_mixer() -> Made:
    return _MlpMixer(), image()
