"""`Block`: a part of a module whose parameters are gathered together, before it runs forward and before it runs back."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol, cast, final

import optree
import torch
from torch.autograd.graph import register_multi_grad_hook

from ...engine.held_gradient import keep_gradient
from ...engine.programs.compiling import announce
from ...engine.sharded import HELD_BACK, ShardedTensor, as_sharded
from ...planning.costs.bounds import largest
from ...sharding.layout import Layout
from ...sharding.mesh import DeviceMesh
from ...tensor.tensor import Tensor
from ..gathering import Gathering
from .offloading import laid_on, returned
from .reducing import Reducing, Scattered
from .siblings import Siblings
from .standing import Place, Standing, refuse_transforms
from .trial import bytes_when_split, form_of_arguments
from .unsharded import Unsharded

__all__ = ["Block", "Call", "Settings"]


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """How blocks are sharded."""

    mesh: DeviceMesh
    """The devices that compute; parameters may rest on others."""
    axis: str
    also: tuple[str, ...]
    """Axes along which parameters are whole and gradients are reduced, too."""
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    fewest_bytes: bool
    """Whether parameters stay split for runs that move less that way."""


@final
class Call:
    """One run of a block: its parameters, whole, and what autograd knows of them."""

    def __init__(self, block: Block, unsharded: Unsharded, tensors: Sequence[torch.Tensor]) -> None:
        self.block, self.unsharded, self.tensors = block, unsharded, tensors
        self.ends_with_pass = False
        """Whether no gradient says that those of the block are done: none is for its parameters, nor for what it was given."""

    def before_backward(self, _: torch.Tensor) -> None:
        """What is to be there before gradients go back through the block."""
        self.unsharded.fill()
        self.block.stand_in(self)
        if self.ends_with_pass:
            self.block.siblings.current_pass().passed[self] = None
        self.block.siblings.behind(self.block)

    def end(self) -> None:
        """The pass that gradients went back in has ended."""
        self.block.end(self.unsharded)


class _GatheringContext(Protocol):
    """What autograd keeps of a gathering for the way back: not the whole tensors, which keep it."""

    block: Block
    unsharded: Unsharded
    parameters: Sequence[Tensor]

    def set_materialize_grads(self, value: bool) -> None: ...
    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None: ...


class _Gather(torch.autograd.Function):
    """The parameters of a block, whole; their gradients, reduced and scattered."""

    @staticmethod
    def forward(
        ctx: _GatheringContext, block: Block, unsharded: Unsharded, anchor: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.block, ctx.unsharded, ctx.parameters = block, unsharded, block.parameters
        ctx.set_materialize_grads(False)
        whole = tuple(unsharded.tensors())
        ctx.mark_non_differentiable(*block.frozen(whole))
        return whole

    @staticmethod
    def backward(ctx: _GatheringContext, *grads: torch.Tensor | None) -> tuple[None, None, None]:
        ctx.block.done(ctx.unsharded)
        ctx.block.check_same(ctx.parameters)
        ctx.block.reduce({number: grad for number, grad in enumerate(grads) if grad is not None})
        return None, None, None


@final
class Block:
    """Parameters that are gathered together, and the module that needs them."""

    def __init__(
        self,
        module: torch.nn.Module,
        parameters: Sequence[Tensor],
        places: Sequence[Sequence[Place]],
        settings: Settings,
        siblings: Siblings,
    ) -> None:
        self.siblings = siblings
        self.parameters, self._places, self._settings = list(parameters), Standing(places), settings
        self._plans: dict[tuple[tuple[torch.dtype, bool], ...], tuple[Gathering, Reducing | None]] = {}
        """By the dtype of each parameter, and by whether it is trained."""
        self._ahead: Unsharded | None = None
        self._held: Unsharded | None = None
        """What is whole for all runs, while its siblings hold what they have."""
        self._module = module
        self._split_forms: dict[Hashable, bool] = {}
        self._was_split = False
        self._calls: list[Call | None] = []
        self._last: Call | None = None
        self._anchor = torch.empty(0, requires_grad=True)
        """What autograd takes the whole parameters to come from: gradients of the split ones arrive later, not from it."""
        module.register_forward_pre_hook(self._before, with_kwargs=True)
        module.register_forward_hook(self._after, with_kwargs=True, always_call=True)
        module.register_state_dict_pre_hook(self._settle)

    @property
    def _kept(self) -> dict[int, ShardedTensor]:
        """The gradients that are kept for later, unless somebody has dropped them with those of the parameters."""
        found = ((number, x.__dict__.get(HELD_BACK)) for number, x in enumerate(self.parameters))
        return {number: grad for number, grad in found if grad is not None}

    def _keep(self, grads: Mapping[int, ShardedTensor]) -> None:
        """Keeps these for later, and no others."""
        for number, x in enumerate(self.parameters):
            if number in grads:
                x.__dict__[HELD_BACK] = grads[number]
            else:
                x.__dict__.pop(HELD_BACK, None)

    def _dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtype that each parameter has while it is whole."""
        wanted = self._settings.param_dtype
        return tuple(wanted if wanted is not None and x.dtype.is_floating_point else x.dtype for x in self.parameters)

    def _plan(self, also: Collection[int] = ()) -> tuple[Gathering, Reducing | None]:
        """How parameters are gathered and gradients reduced: of those that are trained now, and of some more."""
        facts = tuple([(x.dtype, x.requires_grad or number in also) for number, x in enumerate(self.parameters)])
        plan = self._plans.get(facts)
        if plan is None:
            plan = self._plans[facts] = self._planned(facts)
        return plan

    def _planned(self, facts: Sequence[tuple[torch.dtype, bool]]) -> tuple[Gathering, Reducing | None]:
        settings = self._settings
        layouts = [laid_on(x._layout, settings.mesh) for x in self.parameters]
        shapes = [tuple(x.shape) for x in self.parameters]
        pairs = [(dtype, new) for (dtype, _), new in zip(facts, self._dtypes(), strict=True)]
        gathering = Gathering(layouts, shapes, pairs, settings.axis, "fully_shard")
        trained = [number for number, (_, is_trained) in enumerate(facts) if is_trained]
        if not trained:
            return gathering, None
        dtype = settings.reduce_dtype or reduce(torch.promote_types, [self._dtypes()[number] for number in trained])
        scattered: dict[int, Layout] = {number: layouts[number] for number in trained}
        sizes = {number: shapes[number] for number in trained}
        return gathering, Reducing(scattered, sizes, settings.axis, settings.also, dtype)

    @property
    def whole_bytes(self) -> int:
        """What the parameters take on a device while they are whole."""
        targets, shapes = self._plan()[0].targets, [tuple(x.shape) for x in self.parameters]
        sizes = [math.prod(largest(target, shape)) for target, shape in zip(targets, shapes, strict=True)]
        return sum(size * dtype.itemsize for size, dtype in zip(sizes, self._dtypes(), strict=True))

    def _unsharded(self) -> Unsharded:
        return Unsharded(self._plan()[0], self.parameters, self._dtypes())

    def frozen(self, whole: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Which of the whole parameters have no gradients."""
        return (x for x, own in zip(whole, self.parameters, strict=True) if not own.requires_grad)

    def fetches_to(self) -> Iterator[DeviceMesh]:
        """The mesh to which parameters come that rest on another."""
        if self.parameters[0].mesh != self._settings.mesh:
            yield self._settings.mesh

    def prefetch(self) -> None:
        """Begins to gather, for a run that comes next."""
        if self._ahead is None and self._held is None and not self._was_split:
            self._adopt()
            self._ahead = self._unsharded()
            self._ahead.begin()

    def refetch(self) -> None:
        """Begins to gather again, for the way back through the last run."""
        if self._last is not None:
            self._last.unsharded.begin()

    def drop(self) -> None:
        """Lets go of what was gathered ahead and not used."""
        if self._ahead is not None:
            self._ahead.free()
            self._ahead = None

    def let_go(self) -> None:
        """Gives back what was whole for several runs."""
        if self._held is not None:
            held, self._held = self._held, None
            held.free()
            self._forget(held)

    def _forget(self, unsharded: Unsharded) -> None:
        """What was given back is not computed with again."""
        if self._last is not None and self._last.unsharded is unsharded:
            self._last = None

    def _whole(self) -> Unsharded:
        """What a run gets: what is held, what was gathered ahead, or memory that is to be filled."""
        if self._held is not None:
            return self._held
        found, self._ahead = self._ahead or self._unsharded(), None
        if self.siblings.is_holding:
            self._held = found
        return found

    def _give_back(self, unsharded: Unsharded) -> None:
        if unsharded is not self._held:
            unsharded.free()

    def _before(
        self, _: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        announce()  # what follows is called by compiled code, and not compiled
        return self._begun(args, kwargs)

    def _begun(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Before a run: the whole parameters stand in the places of the split ones."""
        self._settle()
        refuse_transforms()
        again = self._run_again()
        if not _is_backward():
            self._adopt()
        if again is None and self._stays_split(args, kwargs):
            self._calls.append(None)
            return args, kwargs
        call = again or self._run(args, kwargs)
        call.unsharded.fill()
        self._calls.append(call)
        self._places.put(call.tensors)  # while the block runs
        if not _is_backward():
            self.siblings.ahead(self)
        dtype = self._settings.param_dtype
        return tuple(_cast(x, dtype) for x in args), {name: _cast(x, dtype) for name, x in kwargs.items()}

    def _settle(self, *_: object) -> None:
        """What a backward pass that has failed left in the places of parameters goes."""
        if not _is_backward():
            self.siblings.end_passes()

    def _stays_split(self, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
        """Whether a run with such arguments moves less if the parameters are not gathered for it."""
        if not self._settings.fewest_bytes:
            return False
        form = form_of_arguments(args, kwargs)
        if form not in self._split_forms:
            gathering, reducing = self._plan()
            often = 1 if self.siblings.stays_whole(self) else 2
            gathered = gathering.plan.bytes_received.max * often
            gathered += 0 if reducing is None else reducing.bytes_received
            self._split_forms[form] = bytes_when_split(self._module, args, kwargs) < gathered
        self._was_split = self._split_forms[form]
        return self._was_split

    def _run_again(self) -> Call | None:
        """The run that is computed anew on the way back, as `torch.utils.checkpoint` does."""
        return self._last if _is_backward() else None

    def _run(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
        unsharded = self._whole()
        if torch.is_grad_enabled() and self._is_trained():
            whole = _Gather.apply(self, unsharded, self._anchor)  # type: ignore[no-untyped-call]
            self._last = Call(self, unsharded, whole)
            return self._last
        call = Call(self, unsharded, unsharded.tensors())
        given = list(_differentiated((args, kwargs))) if torch.is_grad_enabled() else []
        if given:  # gradients go through, and none is for the parameters
            register_multi_grad_hook(given, lambda _: self.done(unsharded))
            self._last = call
        return call

    def _is_trained(self) -> bool:
        return any(x.requires_grad for x in self.parameters)

    def _adopt(self) -> None:
        """Computes from now on with what stands in the places of its parameters, where that was replaced."""
        found = self._places.changed(self.parameters)
        if found is None:
            return
        if self._kept:
            raise RuntimeError(
                "parameters were replaced while gradients of the old ones are kept: end with a backward pass outside of no_sync"
            )
        self.drop()
        self.let_go()
        self.parameters = found

    def check_same(self, parameters: Sequence[Tensor]) -> None:
        """On the way back: the parameters are those that the block ran with, so that gradients go to these."""
        if parameters is not self.parameters:
            raise RuntimeError(
                "the parameters of a fully sharded block were replaced, and it ran with others, before its gradients had gone back: "
                "call backward() before it runs with others"
            )

    def stand_in(self, call: Call) -> None:
        """On the way back, what is computed anew inside of the block finds its whole parameters."""
        self._places.put(call.tensors)
        self.siblings.current_pass().standing.add(self)

    def restore(self) -> None:
        """The split parameters stand in their places again."""
        self._places.restore()

    def _after(self, *given: object) -> None:
        announce()
        self._ended(given[-1])

    def _ended(self, output: object) -> None:
        """After a run, also one that failed: the split parameters stand in their places again."""
        if not self._calls:
            return  # it failed before it began
        call = self._calls.pop()
        if call is None:
            return  # its parameters were left as they are
        if not _is_backward() or self not in self.siblings.current_pass().standing:
            self.restore()
        if _is_backward():
            return  # what was computed anew is used right after
        leaves = list(_differentiated(output)) if torch.is_grad_enabled() else []
        if leaves and call is not self._last and not self._is_trained():
            # Gradients begin inside, in other blocks, and may go through frozen parameters of this one.
            self._last, call.ends_with_pass = call, True
        is_recorded = torch.is_grad_enabled() and call is self._last
        if not is_recorded or not self.siblings.stays_whole(self):
            self._give_back(call.unsharded)
        for leaf in leaves if is_recorded else ():
            leaf.register_hook(call.before_backward)

    def done(self, unsharded: Unsharded) -> None:
        """Gradients have gone back through a run: its parameters are given back."""
        self.end(unsharded)
        self.siblings.current_pass().standing.discard(self)
        self.restore()

    def end(self, unsharded: Unsharded) -> None:
        """Nobody needs the parameters of a run any more."""
        self._give_back(unsharded)
        if unsharded is not self._held:
            self._forget(unsharded)

    def reduce(self, grads: Mapping[int, torch.Tensor]) -> None:
        """Reduces the gradients of whole parameters and scatters them, unless they are to be kept for later."""
        before = self._kept
        reducing = self._plan(before)[1]
        if reducing is None:
            return  # all were frozen since the block ran, which torch goes by, too
        trained = {number: grad for number, grad in grads.items() if self.parameters[number].requires_grad}
        found = {number: reducing.pending(number, grad) for number, grad in trained.items()}
        for number, kept in before.items():
            found[number] = found[number] + kept if number in found else kept  # type: ignore[assignment]
        self._keep({} if self.siblings.is_syncing else found)
        if self.siblings.is_syncing:
            self.siblings.current_pass().scattered.append((self, reducing.scatter(found)))

    def reduce_kept(self) -> Scattered | None:
        """Begins to reduce the gradients that were kept for later, if there are some."""
        kept = self._kept
        reducing = self._plan(kept)[1]
        self._keep({})
        return reducing.scatter(kept) if reducing is not None and kept else None

    def forget_kept(self) -> None:
        """Forgets the gradients that were kept for later."""
        self._keep({})

    def take(self, grads: Mapping[int, torch.Tensor]) -> None:
        """Adds gradients to those of the parameters, whose hooks see them as autograd would show them."""
        listed = [self._in_dtype(number, grad) for number, grad in grads.items()]
        for number, grad in zip(grads, returned(listed, self.parameters[0].mesh), strict=True):
            x = self.parameters[number]
            before: Mapping[int, Callable[[torch.Tensor], torch.Tensor | None]] = x._backward_hooks or {}
            for change in before.values():
                changed = change(grad)
                grad = grad if changed is None else as_sharded(changed)
            if x.grad is None or torch.is_grad_enabled():
                keep_gradient(x, grad if x.grad is None else x.grad + grad)
            else:
                x.grad.add_(grad)  # in place, as autograd adds: who holds it sees the sum, and there is one of them
            hooks: Mapping[int, Callable[[torch.Tensor], None]] = getattr(x, "_post_accumulate_grad_hooks", None) or {}
            for hook in hooks.values():
                hook(x)

    def _in_dtype(self, number: int, grad: torch.Tensor) -> ShardedTensor:
        dtype = self.parameters[number].dtype
        return as_sharded(grad if grad.dtype is dtype else grad.to(dtype))


def _is_backward() -> bool:
    """Whether gradients are being computed."""
    return torch._C._current_graph_task_id() != -1


def _differentiated(tree: object) -> Iterator[torch.Tensor]:
    """The tensors of some values that gradients go to."""
    for leaf in optree.tree_leaves(cast("optree.PyTree[object]", tree)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            yield leaf


def _cast(x: object, dtype: torch.dtype | None) -> object:
    """An argument, in a dtype if it is a floating-point tensor, or has some in it."""
    if isinstance(x, torch.Tensor):
        return x.to(dtype) if dtype is not None and x.is_floating_point() else x
    if type(x) in (list, tuple, dict):
        return optree.tree_map(lambda leaf: _cast(leaf, dtype), cast("optree.PyTree[object]", x), none_is_leaf=True)
    return x
