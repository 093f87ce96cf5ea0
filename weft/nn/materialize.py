"""Deferred initialisation: a module made on the `meta` device comes into being on the mesh, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from ..engine.sharded import wrap
from ..runtime.holding import holding
from ..sharding.mapping import DeviceMapping
from ..tensor.tensor import Tensor, public

__all__ = ["check_fillable", "initialize", "unfilled"]


def unfilled(shape: tuple[int, ...], dtype: torch.dtype, mapping: DeviceMapping) -> Tensor:
    """Memory for a tensor in a layout, and nothing else: each device gets its shard, the whole is nowhere.

    Where all devices share one memory, a tensor is stored whole by design, and so is this one.
    """
    layout = mapping.layout(len(shape))
    return public(wrap(holding(layout).empty(shape, dtype), layout, shape, asked=mapping, dtype=dtype))


def check_fillable(owners: Mapping[str, torch.nn.Module]) -> None:
    """Raises for a module that holds fresh parameters (by name) and does not know how to fill them."""
    for name, owner in owners.items():
        if _resetter(owner) is None:
            raise TypeError(
                f"{name!r} is on the meta device, and {type(owner).__name__}, which holds it, has no reset_parameters to fill it: "
                "give shard_module init=, a function that is called with each such module (init=lambda module: None where weights "
                "are loaded afterwards), or make the module on a real device"
            )


def initialize(
    root: torch.nn.Module,
    owners: Iterable[torch.nn.Module],
    init: Callable[[torch.nn.Module], object] | None = None,
) -> None:
    """Fills fresh parameters: calls `init`, or `reset_parameters`, once for each module that holds some.

    Children come before their parents, as when modules are constructed, so that a parent's word is the last.
    """
    fresh = set(map(id, owners))
    with torch.no_grad():
        for module in dict.fromkeys(_children_first(root)):
            if id(module) in fresh:
                fill = _resetter(module) if init is None else partial(init, module)
                assert fill is not None
                fill()


def _resetter(module: torch.nn.Module) -> Callable[[], object] | None:
    """What fills a module's parameters; some of torch's own modules spell it with an underscore."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return reset if callable(reset) else None


def _children_first(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module
