"""What calls do besides giving a result."""

from __future__ import annotations

from torch import fx

from ..recording.op import Kind, RecordedCall

__all__ = ["is_pure", "root", "touched_buffer", "writes"]


def writes(node: fx.Node) -> bool:
    """Whether a call writes to a buffer."""
    call: RecordedCall | None = node.meta.get("call")
    return call is not None and call.op.kind is Kind.BUFFER and not call.types and node.meta["kind"] is Kind.BUFFER


def is_pure(node: fx.Node) -> bool:
    """Whether the same call again would give the same."""
    call: RecordedCall | None = node.meta.get("call")
    return call is None or call.op.pure


def root(node: fx.Node) -> fx.Node:
    """Whose memory a node looks at: itself, or what it is a view of."""
    while node.op == "call_function" and node.meta["kind"] is Kind.VIEW:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def touched_buffer(node: fx.Node) -> fx.Node | None:
    """The buffer that a call reads or writes in place."""
    call: RecordedCall | None = node.meta.get("call")
    if call is None or call.op.kind is not Kind.BUFFER or node.meta["kind"] is not Kind.BUFFER:
        return None
    target = node.args[0]
    assert isinstance(target, fx.Node)
    return root(target)
