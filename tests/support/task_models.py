"""Small models of each task with random weights and the processors of their families.

`python -m tests.support.task_models FOLDER NAME...` saves them in folders of their names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as t

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
_SEEN: dict[str, Any] = {**_SMALL, "image_size": 64, "patch_size": 16}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ENTITIES = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))


def _letters(folder: Path) -> None:
    """BERT's tokenizer of single letters."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_LETTERS, "."]
    words += [f"##{letter}" for letter in _LETTERS]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words))
    t.BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)


def _bytes(folder: Path) -> None:
    """RoBERTa's tokenizer of single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: index for index, word in enumerate([*special, *alphabet])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = ("bos", "pad", "eos", "unk", "mask", "cls", "sep")
    tokens = {f"{n}_token": w for n, w in zip(names, [*special, "<s>", "</s>"], strict=True)}
    t.PreTrainedTokenizerFast(tokenizer_object=made, **tokens).save_pretrained(folder)


def _save(folder: Path, model: Any, *processors: Any) -> None:
    model.eval().save_pretrained(folder)
    for processor in processors:
        processor.save_pretrained(folder)


def _pixels(height: int = 64, width: int = 64, kind: str = "ViTImageProcessor") -> Any:
    return getattr(t, kind)(size={"height": height, "width": width})


def _bert(folder: Path) -> None:
    _letters(folder)
    _save(folder, t.BertForMaskedLM(t.BertConfig(vocab_size=64, **_SMALL)))


def _minilm(folder: Path) -> None:
    _letters(folder)
    _save(folder, t.BertModel(t.BertConfig(vocab_size=64, **_SMALL)))
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    settings = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def _roberta(folder: Path) -> None:
    _bytes(folder)
    config = t.RobertaConfig(
        vocab_size=270, max_position_embeddings=66, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        num_labels=3, **_SMALL,
    )  # fmt: skip
    _save(folder, t.RobertaForSequenceClassification(config))


def _modernbert(folder: Path) -> None:
    _bytes(folder)
    config = t.ModernBertConfig(
        vocab_size=270, max_position_embeddings=512, pad_token_id=1, bos_token_id=0,
        eos_token_id=2, cls_token_id=0, sep_token_id=2, local_attention=16,
        global_attn_every_n_layers=2, **_SMALL,
    )  # fmt: skip
    _save(folder, t.ModernBertForSequenceClassification(config))


def _deberta(folder: Path) -> None:
    _letters(folder)
    config = t.DebertaV2Config(
        vocab_size=64, relative_attention=True, position_buckets=16, max_position_embeddings=128,
        pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True,
        id2label=_ENTITIES, label2id={name: i for i, name in _ENTITIES.items()}, **_SMALL,
    )  # fmt: skip
    _save(folder, t.DebertaV2ForTokenClassification(config))


def _vit(folder: Path) -> None:
    _save(folder, t.ViTForImageClassification(t.ViTConfig(num_labels=7, **_SEEN)), _pixels())


def _dinov2(folder: Path) -> None:
    sizes = {k: v for k, v in _SEEN.items() if k != "intermediate_size"}
    config = t.Dinov2Config(num_labels=7, mlp_ratio=2, **sizes)
    _save(folder, t.Dinov2ForImageClassification(config), _pixels())


def _convnext(folder: Path) -> None:
    config = t.ConvNextConfig(num_labels=7, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1])
    _save(folder, t.ConvNextForImageClassification(config), _pixels())


def _swin(folder: Path) -> None:
    config = t.SwinConfig(
        num_labels=7, image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
        window_size=4,
    )  # fmt: skip
    _save(folder, t.SwinForImageClassification(config), _pixels())


def _yolos(folder: Path) -> None:
    sizes = {**_SEEN, "image_size": [64, 96]}
    config = t.YolosConfig(num_labels=5, num_detection_tokens=8, **sizes)
    processor = t.YolosImageProcessor(size={"height": 64, "width": 96}, do_pad=False)
    model = t.YolosForObjectDetection(config)
    _find_objects(model.class_labels_classifier.layers[-1])
    _save(folder, model, processor)


def _find_objects(classes: torch.nn.Linear) -> None:
    """Makes a class probable: random weights alone find no objects."""
    with torch.no_grad():
        classes.bias[2] += 8


def _detr(folder: Path) -> None:
    backbone = t.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic",
        out_features=["stage2"],
    )  # fmt: skip
    config = t.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        backbone_config=backbone, num_queries=8, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64,
        decoder_ffn_dim=64, num_labels=5,
    )  # fmt: skip
    processor = t.DetrImageProcessor(size={"height": 64, "width": 96}, do_pad=False)
    model = t.DetrForObjectDetection(config)
    _find_objects(model.class_labels_classifier)
    _save(folder, model, processor)


def _segformer(folder: Path) -> None:
    config = t.SegformerConfig(
        num_labels=6, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 32, 64],
        num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=32,
    )  # fmt: skip
    processor = _pixels(64, 96, "SegformerImageProcessor")
    _save(folder, t.SegformerForSemanticSegmentation(config), processor)


def _dpt(folder: Path) -> None:
    sizes = {**_SEEN, "num_hidden_layers": 4}
    config = t.DPTConfig(
        backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 32, 32, 32],
        fusion_hidden_size=32, is_hybrid=False, **sizes,
    )  # fmt: skip
    processor = _pixels(kind="DPTImageProcessor")
    _save(folder, t.DPTForDepthEstimation(config), processor)


def _wav2vec2(folder: Path) -> None:
    config = t.Wav2Vec2Config(
        vocab_size=32, conv_dim=(32, 32, 32), conv_stride=(5, 4, 4), conv_kernel=(10, 3, 3),
        num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        **_SMALL,
    )  # fmt: skip
    _save(folder, t.Wav2Vec2ForCTC(config), t.Wav2Vec2FeatureExtractor(sampling_rate=16_000))
    words = ["<pad>", "<s>", "</s>", "<unk>", "|", *_LETTERS.upper(), "'"]
    path = folder / "vocab.json"
    path.write_text(json.dumps({word: index for index, word in enumerate(words)}))
    t.Wav2Vec2CTCTokenizer(str(path)).save_pretrained(folder)


def _ast(folder: Path) -> None:
    config = t.ASTConfig(
        num_labels=5, max_length=128, num_mel_bins=32, patch_size=16, frequency_stride=10,
        time_stride=10, **_SMALL,
    )  # fmt: skip
    processor = t.ASTFeatureExtractor(num_mel_bins=32, max_length=128)
    _save(folder, t.ASTForAudioClassification(config), processor)


def _fastspeech2(folder: Path) -> None:
    _letters(folder)
    parts = {
        f"{part}_{name}": size
        for part in ("duration_predictor", "energy_predictor", "pitch_predictor")
        for name, size in {"layers": 1, "channels": 32}.items()
    }
    sides = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in {"layers": 1, "linear_units": 64, "num_attention_heads": 2}.items()
    }
    model = t.FastSpeech2ConformerConfig(
        hidden_size=32, vocab_size=64, num_mel_bins=16, speech_decoder_postnet_layers=2,
        speech_decoder_postnet_units=32, **sides, **parts,
    )  # fmt: skip
    vocoder = t.FastSpeech2ConformerHifiGanConfig(
        model_in_dim=16, upsample_initial_channel=32, upsample_rates=[4, 4],
        upsample_kernel_sizes=[8, 8], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 3]],
    )  # fmt: skip
    config = t.FastSpeech2ConformerWithHifiGanConfig(
        model_config=model.to_dict(), vocoder_config=vocoder.to_dict()
    )
    made = t.FastSpeech2ConformerWithHifiGan(config)
    with torch.no_grad():  # with random weights, a token lasts for less than a frame
        made.model.duration_predictor.linear.bias.fill_(1.5)
    _save(folder, made)


def _timm(architecture: str, folder: Path) -> None:
    import timm

    classes = {"num_classes": 4} if architecture == "resnet10t" else {}
    labels = {"label_names": ["cat", "dog", "cow", "pig"]} if classes else None
    model = timm.create_model(architecture, pretrained=False, **classes)
    timm.models.save_for_hf(model, folder, model_config=labels, safe_serialization=True)


TIMM = ("resnet10t", "resnet18", "mobilenetv3_small_050", "vit_tiny_patch16_224", "convnext_femto")


def _words(folder: Path, special: tuple[str, ...]) -> dict[str, int]:
    """A tokenizer of single bytes with further tokens; gives their ids."""
    _bytes(folder)
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*special]})
    tokenizer.save_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids([*special])
    return dict(zip(special, ids, strict=True))


_SIDES: dict[str, Any] = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 2, "attention_heads": 4, "ffn_dim": 128}.items()
}


def _whisper(folder: Path, **sizes: Any) -> None:
    special = ("<|start|>", "<|en|>", "<|de|>", "<|transcribe|>", "<|notimestamps|>", "<|end|>")
    ids = _words(folder, special)
    start, english, german, transcribe, untimed, end = ids.values()
    given = {
        "vocab_size": 512, "d_model": 64, **_SIDES, "max_source_positions": 150,
        "max_target_positions": 64, "num_mel_bins": 80, "decoder_start_token_id": start,
        "eos_token_id": end, "bos_token_id": end, "pad_token_id": end, **sizes,
    }  # fmt: skip
    model = t.WhisperForConditionalGeneration(t.WhisperConfig(**given))
    model.generation_config = t.GenerationConfig(
        decoder_start_token_id=start, eos_token_id=end, pad_token_id=end,
        lang_to_id={"<|en|>": english, "<|de|>": german}, task_to_id={"transcribe": transcribe},
        is_multilingual=True, no_timestamps_token_id=untimed, suppress_tokens=[7, 8, 9],
        begin_suppress_tokens=[10, end],
    )  # fmt: skip
    seconds = given["max_source_positions"] // 50
    _save(folder, model, t.WhisperFeatureExtractor(chunk_length=seconds))


def _t5(folder: Path, **sizes: Any) -> None:
    _bytes(folder)
    config = t.T5Config(
        **{"vocab_size": 270, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
           "num_heads": 4, "feed_forward_proj": "gated-gelu", "pad_token_id": 1,
           "decoder_start_token_id": 1, "eos_token_id": 2, **sizes}
    )  # fmt: skip
    _save(folder, t.T5ForConditionalGeneration(config))


def _bart(folder: Path) -> None:
    _bytes(folder)
    config = t.BartConfig(
        vocab_size=270, d_model=64, max_position_embeddings=128, forced_bos_token_id=0,
        bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, **_SIDES,
    )  # fmt: skip
    model = t.BartForConditionalGeneration(config)
    model.generation_config.forced_bos_token_id = 0
    _save(folder, model)


def _marian(folder: Path) -> None:
    _bytes(folder)
    config = t.MarianConfig(
        vocab_size=270, d_model=64, max_position_embeddings=128, pad_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, **_SIDES,
    )  # fmt: skip
    _save(folder, t.MarianMTModel(config))


_SEES: dict[str, Any] = {**_SMALL, "patch_size": 8}
_TALKS: dict[str, Any] = {**_SMALL, "num_key_value_heads": 2, "max_position_embeddings": 512}
# Every message's parts, an image as {image}; then the answer begins.
_TEMPLATE = (
    "{{% for message in messages %}}{{{{ message['role'] }}}}: "
    "{{% for part in message['content'] %}}"
    "{{% if part['type'] == 'image' %}}{image}{{% else %}}{{{{ part['text'] }}}}{{% endif %}}"
    "{{% endfor %}}\n{{% endfor %}}{{% if add_generation_prompt %}}assistant:{{% endif %}}"
)


def _sees(folder: Path, special: tuple[str, ...], **named: str) -> dict[str, int]:
    """A tokenizer of single bytes with tokens around images; `named` are attributes of it."""
    ids = _words(folder, special)
    if named:
        tokenizer = t.AutoTokenizer.from_pretrained(folder, extra_special_tokens=named)
        tokenizer.save_pretrained(folder)
    return ids


def _save_with_processor(
    folder: Path, model: Any, kind: Any, image: str, *parts: Any, **more: Any
) -> None:
    tokenizer = t.AutoTokenizer.from_pretrained(folder)
    template = _TEMPLATE.format(image=image)
    processor = kind(parts[0], tokenizer, *parts[1:], chat_template=template, **more)
    _save(folder, _spread(model), processor)


def _spread(model: Any) -> Any:
    """Weights so large that the image changes the answer."""
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    return model


def _llava(folder: Path, **text: Any) -> None:
    ids = _sees(folder, ("<image>",))
    config = t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**_SEES, image_size=32, projection_dim=64),
        text_config=t.LlamaConfig(**{**_TALKS, "vocab_size": max(ids.values()) + 1, **text}),
        image_token_id=ids["<image>"], vision_feature_layer=-2, image_seq_length=16,
    )  # fmt: skip
    side = {"height": 32, "width": 32}
    pixels = t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side)
    _save_with_processor(
        folder, t.LlavaForConditionalGeneration(config), t.LlavaProcessor, "<image>\n", pixels,
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip


def _smolvlm(folder: Path, kind: str = "SmolVLM", **text: Any) -> None:
    tiles = tuple(f"<row_{i}_col_{j}>" for i in range(1, 3) for j in range(1, 3))
    special = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles)
    ids = _sees(folder, special)
    config = getattr(t, f"{kind}Config")(
        vision_config={**_SEES, "image_size": 32},
        text_config=t.LlamaConfig(**{**_TALKS, "vocab_size": max(ids.values()) + 1, **text}),
        image_token_id=ids["<image>"], scale_factor=2, pad_token_id=1,
    )  # fmt: skip
    pixels = getattr(t, f"{kind}ImageProcessor")(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, do_image_splitting=True
    )
    video = [t.SmolVLMVideoProcessor()] if kind == "SmolVLM" else []
    model = getattr(t, f"{kind}ForConditionalGeneration")(config)
    processor = getattr(t, f"{kind}Processor")
    _save_with_processor(folder, model, processor, "<image>", pixels, *video, image_seq_len=4)


def _gemma3_vision(folder: Path) -> None:
    named = {"image_token": "<img>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
    ids = _sees(folder, tuple(named.values()), **named)
    config = t.Gemma3Config(
        text_config=t.Gemma3TextConfig(
            **{**_TALKS, "num_hidden_layers": 3}, head_dim=16, vocab_size=max(ids.values()) + 1,
            tie_word_embeddings=False,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            sliding_window=24,
        ),
        vision_config=t.SiglipVisionConfig(**_SEES, image_size=32, vision_use_head=False),
        mm_tokens_per_image=4, image_token_index=ids["<img>"], image_token_id=ids["<img>"],
        boi_token_index=ids["<boi>"], eoi_token_index=ids["<eoi>"], tie_word_embeddings=False,
    )  # fmt: skip
    pixels = t.Gemma3ImageProcessor(size={"height": 32, "width": 32})
    model = t.Gemma3ForConditionalGeneration(config)
    _save_with_processor(folder, model, t.Gemma3Processor, "<boi>", pixels, image_seq_length=4)


def _qwen_vision(folder: Path) -> None:
    special = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    ids = _sees(folder, special)
    config = t.Qwen2_5_VLConfig(
        text_config={
            **_TALKS, "vocab_size": max(ids.values()) + 1, "bos_token_id": 0, "eos_token_id": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3],
                                "rope_theta": 10000.0},
        },
        vision_config={
            "depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 128,
            "out_hidden_size": 64, "patch_size": 8, "spatial_merge_size": 2, "window_size": 32,
            "fullatt_block_indexes": [1], "temporal_patch_size": 2,
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
    )  # fmt: skip
    pixels = t.Qwen2VLImageProcessor(patch_size=8, min_pixels=32 * 32, max_pixels=64 * 64)
    video = t.Qwen2VLVideoProcessor(patch_size=8)
    model = t.Qwen2_5_VLForConditionalGeneration(config)
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    _save_with_processor(folder, model, t.Qwen2_5_VLProcessor, image, pixels, video)


MODELS: Mapping[str, Callable[[Path], None]] = {
    "bert": _bert,
    "minilm": _minilm,
    "roberta": _roberta,
    "modernbert": _modernbert,
    "deberta": _deberta,
    "vit": _vit,
    "dinov2": _dinov2,
    "convnext": _convnext,
    "swin": _swin,
    "yolos": _yolos,
    "detr": _detr,
    "segformer": _segformer,
    "dpt": _dpt,
    "wav2vec2": _wav2vec2,
    "ast": _ast,
    "fastspeech2": _fastspeech2,
    **{f"timm-{name}": partial(_timm, name) for name in TIMM},
    "whisper": _whisper,
    "t5": _t5,
    "bart": _bart,
    "marian": _marian,
    "llava": _llava,
    "smolvlm": _smolvlm,
    "idefics3": partial(_smolvlm, kind="Idefics3"),
    "gemma3-vision": _gemma3_vision,
    "qwen2.5-vl": _qwen_vision,
}


def main(folder: Path, names: list[str]) -> None:
    """Saves the models."""
    for name in names:
        torch.manual_seed(0)
        MODELS[name](folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
