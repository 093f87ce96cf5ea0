"""`fully_shard`: every parameter is split over an axis, and whole only while its block runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

import torch

from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping, named_mapping
from ...sharding.mesh import DeviceMesh
from ...tensor.tensor import Tensor, public
from ..patterns import suggestion
from ..shard_module import lay_out
from ..splitting import check_axis, split_further, whole_along
from .block import Block, Settings
from .held import Dropping, siblings_of
from .offloading import laid_on, pin, rest_of
from .siblings import Siblings
from .standing import Place

__all__ = ["fully_shard", "no_sync"]

Module = TypeVar("Module", bound=torch.nn.Module)


def fully_shard(
    module: Module,
    mesh: DeviceMesh,
    axis: str = "dp",
    *,
    blocks: str | Sequence[str] = "*.layers.*",
    prefetch: int = 1,
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    replicate: str | None = None,
    reshard_after_forward: bool = True,
    keep_bytes: int = 256 << 20,
    fewest_bytes: bool = False,
    offload: Literal["cpu"] | DeviceMesh | None = None,
) -> Module:
    """Splits every parameter of a module over a mesh axis, and gathers those of a block just before it runs (FSDP, ZeRO-3).

    `blocks` are patterns of submodules' names; the outermost that match are blocks, and what is in none of them is one, too.
    All parameters of a block are gathered in one collective, those of the next `prefetch` blocks while it computes, and freed
    after it; before it runs back they are gathered again. The blocks that run last stay whole until they have run back, as
    many as take `keep_bytes` on a device at most, and at least one; with `reshard_after_forward=False` all do. Gradients of a
    block are reduced and scattered in one collective while the next block computes, and are there at the end of the backward
    pass. `param_dtype` is the dtype in which parameters travel and compute (inputs of blocks are cast to it), `reduce_dtype`
    that of gradients on their way; the parameters themselves keep theirs. `replicate` names an axis over which parameters
    stay whole and gradients are reduced, too: sharded within a host, replicated between hosts. `fewest_bytes=True` leaves the
    parameters of a block split where that moves less, because there is little to compute with them and activations move
    instead; it is found out by running the block once without memory for each form of its arguments. Parameters that other
    axes split stay split by these. `offload="cpu"` lets parameters, their gradients and so the optimizer's state rest in host
    memory; each device fetches its part when a block is gathered (a mesh of the same axes says which devices they rest on).

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 4})
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    >>> model = weft.nn.fully_shard(model, mesh, "dp", blocks=["0", "2"])
    >>> x = weft.shard(torch.ones(4, 8), mesh, weft.P("dp"))
    >>> with weft.comm_log() as log:
    ...     model(x).square().mean().backward()
    >>> model[0].weight.mapping.spec, model[0].weight.grad.mapping.spec, log.counts()["reduce_scatter"]
    (P('dp', None), P('dp', None), 2)
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"fully_shard takes a torch.nn.Module, but got {type(module).__name__}")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"fully_shard needs a DeviceMesh, but got {mesh!r}: use weft.make_mesh({{'dp': 8}})")
    for each in (axis, *([] if replicate is None else [replicate])):
        check_axis(mesh, each, "fully_shard")
    _check_options(prefetch, keep_bytes, param_dtype, offload, fewest_bytes=fewest_bytes)
    if siblings_of(module) is not None:
        raise ValueError("this module is fully sharded already: call fully_shard once, with all patterns in blocks=")
    found = _blocks(module, (blocks,) if isinstance(blocks, str) else tuple(blocks))
    rest = rest_of(mesh, offload)
    _split(module, mesh, axis, rest)
    also = () if replicate is None else (replicate,)
    siblings = Siblings(prefetch)
    for child, places in _shared_out(module, found).items():
        settings = Settings(mesh, axis, also, param_dtype, reduce_dtype, fewest_bytes and child is not module)
        parameters = [_held(listed[0]) for listed in places]
        if rest != mesh:
            for x in parameters:
                pin(x, mesh)
        siblings.add_block(Block(child, parameters, places, settings, siblings), is_root=child is module)
    siblings.let_stay(keep_bytes if reshard_after_forward else math.inf)
    module.register_forward_hook(Dropping(siblings), always_call=True)
    return module


def _check_options(
    prefetch: int,
    keep_bytes: int,
    param_dtype: torch.dtype | None,
    offload: Literal["cpu"] | DeviceMesh | None,
    *,
    fewest_bytes: bool,
) -> None:
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"prefetch is how many blocks are gathered ahead, 0 or more, but got {prefetch!r}")
    if isinstance(keep_bytes, bool) or not isinstance(keep_bytes, int) or keep_bytes < 0:
        raise ValueError(f"keep_bytes is what may stay whole on a device, 0 bytes or more, but got {keep_bytes!r}")
    if fewest_bytes and param_dtype is not None:
        raise ValueError(
            "fewest_bytes=True computes with parameters as they are: leave param_dtype out, or use torch.autocast"
        )
    if fewest_bytes and offload is not None:
        raise ValueError(
            "fewest_bytes=True computes with split parameters where they are, and offload= takes them away: leave one out"
        )


@contextmanager
def no_sync(module: torch.nn.Module) -> Iterator[None]:
    """Keeps gradients of a fully sharded module as each device computes them, until a backward pass outside of the block.

    For adding up the gradients of several batches: they are reduced once, with those of the last.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2})
    >>> model = weft.nn.fully_shard(torch.nn.Linear(4, 4), mesh, blocks=())
    >>> x = weft.shard(torch.ones(4, 4), mesh, weft.P("dp"))
    >>> with weft.nn.no_sync(model):
    ...     model(x).sum().backward()
    >>> model.weight.grad is None
    True
    """
    siblings = siblings_of(module)
    if siblings is None:
        raise ValueError(
            f"no_sync takes a module that fully_shard has split, but got a {type(module).__name__} that is not"
        )
    before, siblings.is_syncing = siblings.is_syncing, False
    try:
        yield
    finally:
        siblings.is_syncing = before


def _blocks(module: torch.nn.Module, patterns: Sequence[str]) -> dict[str, torch.nn.Module]:
    """The outermost submodules whose names match; a pattern may begin with a dot, as if all names did."""
    found: dict[str, torch.nn.Module] = {}
    used: set[str] = set()
    for name, child in module.named_modules():
        hits = [pattern for pattern in patterns if fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern)]
        used.update(hits)
        if name and hits and not any(name.startswith(f"{outer}.") for outer in found):
            found[name] = child
    for pattern in patterns:
        if pattern not in used:
            names = [name for name, _ in module.named_modules() if name]
            raise ValueError(
                f"the pattern {pattern!r} of blocks matches no submodule. {suggestion(pattern, names)}; "
                "blocks=() makes the whole module one block"
            )
    return found


def _split(module: torch.nn.Module, mesh: DeviceMesh, axis: str, rest: DeviceMesh) -> None:
    """Splits all parameters over the axis, on top of what splits them already, and puts them to rest."""
    mappings: dict[str, DeviceMapping] = {}
    for name, x in (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)):
        layout = x._layout if isinstance(x, Tensor) else Layout.replicated(mesh, x.dim())
        if layout.mesh != mesh:
            raise ValueError(f"{name!r} lies on the mesh {layout.mesh}, but fully_shard was given {mesh}: use one mesh")
        if isinstance(x, torch.nn.Parameter):
            if rest != mesh and not x.dim():
                raise ValueError(
                    f"offload= cannot take the scalar {name!r} away, which is whole everywhere: make its shape (1,)"
                )
            layout = laid_on(split_further(whole_along(layout, axis), tuple(x.shape), axis), rest)
        mappings[name] = named_mapping(layout)
    lay_out(module, mesh, mappings)


def _held(place: Place) -> Tensor:
    owner, name = place
    x = owner._parameters[name]
    assert x is not None
    return public(x)


def _shared_out(
    module: torch.nn.Module, blocks: dict[str, torch.nn.Module]
) -> dict[torch.nn.Module, list[list[Place]]]:
    """The parameters of each block, by the places where they stand; what is used in several blocks is the module's own."""
    owners: dict[int, torch.nn.Module] = {}
    places: dict[int, list[Place]] = {}
    for prefix, owner in module.named_modules():
        inside = [child for name, child in blocks.items() if prefix == name or prefix.startswith(f"{name}.")]
        for name, x in owner._parameters.items():
            if x is None or not x.dim():
                continue  # a scalar is whole everywhere
            block = inside[0] if inside else module
            owners[id(x)] = block if owners.get(id(x), block) is block else module
            places.setdefault(id(x), []).append((owner, name))
    found: dict[torch.nn.Module, list[list[Place]]] = {}
    for child in (*blocks.values(), module):
        listed = [places[key] for key, block in owners.items() if block is child]
        if listed:
            found[child] = listed
    return found
