"""The models: families of `transformers` in sizes that a test can afford, with random weights in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import transformers as hf

BATCH, LENGTH, WORDS = 4, 6, 48
Inputs = Mapping[str, torch.Tensor]

_SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SMALL, "num_key_value_heads": 2, "head_dim": 4}


@dataclass(frozen=True)
class Case:
    """One model: how it is made, what it is given, and whether it generates."""

    model: Callable[[], torch.nn.Module]
    inputs: Callable[[], Inputs]
    generates: bool = False

    def fresh(self) -> torch.nn.Module:
        """The model, with the same weights each time."""
        torch.manual_seed(0)
        return self.model().double()


def _numbers(*shape: int, below: int = WORDS, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, below, shape, generator=torch.Generator().manual_seed(seed))


def _reals(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def _padding() -> torch.Tensor:
    """The words that count: one row is shorter than the others; padding stands on the left, as `generate` wants it."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, :2] = 0
    return mask


def _words() -> Inputs:
    words, mask = _numbers(BATCH, LENGTH), _padding()
    return {"input_ids": words, "attention_mask": mask, "labels": words.masked_fill(mask == 0, -100)}


def _full_rows() -> Inputs:
    """For models that make nan of a row's padding."""
    words = _numbers(BATCH, LENGTH)
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


def _classes() -> Inputs:
    return {"input_ids": _numbers(BATCH, LENGTH), "attention_mask": _padding(), "labels": torch.tensor([0, 1, 2, 1])}


def _picture() -> Inputs:
    return {"pixel_values": _reals(BATCH, 3, 16, 16), "labels": torch.tensor([0, 1, 2, 1])}


def _segments() -> Inputs:
    return {"pixel_values": _reals(BATCH, 3, 32, 32), "labels": _numbers(BATCH, 32, 32, below=5) - 3}


def _pairs() -> Inputs:
    return {
        "input_ids": _numbers(BATCH, LENGTH),
        "attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.long),
        "pixel_values": _reals(BATCH, 3, 16, 16),
        "return_loss": True,
    }


def _sound() -> Inputs:
    return {"input_features": _reals(BATCH, 8, 32), "labels": _numbers(BATCH, LENGTH)}


def _text(kind: str, words: Callable[[], Inputs] = _words, *, generates: bool = True, **sizes: object) -> Case:
    """A model of text by the name of its class; its configuration's class is found from it."""
    model = getattr(hf, kind)
    return Case(lambda: model(model.config_class(**{**_SMALL, **sizes})), words, generates)


def _other(kind: str, inputs: Callable[[], Inputs], *, generates: bool = False, **sizes: object) -> Case:
    model = getattr(hf, kind)
    return Case(lambda: model(model.config_class(**sizes)), inputs, generates)


_ENDS = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_IMAGE = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip

MODELS: dict[str, Case] = {
    "Llama": _text("LlamaForCausalLM", **_GROUPED),
    "Mistral": _text("MistralForCausalLM", **_GROUPED, sliding_window=4),
    "Mixtral": _text("MixtralForCausalLM", **_GROUPED, num_local_experts=4, experts_implementation="eager"),
    "Qwen2": _text("Qwen2ForCausalLM", **_GROUPED),
    "Gemma": _text("GemmaForCausalLM", **_GROUPED),
    "Phi": _text("PhiForCausalLM"),
    "GPT-2": _other(
        "GPT2LMHeadModel", _words, generates=True, n_embd=16, n_layer=2, n_head=4, n_positions=32, **_ENDS
    ),
    "GPT-NeoX": _text("GPTNeoXForCausalLM"),
    "OPT": _text("OPTForCausalLM", ffn_dim=24, word_embed_proj_dim=16),
    "Falcon": _text("FalconForCausalLM", new_decoder_architecture=True, num_kv_heads=2, alibi=False),
    "Bloom": _other("BloomForCausalLM", _full_rows, generates=True, hidden_size=16, n_layer=2, n_head=4, **_ENDS),
    "Mamba": _other(
        "MambaForCausalLM", _words, generates=True, hidden_size=16, state_size=4, num_hidden_layers=2, **_ENDS
    ),
    "BERT": _text("BertForMaskedLM", generates=False),
    "RoBERTa": _text("RobertaForSequenceClassification", _classes, generates=False, num_labels=3),
    "DistilBERT": _other(
        "DistilBertForSequenceClassification", _classes, dim=16, hidden_dim=24, n_layers=2, n_heads=4, num_labels=3,
        max_position_embeddings=32, **_ENDS,
    ),
    "ELECTRA": _text("ElectraForSequenceClassification", _classes, generates=False, num_labels=3, embedding_size=8),
    "DeBERTa": _text(
        "DebertaV2ForSequenceClassification", _classes, generates=False, num_labels=3, relative_attention=True,
        pos_att_type=["p2c", "c2p"], position_biased_input=False,
    ),
    "T5": _other(
        "T5ForConditionalGeneration", _words, generates=True, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4,
        decoder_start_token_id=0, **_ENDS,
    ),
    "BART": _other(
        "BartForConditionalGeneration", _words, generates=True, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_attention_heads=4, decoder_attention_heads=4,
        max_position_embeddings=32, decoder_start_token_id=2, forced_eos_token_id=None, **_ENDS,
    ),
    "Whisper": _other(
        "WhisperForConditionalGeneration", _sound, generates=True, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, encoder_attention_heads=4, decoder_attention_heads=4, num_mel_bins=8,
        max_source_positions=16, max_target_positions=32, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None, **_ENDS,
    ),
    "ViT": _other("ViTForImageClassification", _picture, num_labels=3, **_IMAGE),
    "SegFormer": _other(
        "SegformerForSemanticSegmentation", _segments, num_labels=2, depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16],
        num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16,
    ),
    "CLIP": _other(
        "CLIPModel", _pairs, text_config={**_SMALL}, vision_config={**_IMAGE}, projection_dim=8
    ),
}  # fmt: skip
"""By the name that people call them."""
