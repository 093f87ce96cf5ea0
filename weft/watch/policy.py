"""`reshard_policy`: what happens when an operation has to move data that nobody asked to move."""

from __future__ import annotations

import threading
import warnings
from types import TracebackType
from typing import ClassVar, final

from ..errors import ReshardError
from ..planning import Plan
from ..runtime.spans import Spans
from ..sharding.layout import Layout
from ..sharding.mapping import named_mapping
from .call_site import call_site
from .setting import Setting

__all__ = ["DriftWarning", "ReshardWarning", "Warned", "policy_now", "report_drift", "reshard_policy"]

POLICIES = ("silent", "warn", "raise")


class ReshardWarning(UserWarning):
    """An operation moved data that nobody asked to move.

    >>> issubclass(ReshardWarning, UserWarning)
    True
    """


class DriftWarning(ReshardWarning):
    """An operation left tensors laid out worse than they need be: a split is gone, or more moves than in another layout.

    >>> import torch, warnings, weft
    >>> x = weft.shard(torch.eye(512), weft.make_mesh({"dp": 4}), weft.P("dp"))
    >>> with weft.reshard_policy("warn"), warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     y = torch.linalg.cholesky(x)
    >>> [each.category.__name__ for each in told]
    ['ReshardWarning', 'DriftWarning']
    """


@final
class Warned:
    """How many have asked to be: while nobody has, nobody looks for what drifts."""

    count: ClassVar[int] = 0
    _changing: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def add(cls, number: int) -> None:
        """Counts those who ask, and those who have heard enough."""
        with cls._changing:
            cls.count += number
        Spans.heed(number)


_policy = Setting("reshard_policy", "silent")


class reshard_policy:  # noqa: N801 - called like a function, and usable with `with`
    """What to do about implicit movements: "silent", "warn" or "raise"; for good, or inside a `with` block.

    It holds for the thread or task that says it, and for the backward passes that it starts. "warn" also tells of calls
    after which tensors lie worse than they need to (`weft.DriftWarning`), with a layout that would not do that.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"tp": 4})
    >>> x = weft.shard(torch.ones(8, 8), mesh, P("tp", None))
    >>> with weft.reshard_policy("raise"):
    ...     x.softmax(0)
    Traceback (most recent call last):
    weft.errors.ReshardError: ...
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown reshard policy {policy!r}: use one of {', '.join(map(repr, POLICIES))}")
        self._warns = policy == "warn"
        if self._warns:
            Warned.add(1)
        self._before = _policy.set(policy)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _policy.restore(self._before)
        if self._warns:
            Warned.add(-1)


def policy_now() -> str:
    """The policy that holds here."""
    return _policy.get()


def watches() -> bool:
    """Whether implicit movements are reported."""
    return _policy.get() != "silent"


def report(plan: Plan, op: str, fix: str | None = None) -> None:
    """Applies the policy to one implicit movement."""
    if _policy.get() == "silent" or not plan.bytes_received.total:
        return
    text = (
        f"{op} at {call_site()} moves a tensor of shape {tuple(plan.shape)} from {plan.source} to {plan.target} on {plan.target.mesh}: "
        f"{plan.bytes_received.max:,} bytes received per device ({', '.join(step.kind for step in plan.steps)}).\n"
        f"  {fix or _on_purpose(plan)}"
    )
    _apply(text)


def _on_purpose(plan: Plan) -> str:
    source, target = named_mapping(plan.source), named_mapping(plan.target)
    return (
        f"To do it on purpose: x = weft.shard(x, mesh, {target.spec!r}) where it is {source.spec!r} now"
        f"{f' with pending {dict(source.unreduced)!r}' if source.unreduced else ''}; "
        "or lay its inputs out so that nothing has to move."
    )


def report_rearrangement(
    op: str, shape: tuple[int, ...], source: Layout, target: Layout, received: int, kind: str = "exchange"
) -> None:
    """Applies the policy to an op whose result is made of elements that lie on other devices."""
    if _policy.get() == "silent":
        return
    text = (
        f"{op} at {call_site()} takes elements of a tensor of shape {shape} in {source} to {target} on {target.mesh}: "
        f"{received:,} bytes received per device ({kind}).\n"
        "  To move nothing: split a dim that the op leaves as it is, or weft.shard the tensor first with this dim whole."
    )
    _apply(text)


def report_drift(op: str, what: str, fix: str, *, backward: bool = False) -> None:
    """Warns of an op after which tensors lie worse than they need to; `backward`: of one for the gradient of a line."""
    where = f"for the gradient of {call_site()}" if backward else f"at {call_site()}"
    warnings.warn(f"{op} {where} {what}.\n  {fix}", DriftWarning, stacklevel=2)


def _apply(text: str) -> None:
    if _policy.get() == "raise":
        raise ReshardError(text)
    warnings.warn(text, ReshardWarning, stacklevel=2)
