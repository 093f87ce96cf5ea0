"""`shard_cache`: keys and values that are kept for decoding lie as those that are put there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import torch

from ..engine.sharded import ShardedTensor

__all__ = ["shard_cache"]


class CacheLayer(Protocol):
    """What a layer of a cache has, as in Transformers."""

    keys: torch.Tensor
    values: torch.Tensor

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Makes room for keys and values, when the first of them come."""


class Cache(Protocol):
    """A cache of layers."""

    layers: Iterable[CacheLayer]


C = TypeVar("C", bound=Cache)


def shard_cache(cache: C) -> C:
    """Lets a cache that makes room for all words at once (a `StaticCache`) lie as the keys and values that come first.

    It is changed in place and returned: `model.generate(..., past_key_values=shard_cache(StaticCache(config, 512)))`. What such
    a cache makes of its own is plain, so that all keys and values would have to be gathered to be written to it.

    >>> import weft
    >>> class Layer:
    ...     def lazy_initialization(self, key_states, value_states):
    ...         self.keys = self.values = torch.zeros(2, 4, 8, 2)
    >>> class Layers:
    ...     layers = [Layer()]
    >>> cache = shard_cache(Layers())
    >>> states = weft.shard(torch.ones(2, 4, 1, 2), weft.make_mesh({"dp": 2, "tp": 2}), weft.P("dp", "tp"))
    >>> cache.layers[0].lazy_initialization(states, states)
    >>> cache.layers[0].keys.mapping.spec
    P('dp', 'tp', None, None)
    """
    layers = getattr(cache, "layers", None)
    if layers is None or any(not hasattr(layer, "lazy_initialization") for layer in layers):
        raise TypeError(
            f"shard_cache takes a cache with layers that make room when the first keys come (lazy_initialization), as the "
            f"StaticCache of Transformers, but got {type(cache).__name__}: caches that grow lie as their keys without it"
        )
    for layer in layers:
        layer.lazy_initialization = _laid_out(layer, layer.lazy_initialization)
    return cache


def _laid_out(
    layer: CacheLayer, initialize: Callable[[torch.Tensor, torch.Tensor], None]
) -> Callable[[torch.Tensor, torch.Tensor], None]:
    def lazy_initialization(key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        initialize(key_states, value_states)
        if isinstance(key_states, ShardedTensor):
            layer.keys = key_states.new_zeros(layer.keys.shape, dtype=layer.keys.dtype)
            layer.values = value_states.new_zeros(layer.values.shape, dtype=layer.values.dtype)

    return lazy_initialization
