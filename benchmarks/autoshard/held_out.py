"""Models that the prices and the search were not looked at with, each with the layouts that people write by hand for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from catalogue import BOTH, Case, Laid, Spec, nothing, pictures, rows_over, text_layouts, vision_layouts, words
from held_out_models import Hybrid, Listener, ManyExperts, Scans, WideAndDeep
from text_models import Shape

from weft import P


def tables_over(spec: P, rest: Spec) -> Spec:
    """Tables of embeddings are split in one way, what remains in another."""
    return lambda name, shape: spec if name.startswith("tables.") else rest(name, shape)


def table_layouts() -> dict[str, Laid]:
    """Of plain numbers, ids and labels."""
    split = (P(BOTH), P(BOTH), P(BOTH))
    return {
        "data parallel": Laid(nothing, split),
        "fully sharded": Laid(rows_over(BOTH), split),
        "tables by rows": Laid(tables_over(P(BOTH), nothing), split),
        "tables by columns": Laid(tables_over(P(None, BOTH), nothing), split),
        "tables by rows of a host": Laid(tables_over(P("tp"), nothing), split),
    }


def without_split_inputs(layouts: dict[str, Laid]) -> dict[str, Laid]:
    """Those that leave sequences whole when they come in."""
    return {name: laid for name, laid in layouts.items() if all(len(spec) == 1 for spec in laid.batch)}


def held_out_cases(layers: int | None = None) -> dict[str, Case]:
    """The models; with so many layers where they have more."""

    def at_most(shape: Shape) -> Shape:
        return shape if layers is None else replace(shape, layers=min(layers, shape.layers))

    scans = Shape(2560, 5120, 1, 50280, 64, biased=False)
    hybrid = Shape(768, 3072, 12, 1000, 14, causal=False)
    experts = Shape(2048, 1408, 16, 102400, 27, gated=True, biased=False, experts=64, chosen=6)
    sound = Shape(1280, 5120, 20, 51866, 32, positions=448)
    return {
        "Mamba 2.8B": Case(lambda: Scans(at_most(scans)).bfloat16(), words(256, 2048), text_layouts()),
        "CoAtNet": Case(lambda: Hybrid(at_most(hybrid)), pictures(1024, 224, 1000), vision_layouts()),
        "DeepSeek 16B": Case(lambda: ManyExperts(at_most(experts)).bfloat16(), words(64, 4096), text_layouts()),
        "Whisper large": Case(
            lambda: Listener(at_most(sound)).bfloat16(),
            lambda: (torch.empty(256, 80, 3000, dtype=torch.bfloat16), torch.empty(256, 448, dtype=torch.int64)),
            without_split_inputs(text_layouts()),
        ),
        "DLRM": Case(
            WideAndDeep,
            lambda: (
                torch.empty(65536, 512),
                torch.empty(65536, 8, dtype=torch.int64),
                torch.empty(65536),
            ),
            table_layouts(),
        ),
    }
