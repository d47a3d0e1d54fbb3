"""The models of `programs.py`: random weights in true shapes, so that nothing is downloaded.

Each function returns `(module in eval mode, example inputs)` and is a factory for a recipe:

    model: {python: benchmarks/programs_models.py:vit_tiny}

Needs torchvision (0.28 goes with torch 2.13) and transformers 5.23. Those of `HELD_OUT` are there
to show whether what was found with the models of `LISTED` holds for others, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
Factory = Callable[[], Made]

LISTED: dict[str, Factory] = {}
HELD_OUT: dict[str, Factory] = {}
_SEED = 20
_SAMPLES = 8
_VOCABULARY = 30522
_BERT = {"vocab_size": _VOCABULARY, "hidden_size": 768, "num_attention_heads": 12}


def adding_to(models: dict[str, Factory]) -> Callable[[Factory], Factory]:
    """Adds a factory to `models`, under its own name; it gives the same values each time."""

    def add(make: Factory) -> Factory:
        @functools.wraps(make)
        def seeded() -> Made:
            torch.manual_seed(_SEED)
            module, inputs = make()
            return _settled(_unlike_fresh(module), inputs).eval(), inputs

        models[make.__name__] = seeded
        return seeded

    return add


def _unlike_fresh(module: nn.Module) -> nn.Module:
    """Moves norms and biases away from 1 and 0: a rewrite that drops one would not be seen."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter += 0.02 * torch.randn_like(parameter)
            elif parameter.dim() == 1:
                parameter *= 1 + 0.1 * torch.randn_like(parameter)
    return module


def _settled(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> nn.Module:
    """Gives batch norms the statistics of what passes through them.

    With fresh ones, activations shrink from layer to layer: in the end outputs hardly depend on the
    inputs, so that nothing wrong would be seen, and denormal numbers are slow.
    """
    norms = [m for m in module.eval().modules() if isinstance(m, _BatchNorm)]
    if norms:
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.train().momentum = None
            norm.reset_running_stats()
        with torch.no_grad():
            module(*(torch.randn(_SAMPLES, *x.shape[1:]) for x in inputs))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return module


class Field(nn.Module):
    """A model whose output has names, with one of them as its output."""

    def __init__(self, model: nn.Module, field: str | int, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.model, self.field, self.names = model, field, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        found: torch.Tensor = self.model(*(() if named else inputs), **named)[self.field]
        return found


def image(pixels: int = 224) -> tuple[torch.Tensor]:
    return (torch.randn(1, 3, pixels, pixels),)


def tokens(count: int = 128) -> torch.Tensor:
    return torch.randint(0, 1000, (1, count))


def _masked_tokens(count: int = 128, real: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and an attention mask, as a tokenizer pads them."""
    return tokens(count), (torch.arange(count) < real).long().unsqueeze(0)


def torchvision_model(name: str, **options: Any) -> nn.Module:
    from torchvision.models import get_model

    model: nn.Module = get_model(name, weights=None, **options)
    return model


def _last_state(model: nn.Module, *names: str) -> nn.Module:
    return Field(model, "last_hidden_state", names)


class _Every(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(32, 32), nn.Linear(32, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(torch.cumsum(self.table(tokens), 1))
        return found


def every_component() -> Made:
    """With 8da4w and embeddings in 8 bits, a runner for it has the kernels of all programs."""
    return _Every().eval(), (torch.arange(8).unsqueeze(0),)


@adding_to(LISTED)
def whisper_tiny_encoder() -> Made:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    sizes = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6}
    config = WhisperConfig(**sizes, encoder_ffn_dim=1536, num_mel_bins=80)
    return _last_state(WhisperEncoder(config)), (torch.randn(1, 80, 3000),)


@adding_to(LISTED)
def vit_tiny() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
    config = ViTConfig(**sizes, num_hidden_layers=12, num_labels=1000)
    return Field(ViTForImageClassification(config), "logits"), image()


@adding_to(LISTED)
def bert_4_layers() -> Made:
    from transformers import BertConfig, BertModel

    config = BertConfig(**_BERT, num_hidden_layers=4, intermediate_size=3072)
    return _last_state(BertModel(config, add_pooling_layer=False)), (tokens(),)


@adding_to(LISTED)
def distilbert() -> Made:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(vocab_size=_VOCABULARY, dim=768, n_layers=6, n_heads=12)
    return _last_state(DistilBertModel(config)), (tokens(),)


@adding_to(LISTED)
def wav2vec2_4_layers() -> Made:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(num_hidden_layers=4)
    return _last_state(Wav2Vec2Model(config)), (torch.randn(1, 16000),)


@adding_to(LISTED)
def convnext_tiny() -> Made:
    return torchvision_model("convnext_tiny"), image()


@adding_to(LISTED)
def swin_t() -> Made:
    return torchvision_model("swin_t"), image()


@adding_to(LISTED)
def efficientnet_b0() -> Made:
    return torchvision_model("efficientnet_b0"), image()


@adding_to(LISTED)
def yolo_320() -> Made:
    from programs_yolo import Yolo

    return Yolo(320), image(320)


@adding_to(LISTED)
def mobilenet_v3_small() -> Made:
    return torchvision_model("mobilenet_v3_small"), image()


@adding_to(LISTED)
def mobilenet_v3_large() -> Made:
    return torchvision_model("mobilenet_v3_large"), image()


@adding_to(LISTED)
def mobilenet_v2() -> Made:
    return torchvision_model("mobilenet_v2"), image()


@adding_to(LISTED)
def resnet18() -> Made:
    return torchvision_model("resnet18"), image()


@adding_to(LISTED)
def lraspp_mobilenet_v3() -> Made:
    model = torchvision_model("lraspp_mobilenet_v3_large", weights_backbone=None)
    return Field(model, "out"), image(320)


@adding_to(HELD_OUT)
def regnet_y_400mf() -> Made:
    return torchvision_model("regnet_y_400mf"), image()


@adding_to(HELD_OUT)
def shufflenet_v2() -> Made:
    return torchvision_model("shufflenet_v2_x1_0"), image()


@adding_to(HELD_OUT)
def mnasnet() -> Made:
    return torchvision_model("mnasnet1_0"), image()


@adding_to(HELD_OUT)
def squeezenet() -> Made:
    return torchvision_model("squeezenet1_1"), image()


@adding_to(HELD_OUT)
def densenet121() -> Made:
    return torchvision_model("densenet121"), image()


@adding_to(HELD_OUT)
def deeplabv3_mobilenet() -> Made:
    model = torchvision_model("deeplabv3_mobilenet_v3_large", weights_backbone=None)
    return Field(model, "out"), image(320)


@adding_to(HELD_OUT)
def swin_v2_t() -> Made:
    return torchvision_model("swin_v2_t"), image(256)


@adding_to(HELD_OUT)
def maxvit_t() -> Made:
    return torchvision_model("maxvit_t"), image()


@adding_to(HELD_OUT)
def vit_b_32() -> Made:
    """With `nn.MultiheadAttention`, unlike transformers' ViT."""
    return torchvision_model("vit_b_32"), image()


@adding_to(HELD_OUT)
def segformer_b0() -> Made:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return Field(SegformerForSemanticSegmentation(SegformerConfig()), "logits"), image(256)


@adding_to(HELD_OUT)
def detr_small() -> Made:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(layer_type="basic", depths=[2, 2, 2, 2], out_features=["stage4"])
    backbone.hidden_sizes = [64, 128, 256, 512]
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=backbone, encoder_layers=2, decoder_layers=2, num_queries=50,
    )  # fmt: skip
    return Field(DetrForObjectDetection(config), "logits"), image(320)


@adding_to(HELD_OUT)
def clip_vision() -> Made:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    return _last_state(CLIPVisionModel(CLIPVisionConfig(num_hidden_layers=4))), image()


@adding_to(HELD_OUT)
def levit_128s() -> Made:
    from transformers import LevitConfig, LevitForImageClassification

    config = LevitConfig(
        hidden_sizes=[128, 256, 384], num_attention_heads=[4, 6, 8], depths=[2, 3, 4],
        key_dim=[16, 16, 16], num_labels=1000,
    )  # fmt: skip
    return Field(LevitForImageClassification(config), "logits"), image()


@adding_to(HELD_OUT)
def mobilevit_small() -> Made:
    from transformers import MobileViTConfig, MobileViTForImageClassification

    model = MobileViTForImageClassification(MobileViTConfig(num_labels=1000))
    return Field(model, "logits"), image(256)


@adding_to(HELD_OUT)
def bert_masked() -> Made:
    """The mask is an input, so an exporter cannot know that it leaves something in each row."""
    from transformers import BertConfig, BertModel

    config = BertConfig(**_BERT, num_hidden_layers=2, intermediate_size=3072)
    model = BertModel(config, add_pooling_layer=False)
    return _last_state(model, "input_ids", "attention_mask"), _masked_tokens()


@adding_to(HELD_OUT)
def mobilebert() -> Made:
    from transformers import MobileBertConfig, MobileBertModel

    return _last_state(MobileBertModel(MobileBertConfig(num_hidden_layers=6))), (tokens(),)


@adding_to(HELD_OUT)
def electra_small() -> Made:
    from transformers import ElectraConfig, ElectraModel

    return _last_state(ElectraModel(ElectraConfig())), (tokens(),)


@adding_to(HELD_OUT)
def roberta_masked() -> Made:
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=_VOCABULARY, hidden_size=384, num_attention_heads=6, intermediate_size=1536,
        num_hidden_layers=6,
    )  # fmt: skip
    model = RobertaModel(config, add_pooling_layer=False)
    return _last_state(model, "input_ids", "attention_mask"), _masked_tokens()


@adding_to(HELD_OUT)
def albert() -> Made:
    from transformers import AlbertConfig, AlbertModel

    sizes = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    config = AlbertConfig(**sizes, num_hidden_layers=4)
    return _last_state(AlbertModel(config, add_pooling_layer=False)), (tokens(),)


@adding_to(HELD_OUT)
def conformer() -> Made:
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel

    sizes = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
    config = Wav2Vec2ConformerConfig(**sizes, num_hidden_layers=4)
    return _last_state(Wav2Vec2ConformerModel(config)), (torch.randn(1, 16000),)
