"""Creation: torch's own creation functions, with `mapping=`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..engine.memory import memory_of
from ..engine.moves.entering import entering
from ..engine.moves.movement import is_transformed
from ..engine.moves.shards import assembled
from ..engine.sharded import wrap
from ..runtime.processes.agreement.own_faults import of_one_process
from ..runtime.processes.agreement.same_replicas import check_given
from ..sharding.mapping import DeviceMapping, NamedMapping
from ..sharding.mesh import DeviceMesh, current_mesh
from .conversion import TensorLike, as_tensor
from .local_shape import whole_of
from .movements import redistribute
from .tensor import Tensor, public

__all__ = [
    "arange",
    "empty",
    "empty_like",
    "eye",
    "from_local",
    "full",
    "full_like",
    "of_shards",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "tensor",
    "zeros",
    "zeros_like",
]


def _mapping(mapping: DeviceMapping | None) -> DeviceMapping:
    if mapping is None:
        return NamedMapping(current_mesh() or DeviceMesh.single(), ())
    if not isinstance(mapping, DeviceMapping):
        raise TypeError(
            f"mapping= takes a mapping, but got {mapping!r}: use NamedMapping(mesh, P(...)) or PlacementMapping(mesh, placements)"
        )
    return mapping


def _laid_out(value: torch.Tensor, mapping: DeviceMapping | None, requires_grad: bool, op: str) -> Tensor:
    """A freshly made plain tensor, in a layout."""
    result = redistribute(value, _mapping(mapping), op=op)
    assert isinstance(result, Tensor)
    return result.requires_grad_() if requires_grad else result


def _made(function: Callable[..., torch.Tensor], example: str) -> Callable[..., Tensor]:
    """A torch creation function with `mapping=`."""

    def create(
        *args: object, mapping: DeviceMapping | None = None, requires_grad: bool = False, **kwargs: object
    ) -> Tensor:
        where = _mapping(mapping)
        if "device" in kwargs:
            raise TypeError(
                f"weft.{function.__name__} takes its devices from mapping=, but got device={kwargs['device']!r}"
            )
        value = function(*args, **kwargs)
        return _laid_out(value, where, requires_grad, function.__name__)

    create.__name__ = create.__qualname__ = function.__name__
    create.__doc__ = f"""`torch.{function.__name__}`, laid out as `mapping` says.

    >>> import weft
    >>> mapping = weft.NamedMapping(weft.make_mesh({{"dp": 2}}), weft.P("dp"))
    >>> weft.{example}.mapping == mapping
    True
    """
    return create


zeros = _made(torch.zeros, "zeros(4, mapping=mapping)")
ones = _made(torch.ones, "ones(4, mapping=mapping)")
full = _made(torch.full, "full((4,), 2.5, mapping=mapping)")
empty = _made(torch.empty, "empty(4, mapping=mapping)")
arange = _made(torch.arange, "arange(4, mapping=mapping)")
eye = _made(torch.eye, "eye(4, mapping=mapping)")
rand = _made(torch.rand, "rand(4, mapping=mapping)")
randn = _made(torch.randn, "randn(4, mapping=mapping)")
randint = _made(torch.randint, "randint(0, 9, (4,), mapping=mapping)")


def _made_like(function: Callable[..., torch.Tensor], call: str) -> Callable[..., Tensor]:
    """A torch `*_like` function whose result lies like its input, or as `mapping=` says."""

    def create(
        x: TensorLike,
        *args: object,
        mapping: DeviceMapping | None = None,
        requires_grad: bool = False,
        **kwargs: object,
    ) -> Tensor:
        like = as_tensor(x, function.__name__).detach()
        result = function(like, *args, **kwargs)
        if mapping is not None or not isinstance(result, Tensor):
            result = redistribute(result, _mapping(mapping), op=function.__name__)
        assert isinstance(result, Tensor)
        return result.requires_grad_() if requires_grad else result

    create.__name__ = create.__qualname__ = function.__name__
    create.__doc__ = f"""`torch.{function.__name__}`, laid out like its input or as `mapping` says.

    >>> import weft
    >>> x = weft.ones(4, mapping=weft.NamedMapping(weft.make_mesh({{"dp": 2}}), weft.P("dp")))
    >>> weft.{call}.mapping == x.mapping
    True
    """
    return create


zeros_like = _made_like(torch.zeros_like, "zeros_like(x)")
ones_like = _made_like(torch.ones_like, "ones_like(x)")
full_like = _made_like(torch.full_like, "full_like(x, 2.5)")
empty_like = _made_like(torch.empty_like, "empty_like(x)")
rand_like = _made_like(torch.rand_like, "rand_like(x)")
randn_like = _made_like(torch.randn_like, "randn_like(x)")


def tensor(
    data: TensorLike,
    *,
    dtype: torch.dtype | None = None,
    mapping: DeviceMapping | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """A tensor with this value, laid out as `mapping` says.

    >>> import weft
    >>> weft.tensor([1.0, 2.0], mapping=weft.NamedMapping(weft.make_mesh({"dp": 2}), weft.P("dp"))).sum().item()
    3.0
    """
    value = as_tensor(data, "tensor")
    value = value.detach() if is_transformed() else value
    with torch.no_grad():
        return _laid_out(value if dtype is None else value.to(dtype), mapping, requires_grad, "tensor")


def from_local(
    shards: Sequence[TensorLike],
    mapping: DeviceMapping,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The tensor whose shards, one per device of this process in mesh order, are these; differentiable.

    `shape` and `dtype` are those of the whole tensor. Without them, the shards tell; where those of this process do
    not, all processes tell each other. Shards that are said to be replicas are compared, in the first calls from a line.

    >>> import torch, weft
    >>> mapping = weft.NamedMapping(weft.make_mesh({"dp": 2}), weft.P("dp"))
    >>> weft.from_local([torch.zeros(2), torch.ones(1)], mapping).full_tensor()
    tensor([0., 0., 1.])
    """
    _refuse_one(shards)
    with of_one_process():
        return of_shards(shards, mapping, shape=shape, dtype=dtype, is_checked=True)


def _refuse_one(given: object) -> None:
    """Refuses one tensor where a list of shards belongs: its rows would be taken for them."""
    if isinstance(given, torch.Tensor):
        raise TypeError(
            "from_local takes a list of shards, one for each device of this process, but got one tensor of shape "
            f"{tuple(given.shape)}: use weft.from_local([shard], mapping), or weft.from_process_local(part, mapping) for "
            "what all devices of this process hold together"
        )


def of_shards(
    shards: Sequence[TensorLike],
    mapping: DeviceMapping,
    *,
    shape: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    is_checked: bool = False,
    asks: bool = True,
) -> Tensor:
    """What `from_local` gives; `is_checked`: replicas are compared, which nobody else has seen to; `asks`: processes without shards call it, too.

    >>> from weft import NamedMapping, P, make_mesh
    >>> of_shards([torch.zeros(2), torch.ones(2)], NamedMapping(make_mesh({"dp": 2}), P("dp"))).shape
    torch.Size([4])
    """
    tensors = [as_tensor(shard, "from_local") for shard in shards]
    mapping = _mapping(mapping)
    if len({shard.is_meta for shard in tensors}) > 1:
        kinds = ", ".join(str(shard.device) for shard in tensors)
        raise ValueError(
            f"from_local needs shards that all have values or are all on the meta device, but got shards on {kinds}"
        )
    whole = whole_of(tensors, mapping, shape, dtype, asks=asks)
    if is_checked:
        check_given(tensors, whole.layout, whole.shape)
    if memory_of(whole.layout).pieces_are_shards:  # and become what the tensor holds
        tensors = list(map(entering, tensors))
    if not tensors:
        return public(wrap((), whole.layout, whole.shape, asked=mapping, dtype=whole.dtype))
    return public(assembled(tensors, whole.layout, whole.shape, mapping))
