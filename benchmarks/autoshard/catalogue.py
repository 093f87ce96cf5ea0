"""Ten models in their real shapes, each with the layouts that people write by hand for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

import torch
from picture_models import Perceptrons, ResNet, UNet
from text_models import LanguageModel, Shape, Translator, VisionTransformer
from torch import nn

import weft
from weft import P

BOTH = ("dp", "tp")
Spec = Callable[[str, tuple[int, ...]], P | None]
"""The layout of a parameter, by its name and shape; None: replicated."""


@dataclass(frozen=True)
class Laid:
    """One way to lay a model out: parameters, results of modules, and the batch."""

    spec: Spec
    batch: tuple[P, ...]
    outputs: Mapping[str, P] = field(default_factory=dict)
    prefer: tuple[str, ...] = ()
    """Strategies that are taken whatever they cost."""

    def lay(self, model: nn.Module, mesh: weft.DeviceMesh) -> nn.Module:
        """The model, laid out."""
        specs = {name: self.spec(name, tuple(x.shape)) for name, x in model.named_parameters()}
        weft.nn.shard_module(model, mesh, {name: spec for name, spec in specs.items() if spec is not None})
        names = [name for name, _ in model.named_modules() if name]
        found = {name: spec for name in names for pattern, spec in self.outputs.items() if fnmatch(name, pattern)}
        return weft.nn.shard_activations(model, mesh, outputs=found)

    def lay_batch(self, batch: tuple[torch.Tensor, ...], mesh: weft.DeviceMesh) -> tuple[torch.Tensor, ...]:
        """The batch, laid out."""
        return tuple(weft.shard(x, mesh, spec) for x, spec in zip(batch, self.batch, strict=True))


@dataclass(frozen=True)
class Case:
    """A model, its batch, and its layouts by name."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, ...]]
    layouts: Mapping[str, Laid]


def nothing(_: str, __: tuple[int, ...]) -> P | None:
    """All parameters are on every device."""
    return None


def rows_over(axes: str | tuple[str, ...]) -> Spec:
    """All parameters are split by their rows, and gathered where they are used."""
    return lambda _, __: P(axes)


def heads_over(tp: str, dp: str | None = None) -> Spec:
    """Megatron's layout over one axis: heads, hidden units and words are split; the rest over another axis, if there is one."""

    def spec(name: str, shape: tuple[int, ...]) -> P | None:
        *_, owner, kind = ("", *name.split("."))
        if kind.startswith("experts_"):
            return P(tp, dp)
        if owner in ("query", "key", "value", "gate", "up", "ups", "rate", "around") or "ups." in name:
            return P(tp, dp) if len(shape) == 2 else P(tp)
        if owner in ("out", "down") or "downs." in name:
            return P(dp, tp) if len(shape) == 2 else None
        if owner in ("embedding", "head") and len(shape) == 2:
            return P((tp, dp)) if dp else P(tp)
        return P(dp) if dp and len(shape) > 1 else None

    return spec


def channels_over(tp: str, dp: str | None = None) -> Spec:
    """Convolutions make their channels on different devices; the batch goes the other way, if it goes."""

    def spec(_: str, shape: tuple[int, ...]) -> P | None:
        return P(tp, dp) if len(shape) == 4 and shape[1] % 8 == 0 else P(tp) if len(shape) == 4 else None

    return spec


def text_layouts() -> dict[str, Laid]:
    """Of a batch of ids and one of labels."""
    rows, sequence = (P("dp"), P("dp")), P("dp", "tp")
    after = dict.fromkeys(("embedding", "*attention.out", "*cross.out", "*perceptron.down", "*perceptron"), sequence)
    return {
        "data parallel": Laid(nothing, (P(BOTH), P(BOTH))),
        "fully sharded": Laid(rows_over(BOTH), (P(BOTH), P(BOTH))),
        "tensor parallel": Laid(heads_over("tp"), rows),
        "tensor and sequence parallel": Laid(heads_over("tp"), rows, after),
        "tensor parallel, fully sharded": Laid(heads_over("tp", "dp"), rows),
        "tensor and sequence parallel, fully sharded": Laid(heads_over("tp", "dp"), rows, after),
        "sequence split, fully sharded": Laid(rows_over(BOTH), (sequence, sequence)),
    }


def long_layouts() -> dict[str, Laid]:
    """Of long sequences, for which a batch is small."""
    split = text_layouts()
    sequence = P("dp", "tp")
    rest = {name: laid for name, laid in split.items() if laid.batch[0] == P("dp")}
    return {
        **rest,
        "ring, replicated": Laid(nothing, (sequence, sequence), prefer=("ring",)),
        "ring, fully sharded": Laid(rows_over(BOTH), (sequence, sequence), prefer=("ring",)),
        "sequence split, fully sharded": split["sequence split, fully sharded"],
    }


def vision_layouts() -> dict[str, Laid]:
    """Of a batch of pictures and one of labels, for transformers."""
    plain = text_layouts()
    del plain["sequence split, fully sharded"]
    return {
        name: replace(laid, outputs={key: spec for key, spec in laid.outputs.items() if key != "embedding"})
        for name, laid in plain.items()
    }


def picture_layouts(dims: int) -> dict[str, Laid]:
    """Of a batch of pictures and one of labels, which have so many dims, for convolutions."""
    here, split = P("dp"), P("dp", None, "tp")
    labels = P("dp", "tp") if dims == 3 else P("dp")
    return {
        "data parallel": Laid(nothing, (P(BOTH), P(BOTH))),
        "fully sharded": Laid(rows_over(BOTH), (P(BOTH), P(BOTH))),
        "channels split": Laid(channels_over("tp"), (here, here)),
        "channels split, fully sharded": Laid(channels_over("tp", "dp"), (here, here)),
        "space split": Laid(nothing, (split, labels)),
        "space split, fully sharded": Laid(rows_over(BOTH), (split, labels)),
    }


def row_layouts() -> dict[str, Laid]:
    """Of rows of numbers."""
    rows = (P("dp"), P("dp"))
    return {
        "data parallel": Laid(nothing, (P(BOTH), P(BOTH))),
        "fully sharded": Laid(rows_over(BOTH), (P(BOTH), P(BOTH))),
        "tensor parallel": Laid(heads_over("tp"), rows),
        "tensor parallel, fully sharded": Laid(heads_over("tp", "dp"), rows),
        "tensor parallel over all": Laid(heads_over("tp", "dp"), (P(), P())),
    }


def words(batch: int, length: int, below: int = 0) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Ids and labels; `below`: real ones, of so many words."""

    def made() -> tuple[torch.Tensor, ...]:
        if not below:
            return tuple(torch.empty(batch, length, dtype=torch.int64) for _ in range(2))
        return tuple(torch.randint(0, below, (batch, length)) for _ in range(2))

    return made


def pictures(batch: int, size: int, classes: int, *, each: bool = False) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Pictures and a class for each of them, or for each pixel."""
    labels = (batch, size, size) if each else (batch,)
    return lambda: (torch.randn(batch, 3, size, size), torch.randint(0, classes, labels))


LLAMA = Shape(4096, 14336, 32, 128256, 32, key_heads=8, gated=True, biased=False)


def cases(layers: int | None = None) -> dict[str, Case]:
    """The models; with so many layers where they have more."""

    def at_most(shape: Shape) -> Shape:
        return shape if layers is None else replace(shape, layers=min(layers, shape.layers))

    def text(shape: Shape, batch: int, length: int) -> Case:
        return Case(lambda: LanguageModel(at_most(shape)).bfloat16(), words(batch, length), text_layouts())

    gpt = Shape(1600, 6400, 25, 50257, 48, positions=1024)
    bert = Shape(1024, 4096, 16, 30522, 24, causal=False, positions=512)
    five = Shape(1024, 4096, 16, 32128, 24, biased=False)
    vision = Shape(1024, 4096, 16, 1000, 24, causal=False, positions=196)
    mixtral = Shape(4096, 14336, 32, 32000, 32, key_heads=8, gated=True, biased=False, experts=8)
    return {
        "Llama 8B": text(LLAMA, 64, 4096),
        "GPT-2 XL": text(gpt, 512, 1024),
        "BERT large": text(bert, 1024, 512),
        "T5 large": Case(lambda: Translator(at_most(five)).bfloat16(), words(512, 512), text_layouts()),
        "ViT large": Case(lambda: VisionTransformer(at_most(vision)), pictures(1024, 224, 1000), vision_layouts()),
        "Mixtral 8x7B": text(mixtral, 64, 4096),
        "ResNet-50": Case(ResNet, pictures(1024, 224, 1000), picture_layouts(1)),
        "U-Net": Case(UNet, pictures(64, 512, 2, each=True), picture_layouts(3)),
        "MLP": Case(
            lambda: Perceptrons(8192, 32768, layers or 8),
            lambda: (torch.empty(8192, 8192), torch.empty(8192, 8192)),
            row_layouts(),
        ),
        "Llama 8B, 128k tokens": Case(
            lambda: LanguageModel(at_most(LLAMA)).bfloat16(), words(8, 131072), long_layouts()
        ),
    }


def small_cases() -> dict[str, Case]:
    """Four models that four processes of one machine train in fractions of a second, with five layouts each."""
    hand_written = dict(list(text_layouts().items())[:5])
    llama = Shape(256, 704, 8, 2048, 2, key_heads=4, gated=True, biased=False)
    bert = Shape(256, 1024, 8, 2048, 2, causal=False, positions=128)
    gpt = Shape(256, 1024, 8, 2048, 2, positions=128)
    return {
        "small Llama": Case(lambda: LanguageModel(llama), words(8, 128, below=2048), hand_written),
        "small BERT": Case(lambda: LanguageModel(bert), words(8, 128, below=2048), hand_written),
        "small GPT-2": Case(lambda: LanguageModel(gpt), words(8, 128, below=2048), hand_written),
        "small MLP": Case(
            lambda: Perceptrons(512, 2048, 3), lambda: (torch.randn(256, 512), torch.randn(256, 512)), row_layouts()
        ),
    }
