"""`Tensor`: a whole tensor, laid out over a mesh of devices."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NoReturn, Self

import torch
from torch._C import _disabled_torch_function_impl
from torch.autograd.graph import Node

from ..devices import Device
from ..drawing.html import layout_html
from ..elsewhere import CalledElsewhere
from ..engine.dispatch import torch_dispatch
from ..engine.held_gradient import drop_gradient, gradient_of, replace_gradient
from ..engine.moves.asynchrony import issuing
from ..engine.moves.entering import entering
from ..engine.moves.movement import move
from ..engine.programs.compiling import state_of_code
from ..engine.sharded import ShardedTensor, use_count
from ..engine.sharded import grad_fn as grad_fn_of
from ..engine.sharded import is_leaf as is_leaf_of
from ..engine.sharded import requires_grad as requires_grad_of
from ..engine.value import Flat
from ..engine.views.copy_views import catch_up, current, is_shown, remember_counted_alone
from ..engine.views.folded import make_results
from ..engine.writes.becoming import share
from ..engine.writes.turned import is_stale, refuse_stale_graph
from ..runtime.holding import holding
from ..runtime.machine import device_of, torch_device
from ..runtime.memory.lazy_copy import lazy_clone
from ..runtime.memory.memory_limit import limited_to
from ..runtime.processes import world
from ..runtime.traced import is_recorded
from ..sharding.layout import Layout
from ..sharding.mapping import DeviceMapping, NamedMapping, PlacementMapping, named_mapping
from ..sharding.mesh import DeviceMesh
from ..sharding.placements import Placement
from . import raw_memory
from .addresses import address, storage
from .copying import deep_copy, shallow_copy
from .destination import destination
from .flattening import flattened, unflattened
from .leaf_gradient import bring_to_leaf, bring_traced, register_hook
from .named_pieces import NamedPieces
from .pickling import is_faked, reduced
from .text import text

__all__ = ["Tensor", "public"]


class Tensor(NamedPieces, ShardedTensor):
    """A whole tensor, laid out over a mesh of devices; its shape, values and operations are those of the whole.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 2})
    >>> x = weft.shard(torch.arange(8.0).reshape(4, 2), mesh, P("dp", None))
    >>> x.shape, x.sum().item(), [tuple(s.shape) for s in x.local_shards]
    (torch.Size([4, 2]), 28.0, [(2, 2), (2, 2), (2, 2), (2, 2)])
    """

    __torch_function__ = _disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        raise TypeError(
            "weft.Tensor is not made directly: use weft.tensor(data, mapping=...), weft.shard(x, mesh, spec) or weft.from_local(shards, mapping)"
        )

    __torch_dispatch__ = classmethod(torch_dispatch)  # type: ignore[assignment]

    addressable_shards = CalledElsewhere("x.local_shards")
    device_mesh = CalledElsewhere("x.mesh")
    sharding = CalledElsewhere("x.mapping")
    to_local = CalledElsewhere(
        "x.local_shards, a list with one for each device of this process, without gradients; what is differentiated goes in weft.local_map"
    )

    @property
    def mapping(self) -> DeviceMapping:
        """How the tensor lies on its mesh, in the words it was asked for, else in names.

        >>> import torch, weft
        >>> weft.shard(torch.ones(4, 2), weft.make_mesh({"dp": 2}), weft.P("dp")).mapping.spec
        P('dp')
        """
        return self._asked if self._asked is not None else named_mapping(self._layout)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """One placement per mesh axis, or `ConversionError` when the axis order is not the mesh's.

        >>> import torch, weft
        >>> weft.shard(torch.ones(4, 2), weft.make_mesh({"dp": 2, "tp": 2}), weft.P(None, "tp")).placements
        (Replicated(), Sharded(1))
        """
        return named_mapping(self._layout).to_placements()

    @property
    def local_shards(self) -> list[torch.Tensor]:
        """What the devices of this process hold, in mesh order; writing to them does not change the tensor.

        >>> import torch, weft
        >>> weft.shard(torch.arange(3), weft.make_mesh({"dp": 2}), weft.P("dp")).local_shards
        [tensor([0, 1]), tensor([2])]
        """
        return holding(self._layout).shards(tuple(map(lazy_clone, current(self))), self.shape)

    def wait(self) -> Self:
        """Waits for what an op with `async_op=True` has begun, and gives this tensor; any use of its elements does that too.

        >>> import torch, weft
        >>> x = weft.shard(torch.arange(3), weft.make_mesh({"dp": 2}), weft.P("dp"))
        >>> y = weft.all_gather(x, async_op=True)
        >>> y.wait() is y
        True
        """
        _ = self._value.pieces
        return self

    def done(self) -> bool:
        """Whether all of this tensor is there, so that nothing has to wait for it.

        >>> import torch, weft
        >>> weft.shard(torch.arange(3), weft.make_mesh({"dp": 2}), weft.P("dp")).done()
        True
        """
        source = self._value.source
        return source is None or source.done()

    @property
    def is_distributed(self) -> bool:  # type: ignore[override]
        """Whether the tensor lies on more than one device."""
        return not self._layout.mesh.is_single

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As in torch; the gradient will arrive in this tensor's layout."""
        super().requires_grad_(requires_grad)
        self._watch()
        return self

    def _set_requires_grad(self, requires_grad: bool) -> None:
        torch.Tensor.requires_grad.__set__(self, requires_grad)  # type: ignore[attr-defined]
        self._watch()

    def _get_requires_grad(self) -> bool:
        required: bool = requires_grad_of(self)
        value = self._value
        # A compiler asks its inputs, and then its results, before it traces the way back.
        if required and value.is_traced_input:
            value.is_traced_input = False
            bring_traced(self)
            make_results(sys._getframe(1))
        elif required and value.tracers and not value.is_made and is_recorded():
            value.pieces  # noqa: B018 - asking for them makes them
            make_results(sys._getframe(1))
        return required

    requires_grad = property(_get_requires_grad, _set_requires_grad)

    def _set_data(self, value: torch.Tensor) -> None:
        if not isinstance(value, Tensor):  # a plain tensor counts as whole
            layout = self._layout.resolved
            if value.dim() != layout.rank:
                layout = Layout.replicated(layout.mesh, value.dim())
            share(self, public(move(entering(value).detach(), layout, op="data")))
        elif value is not self:
            share(self, value)

    def _get_data(self) -> torch.Tensor:
        catch_up(self)  # torch asks for it as outside of ops
        return remember_counted_alone(torch.Tensor.data.__get__(self), self)  # type: ignore[attr-defined]

    data = property(_get_data, _set_data)
    grad = property(gradient_of, replace_gradient, drop_gradient)
    register_hook = register_hook

    def _use_count(self) -> int:
        """As in torch, which swaps tensors that no others refer to: what shows another refers to it."""
        count = use_count(self)
        return count + 2 if is_shown(self) else count

    def _get_grad_fn(self) -> Node | None:
        refuse_stale_graph(self, "grad_fn")  # torch views the base of a view again to say it
        return grad_fn_of(self)

    def _get_is_leaf(self) -> bool:
        return not is_stale(self) and is_leaf_of(self)  # for which torch asks for `grad_fn`

    grad_fn = property(_get_grad_fn)
    is_leaf = property(_get_is_leaf)

    def retain_grad(self) -> None:
        """As in torch, which asks for `grad_fn` to do so."""
        refuse_stale_graph(self, "retain_grad")
        super().retain_grad()

    def _watch(self) -> None:
        """Brings the gradient of a leaf to the leaf's layout when it arrives."""
        self._value.flat = None
        if self.requires_grad and self.is_leaf:
            bring_to_leaf(self)

    def full_tensor(self) -> torch.Tensor:
        """The whole value as a plain torch tensor, in every process; differentiable.

        >>> import torch, weft
        >>> weft.shard(torch.arange(3), weft.make_mesh({"dp": 2}), weft.P("dp")).full_tensor()
        tensor([0, 1, 2])
        """
        return move(self, None, op="full_tensor")

    def redistribute(
        self,
        mapping: DeviceMapping | DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        memory_limit: int | None = None,
    ) -> Tensor:
        """The same value in the layout that a mapping, or placements on this tensor's mesh or another, say; differentiable.

        `async_op=True`: the result is on its way, and whoever uses it waits. `memory_limit`: the bytes that a device may
        hold at once, source and result included; what would hold more goes part by part.

        >>> import torch, weft
        >>> x = weft.shard(torch.ones(4, 2), weft.make_mesh({"dp": 2}), weft.P("dp"))
        >>> x.redistribute(placements=[weft.Sharded(1)]).local_shards[0].shape
        torch.Size([4, 1])
        """
        if placements is not None and (mapping is None or isinstance(mapping, DeviceMesh)):
            mapping = PlacementMapping(mapping or self.mesh, placements)
        elif mapping is None or placements is not None:
            raise TypeError("redistribute takes either a mapping, or placements=[...] and maybe a mesh before them")
        if not isinstance(mapping, DeviceMapping):
            raise TypeError(
                f"redistribute needs a mapping, but got {mapping!r}: use NamedMapping(mesh, P(...)), or placements=[...] with one "
                "placement for each mesh axis"
            )
        with issuing(async_op), limited_to(memory_limit):
            return public(move(self, mapping.layout(self.dim()), asked=mapping, op="redistribute"))

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """As in torch, and the layout stays; also takes a mapping, or a Weft device.

        >>> import torch, weft
        >>> x = weft.shard(torch.ones(4, 2), weft.make_mesh({"dp": 2}), weft.P("dp"))
        >>> x.to("cpu", None, False) is x, x.to("cpu", torch.float64).mapping.spec
        (True, P('dp', None))
        """
        if args and isinstance(args[0], torch.dtype):
            return super().to(*args, **kwargs)
        asked = destination(args, kwargs)
        where = asked.where
        if isinstance(where, torch.device) and where.type == self.device.type:
            where = None  # the mesh says which devices of that kind
        if where is None or (isinstance(where, torch.device) and where.type == "meta"):
            return super().to(*asked.before(where), **asked.kwargs)  # type: ignore[call-overload]
        if isinstance(where, DeviceMapping):
            there = self.redistribute(where)
        elif self.is_meta and not isinstance(where, Device):
            # The words that torch.nn.Module looks for, to say that to_empty is the way.
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        else:
            there = self._on(device_of(where) if isinstance(where, torch.device) else where)
        return there.to(*asked.before(None), **asked.kwargs)

    def cpu(self, memory_format: torch.memory_format = torch.preserve_format) -> Any:
        """The same value on `CPU(0)`, or this tensor if it already lies on host devices."""
        return self.to("cpu", memory_format=memory_format)

    def cuda(
        self,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Any:
        """The same value on an accelerator, or this tensor if it already lies on accelerators."""
        where = "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device
        return self.to(where, non_blocking=non_blocking, memory_format=memory_format)

    def _on(self, device: Device) -> Tensor:
        torch_device(device)
        single = NamedMapping(DeviceMesh.single(device), ())
        return public(move(self, single.layout(self.dim()), asked=single, op="to_device"))

    def __float__(self) -> float:
        return raw_memory.as_number(super().__float__)

    def __int__(self) -> int:
        return raw_memory.as_number(super().__int__)

    def __index__(self) -> int:
        return raw_memory.as_number(super().__index__)

    def __bool__(self) -> bool:
        return raw_memory.as_number(super().__bool__)

    def __complex__(self) -> complex:
        return raw_memory.as_number(super().__complex__)

    def data_ptr(self) -> int:
        """Where the value can be read, in one memory or a copy gathered on the host; refused where there is no such place."""
        return address(self)

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory that `data_ptr` points into; for reading."""
        return storage(self)

    def numpy(self, *, force: bool = False) -> Any:
        """The whole value as a NumPy array."""
        whole = self.full_tensor().cpu()
        return whole.numpy(force=True) if force else whole.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("an array of a weft.Tensor is a copy of the whole value: np.asarray(x) makes one")
        whole = self.full_tensor().cpu()
        return whole.__array__(dtype) if dtype is not None else whole.__array__()

    def tolist(self) -> Any:
        """The whole value as nested lists."""
        return public(self.detach()).full_tensor().tolist()

    def __dlpack__(self, *, copy: bool | None = None, **kwargs: Any) -> Any:
        """A copy, unless `copy=False` asks for the very memory of the tensor."""
        piece = self._only_piece()
        return (piece if copy is False else lazy_clone(piece)).__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._only_piece().__dlpack_device__()

    def _only_piece(self) -> torch.Tensor:
        if not self.mesh.is_single or len(self._value.pieces) != 1:
            raise BufferError(
                f"DLPack hands over one array, but this tensor lies on {self.mesh.num_devices} devices ({self.mesh}): "
                "use x.full_tensor() for the whole, or x.local_shards[i] for one shard"
            )
        return current(self)[0]

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return text(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: the tensor as printed, and which device holds which part where it lies on several."""
        text = f"<pre>{escape(repr(self))}</pre>"
        return text + layout_html("", self._layout, tuple(self.shape)) if self.is_distributed else text

    def __format__(self, spec: str) -> str:
        if self.dim() == 0 and not self.is_meta:
            return format(self.item(), spec)
        return object.__format__(self, spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return deep_copy(self, memo)

    def __copy__(self) -> Any:
        return shallow_copy(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if is_faked(self):  # torch before 2.13 looks for compiled code by what it pickles of inputs
            return str, (self._stable_hash_for_caching(),)
        return reduced(self)

    __tensor_flatten__ = flattened
    __tensor_unflatten__ = staticmethod(unflattened)

    def _stable_hash_for_caching(self) -> str:
        """For torch.compile: what code that is kept from one run to the next depends on."""
        names, flat = self.__tensor_flatten__()
        inner = {name: getattr(self, name) for name in names}
        pieces = [(name, tuple(p.shape), p.stride(), p.dtype, p.device) for name, p in inner.items()]
        here = world.current()  # what is compiled in one process has the places of that process's shards in it
        form = (flat, tuple(self.shape), self.stride(), self.dtype, self.requires_grad)
        facts = (state_of_code(), here.process, here.count, form, pieces)
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()

    def __coerce_tangent_metadata__(self) -> torch.Tensor:
        """For torch.compile: the layout in which the gradient of this output is expected. Gradients are not pending."""
        return self.__coerce_same_metadata_as_tangent__((self._layout.resolved, None, False, None, False, False))

    def __coerce_same_metadata_as_tangent__(
        self, expected: Flat | None, expected_type: type | None = None
    ) -> torch.Tensor:
        """For torch.compile: this gradient in the layout that a compiled backward pass was traced with, or plain."""
        if expected is None:
            return self.full_tensor()
        return public(move(self, expected[0], asked=expected[1], op="gradient"))

    def tensor_split(self, *args: Any, **kwargs: Any) -> Any:
        """As in torch; a sharded tensor may say where, which torch would read from memory."""
        here: Any = [raw_memory.read(value) for value in args]
        named: Any = {name: raw_memory.read(value) for name, value in kwargs.items()}
        return super().tensor_split(*here, **named)

    new = raw_memory.of_plain("new")  # type: ignore[assignment]
    new_tensor = raw_memory.of_plain("new_tensor")

    def share_memory_(self) -> NoReturn:
        """Refused: memory that processes share holds one whole tensor."""
        raw_memory.refuse_sharing(self)

    def apply_(self, function: Callable[..., raw_memory.Number]) -> Self:
        """As in torch: replaces each element by what a Python function gives for it, the same in every process."""
        raw_memory.written(self, "apply_", lambda whole: whole.apply_(function))
        return self

    def map_(self, y: torch.Tensor, function: Callable[..., raw_memory.Number]) -> Self:
        """As in torch: replaces each element by what a Python function gives for it and that of another tensor."""
        raw_memory.written(self, "map_", lambda whole, other: whole.map_(other, function), y)
        return self

    def map2_(self, x: torch.Tensor, y: torch.Tensor, function: Callable[..., raw_memory.Number]) -> Self:
        """As in torch: replaces each element by what a Python function gives for it and those of two other tensors."""
        raw_memory.written(self, "map2_", lambda whole, *others: whole.map2_(*others, function), x, y)
        return self


def public(x: torch.Tensor) -> Tensor:
    """A sharded tensor as the class that users know, which it always is."""
    assert isinstance(x, Tensor)
    return x
