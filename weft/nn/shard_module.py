"""`shard_module`: an unchanged module, its parameters and buffers laid out over a mesh by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch

from ..runtime.machine import residence
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh
from ..sharding.spec import Spec
from ..tensor.movements import redistribute
from ..tensor.tensor import Tensor
from .materialize import check_fillable, initialize, unfilled
from .patterns import Patterns
from .recurrent import following_weights
from .replacing import became, warn_of_optimizers
from .report import ShardedName, ShardingReport, remember

__all__ = ["lay_out", "shard_module"]

Module = TypeVar("Module", bound=torch.nn.Module)
Place = tuple[torch.nn.Module, str]
"""Where a tensor stands: the module that holds it, and its name there."""
_Decision = tuple[DeviceMapping, str | None]
"""The mapping of a tensor, and the pattern that gave it."""


@dataclass(slots=True)
class _NamedTensor:
    """One tensor of a module and every name it has there; tied parameters have several."""

    value: torch.Tensor
    places: dict[str, Place] = field(default_factory=dict)


def shard_module(
    module: Module,
    mesh: DeviceMesh,
    patterns: Mapping[str, Spec],
    *,
    init: Callable[[torch.nn.Module], object] | None = None,
) -> Module:
    """Lays a module's parameters and buffers out over a mesh, in place, and returns the module.

    `patterns` maps name patterns to specs, the first match decides; names without a match are replicated and listed by
    `sharding_report`; scalars are always replicated. Parameters on the `meta` device are made on the mesh and filled by
    `init`, called with each module that holds some (default: its `reset_parameters`); on devices that this program does not
    have, as for `weft.dryrun`, they stay without values. The parameters stay the objects that they were, so an optimizer
    that holds them goes on with them.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, 64, batch_first=True, device="meta")
    >>> layer = weft.nn.shard_module(layer, mesh, {"linear1.*": P("tp"), "linear2.weight": P(None, "tp")})
    >>> layer.linear1.weight.local_shards[0].shape
    torch.Size([16, 16])
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"shard_module takes a torch.nn.Module, but got {type(module).__name__}")
    rules = Patterns(mesh, patterns)
    entries = _entries(module)
    names = [name for entry in entries for name in entry.places]
    rules.check_used(names, "parameter or buffer of this module")
    _lay_out(module, mesh, entries, [_decided(entry, rules) for entry in entries], init)
    return module


def lay_out(module: torch.nn.Module, mesh: DeviceMesh, mappings: Mapping[str, DeviceMapping]) -> None:
    """Lays out every parameter and buffer of a module by the mapping of its name, which may be on another mesh."""
    entries = _entries(module)
    names = [next(iter(entry.places)) for entry in entries]
    _lay_out(module, mesh, entries, [(mappings[name], name) for name in names], None)


def _lay_out(
    module: torch.nn.Module,
    mesh: DeviceMesh,
    entries: list[_NamedTensor],
    decided: list[_Decision],
    init: Callable[[torch.nn.Module], object] | None,
) -> None:
    fresh = [entry for entry in entries if entry.value.is_meta and not residence(mesh).on_paper]
    owners = {name: owner for entry in fresh for name, (owner, _) in entry.places.items()}
    if init is None:
        check_fillable(owners)
    with torch.no_grad():
        laid = [_laid(entry, mapping) for entry, (mapping, _) in zip(entries, decided, strict=True)]
    with following_weights(module):
        replaced = _put(entries, laid)
    if replaced:
        warn_of_optimizers(replaced, stacklevel=3)
    initialize(module, owners.values(), init)
    remember(module, ShardingReport(mesh, tuple(_reported(entries, laid, [pattern for _, pattern in decided]))))


def _entries(module: torch.nn.Module) -> list[_NamedTensor]:
    """Every parameter and buffer of a module, tied ones once."""
    found: dict[int, _NamedTensor] = {}
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for held in (owner._parameters, owner._buffers):
            for name, value in held.items():
                if value is not None:
                    entry = found.setdefault(id(value), _NamedTensor(value))
                    entry.places[f"{prefix}.{name}" if prefix else name] = (owner, name)
    return list(found.values())


def _decided(entry: _NamedTensor, rules: Patterns) -> _Decision:
    """The mapping of a tensor and the pattern that gave it; the names of a tied one must agree."""
    by_name = {name: pattern for name in entry.places if (pattern := rules.match(name)) is not None}
    if not by_name or not entry.value.dim():
        return NamedMapping(rules.mesh, ()), next(iter(by_name.values()), None)
    mappings = {name: rules.mapping(name) for name in by_name}
    first = next(iter(mappings))
    for name, mapping in mappings.items():
        try:
            layout = mapping.layout(entry.value.dim())
        except ValueError as error:
            raise ValueError(
                f"the pattern {by_name[name]!r} does not fit {name!r} of shape {tuple(entry.value.shape)}: {error}"
            ) from error
        if layout is not mappings[first].layout(entry.value.dim()):
            raise ValueError(
                f"{first!r} and {name!r} are one tied tensor, but the patterns {by_name[first]!r} and {by_name[name]!r} "
                f"lay it out differently, {mappings[first]!r} and {mapping!r}: give both the same"
            )
    return mappings[first], by_name[first]


def _laid(entry: _NamedTensor, mapping: DeviceMapping) -> Tensor:
    """A tensor in its new layout: still a parameter if it was one, with its gradient and what users keep on it."""
    old = entry.value
    if old.is_meta:
        new = unfilled(tuple(old.shape), old.dtype, mapping)
    else:
        with torch.no_grad():
            new = cast(Tensor, redistribute(old, mapping, op="shard_module"))
    if isinstance(old, torch.nn.Parameter):
        new = cast(Tensor, torch.nn.Parameter(new, requires_grad=old.requires_grad))
        new._asked = mapping
    elif old.requires_grad:
        new.requires_grad_()
    if old.grad is not None:
        new.grad = redistribute(old.grad.detach(), mapping, op="shard_module")
    for name, value in _attributes(old):
        setattr(new, name, value)
    for hook in (getattr(old, "_post_accumulate_grad_hooks", None) or {}).values():
        new.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return new


def _put(entries: list[_NamedTensor], laid: list[Tensor]) -> dict[str, torch.Tensor]:
    """Puts the new tensors where the old ones stand, and gives the parameters that had to be replaced, by name."""
    replaced: dict[str, torch.Tensor] = {}
    for i, entry in enumerate(entries):
        if became(entry.value, laid[i]):
            laid[i] = cast(Tensor, entry.value)
            continue
        for full_name, (owner, name) in entry.places.items():
            setattr(owner, name, laid[i])
            if isinstance(entry.value, torch.nn.Parameter):
                replaced[full_name] = entry.value
    return replaced


def _attributes(x: torch.Tensor) -> Iterator[tuple[str, object]]:
    """What users keep on a tensor, such as `no_weight_decay = True`."""
    for name, value in vars(x).items():
        if not name.startswith("_"):
            yield name, value


def _reported(entries: list[_NamedTensor], laid: list[Tensor], patterns: list[str | None]) -> Iterator[ShardedName]:
    for entry, value, pattern in zip(entries, laid, patterns, strict=True):
        first = next(iter(entry.places))
        for name in entry.places:
            tied_to = None if name == first else first
            yield ShardedName(name, tuple(value.shape), value.dtype.itemsize, value._layout, pattern, tied_to)
