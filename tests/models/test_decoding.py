"""Decoding on split models: the same words, and for each of them what Megatron's layout moves."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers: make test-models")

import weft
from tests.models.decoding import BATCH, CACHES, DIM, LAYERS, generated, prompt

WORDS = 64


@pytest.mark.parametrize("cache", CACHES)
def test_a_word_moves_what_its_blocks_add_up_and_its_scores(cache: str, memory: str) -> None:
    expected, _ = generated(prompt(), None, cache, WORDS)
    found, moved = generated(prompt(), weft.make_mesh({"dp": 2, "tp": 4}), cache, WORDS)
    assert torch.equal(found, expected)
    assert len(moved) == WORDS - 1
    sums = [("all_reduce", ("tp",), (BATCH, 1, DIM))] * (1 + 2 * LAYERS)  # of the embedding, and two of each block
    scores, end = ("all_gather", ("tp",), (BATCH, 64)), ("all_reduce", ("dp",), ())
    for records in moved[:-1]:
        assert [(r.kind, r.axes, r.shape) for r in records] == [*sums, scores, end]


@pytest.mark.parametrize("cache", CACHES)
def test_fewer_heads_of_keys_than_devices_move_no_more(cache: str, memory: str) -> None:
    """The cache has each head of keys on the devices that use it."""
    expected, _ = generated(prompt(), None, cache, 12, heads_of_keys=2)
    found, moved = generated(prompt(), weft.make_mesh({"dp": 2, "kv": 2, "rep": 2}), cache, 12, heads_of_keys=2)
    assert torch.equal(found, expected)
    over = ("kv", "rep")
    sums = [("all_reduce", over, (BATCH, 1, DIM))] * (1 + 2 * LAYERS)
    scores, end = ("all_gather", over, (BATCH, 64)), ("all_reduce", ("dp",), ())
    for records in moved[:-1]:
        assert [(r.kind, r.axes, r.shape) for r in records] == [*sums, scores, end]


@pytest.mark.parametrize("cache", CACHES)
def test_sequences_of_different_lengths(cache: str, memory: str) -> None:
    given = prompt(padded=True)
    expected, _ = generated(given, None, cache, 8)
    found, moved = generated(given, weft.make_mesh({"dp": 2, "tp": 4}), cache, 8)
    assert torch.equal(found, expected)
    assert {r.kind for records in moved for r in records if "tp" in r.axes} == {"all_reduce", "all_gather"}


def test_a_cache_that_grows_needs_no_layout() -> None:
    hf = pytest.importorskip("transformers")
    with pytest.raises(TypeError, match=r"shard_cache takes a cache .* but got list: caches that grow"):
        weft.nn.shard_cache([])
    assert weft.nn.shard_cache(hf.DynamicCache()).layers == []
