"""Communication in programs that a compiler traces: ops that it knows, which communicate when the program runs.

While a program is traced there are no values, and nothing may be sent: what would communicate becomes one node of the
traced graph, `weft::communicate`, with a text that says what to do. Gradients need no form of their own here: they are
those of the tensors that the pieces make up, and communicate through nodes like these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from typing import cast

import torch
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from ..caches import cached
from ..frozen import Written
from .holding import Pieces
from .processes import current_call

__all__ = [
    "Communication",
    "Size",
    "Tracer",
    "communicated",
    "hinted",
    "in_order_of_trace",
    "is_open",
    "is_recorded",
    "is_traced",
    "library",
    "not_computed_anew",
    "read",
    "seen_by",
    "settled",
    "tracers",
]

_TRACERS = (
    torch._C._TorchDispatchModeKey.FAKE,
    torch._C._TorchDispatchModeKey.PROXY,
    torch._C._TorchDispatchModeKey.FUNCTIONAL,
)


Tracer = AbstractContextManager[object]


def tracers() -> tuple[Tracer, ...]:
    """The compiler's modes that look on, each of which sees ops while it is entered."""
    if not torch._C._len_torch_dispatch_stack():
        return ()
    return tuple(mode for key in _TRACERS if (mode := torch._C._get_dispatch_mode(key)) is not None)


@contextmanager
def seen_by(modes: tuple[Tracer, ...]) -> Iterator[None]:
    """Inside, these look on, whether or not the compiler has left them."""
    here = tracers()
    with ExitStack() as entered:
        for mode in reversed(modes):
            if mode not in here:
                entered.enter_context(mode)
        yield


def is_traced() -> bool:
    """Whether a compiler looks on, which is to see what each device does; whoever only counts or logs is none."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    return any(torch._C._get_dispatch_mode(key) is not None for key in _TRACERS)


def is_recorded() -> bool:
    """Whether a compiler looks on that records ops, or counts what they leave; dynamo only asks what they would give.

    >>> is_recorded()
    False
    """
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None


Size = tuple[int, ...]


def hinted(sizes: Iterable[int]) -> Size:
    """Sizes as they are at present, where a compiler leaves them open: for prices, which are no reason to settle them.

    >>> hinted((4, 6))
    (4, 6)
    """
    return tuple([size if type(size) is int else _hint(size) for size in sizes])


def _hint(size: object) -> int:
    hint: int | None = size.node.hint if isinstance(size, torch.SymInt) else None
    return int(cast(int, size)) if hint is None else hint


def is_open(sizes: Iterable[int]) -> bool:
    """Whether a compiler leaves some of these sizes open."""
    return any(type(size) is not int for size in sizes)


def settled(sizes: Iterable[int]) -> Size:
    """Sizes as they are at present, for what holds for these only: a program with others is compiled anew.

    >>> settled((4, 6))
    (4, 6)
    """
    return tuple(map(int, sizes))


class Communication(Written):
    """What processes do together, but for the pieces and the sizes of the tensor they make up."""

    __slots__ = ()

    dtype: torch.dtype
    """The dtype of what it gives."""

    @abstractmethod
    def made(self, sizes: Size) -> Sequence[tuple[Size, torch.device]]:
        """The shapes of the pieces that it gives, and where they lie."""

    @abstractmethod
    def run(self, pieces: Pieces, sizes: Size) -> Pieces:
        """The pieces that it gives."""


@cached(8192)
def read(text: str) -> object:
    """The value that a traced program was written with.

    >>> from weft.sharding.layout import Layout
    >>> from weft.sharding.mesh import make_mesh
    >>> layout = Layout(make_mesh({"x": 2}), (("x",),))
    >>> read(repr(layout)) is layout
    True
    """
    return eval(text, {**Written.words, "torch": torch, "inf": float("inf"), "nan": float("nan")})


def _read(text: str) -> Communication:
    value = read(text)
    assert isinstance(value, Communication)
    return value


def communicated(what: Communication, pieces: Pieces, sizes: Sequence[int]) -> Pieces:
    """The pieces that a communication gives, as nodes of the program that is traced."""
    with not_computed_anew():
        return tuple(torch.ops.weft.communicate(list(pieces), repr(what), list(sizes), str(current_call.site())))


class _RunsOnce(dict[str, object]):
    """What is known of a node that is not computed anew, whatever is said of the part of a program that it stands in."""

    def __setitem__(self, key: str, value: object) -> None:
        if key != "recompute" or value is CheckpointPolicy.MUST_SAVE:
            super().__setitem__(key, value)


@contextmanager
def not_computed_anew() -> Iterator[None]:
    """Inside, what a compiler records runs once, in parts that are checkpointed too: the way back takes what it gave.

    Calls that are kept in order cannot be computed anew: each needs the one before, back to the first of the program. Torch says which nodes
    are to be when an op of such a part has been recorded, whatever that was made of.
    """
    recorder = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
    if not isinstance(recorder, ProxyTorchDispatchMode):
        yield
        return
    graph = recorder.tracer.graph
    known = len(graph.nodes)
    yield
    for node in islice(reversed(graph.nodes), len(graph.nodes) - known):
        kept = _RunsOnce(node.meta)
        kept.pop("recompute", None)
        node.meta = kept


def _run(pieces: list[torch.Tensor], what: str, sizes: list[int], site: str) -> list[torch.Tensor]:
    with current_call.at(site):
        found = _read(what).run(tuple(pieces), tuple(sizes))
    given = {id(piece) for piece in pieces}
    # A compiler takes it that what an op gives lies row by row, in memory of its own.
    return [x.clone() if id(x) in given else x.contiguous() for x in found]


def _fake(pieces: list[torch.Tensor], what: str, sizes: list[int], site: str) -> list[torch.Tensor]:  # noqa: ARG001 - as the op
    value = _read(what)
    return [torch.empty(shape, dtype=value.dtype, device=device) for shape, device in value.made(tuple(sizes))]


def in_order_of_trace(name: str) -> None:
    """Keeps calls of an op in the order in which they were traced, those included whose results nobody uses.

    All processes have to communicate in one order, and what a compiler makes of a program depends on the sizes of shards.
    """
    _register_effectful_op(getattr(torch.ops.weft, name).default, _EffectType.ORDERED)


library = torch.library.Library("weft", "FRAGMENT")
library.define("communicate(Tensor[] pieces, str what, SymInt[] sizes, str site) -> Tensor[]")
library.impl("communicate", _run, "CompositeExplicitAutograd")
torch.library.register_fake("weft::communicate", _fake, lib=library)
in_order_of_trace("communicate")
