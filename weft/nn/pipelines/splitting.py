"""`SplitBackward`: the backward pass of a graph in two parts, the gradients of what came in first, those of weights later.

A node is on the *trunk* if a way leads from it to one of the inputs. The first part runs the trunk and nothing else. It
notes what arrives at nodes from which an edge leaves the trunk: to a weight, or to something computed of weights alone.
The second part begins at these nodes, and runs nothing of the trunk again but the edges that leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, final

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

__all__ = ["SplitBackward"]

Gradients = tuple[torch.Tensor | None, ...]


@final
class SplitBackward:
    """The backward pass from outputs to inputs, and then to the weights.

    >>> x, w = torch.ones(2, requires_grad=True), torch.full((2,), 3.0, requires_grad=True)
    >>> backward = SplitBackward([x * w], [x])
    >>> backward.input_gradients([torch.ones(2)]), w.grad
    ([tensor([3., 3.])], None)
    >>> backward.weight_gradients()
    >>> w.grad
    tensor([1., 1.])
    """

    def __init__(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
        self._outputs, self._inputs = list(outputs), list(inputs)
        self._ends = {_node(x) for x in inputs}
        self._trunk = _leading_to(self._ends, [_node(y) for y in outputs])
        self._leaving = {node: edges for node in self._trunk if (edges := self._edges_out(node))}
        self._arrived: dict[Node, Gradients] = {}
        self._seeds: list[tuple[GradientEdge, torch.Tensor]] = []

    def input_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The gradients of the inputs, given those of the outputs; None for an input that the outputs do not depend on."""
        on_trunk = []
        for output, gradient in zip(self._outputs, gradients, strict=True):
            if _node(output) in self._trunk | self._ends:
                on_trunk.append((output, gradient))
            else:
                self._seeds.append((get_gradient_edge(output), gradient))
        self._outputs = []
        if not on_trunk:
            return [None] * len(self._inputs)
        hooks = [node.register_prehook(_NotingHook(node, self._arrived)) for node in self._leaving]
        try:
            found = torch.autograd.grad(
                [output for output, _ in on_trunk],
                self._inputs,
                [gradient for _, gradient in on_trunk],
                retain_graph=True,
                allow_unused=True,
            )
        finally:
            for hook in hooks:
                hook.remove()
        return list(found)

    def weight_gradients(self) -> None:
        """Adds the gradients of all weights to what they have; after it, nothing of the graph is kept."""
        shared = self._shared()
        for node, arrived in self._arrived.items():
            edges = self._leaving[node]
            found = (_by_node if shared.isdisjoint(edge.node for edge in edges) else _by_hand)(node, arrived, edges)
            self._seeds += [(edge, each) for edge, each in zip(edges, found, strict=True) if each is not None]
        seeds, self._seeds = self._seeds, []
        if seeds:  # While the trunk is there: in torch 2.11, an edge to a function of Python's does not keep it.
            torch.autograd.backward([edge for edge, _ in seeds], [gradient for _, gradient in seeds])
        self._arrived, self._leaving, self._trunk, self._ends, self._inputs = {}, {}, set(), set(), []

    def _edges_out(self, node: Node) -> list[GradientEdge]:
        """The edges of a trunk's node that leave it."""
        return [
            GradientEdge(into, number)
            for into, number in dict.fromkeys(node.next_functions)
            if into is not None and into not in self._trunk and into not in self._ends
        ]

    def _shared(self) -> set[Node]:
        """What several nodes of the trunk lead to: a weight that is used twice."""
        seen: set[Node] = set()
        twice: set[Node] = set()
        for edges in self._leaving.values():
            own = _reached([edge.node for edge in edges])
            twice |= seen & own
            seen |= own
        return twice


class _NotingHook:
    """A hook that notes what arrives at a node."""

    def __init__(self, node: Node, arrived: dict[Node, Gradients]) -> None:
        self._node, self._arrived = node, arrived

    def __call__(self, gradients: Gradients) -> None:
        self._arrived[self._node] = gradients


def _by_node(node: Node, arrived: Gradients, edges: Sequence[GradientEdge]) -> Gradients:
    """What leaves the trunk at a node, and nothing else: torch's engine leaves out what is not asked for."""
    given = [(GradientEdge(node, number), each) for number, each in enumerate(arrived) if each is not None]
    return torch.autograd.grad(
        [edge for edge, _ in given], edges, [each for _, each in given], retain_graph=True, allow_unused=True
    )


def _by_hand(node: Node, arrived: Gradients, edges: Sequence[GradientEdge]) -> Gradients:
    """The same where a way along the trunk leads to these edges too, which the engine would also go: all of the node's work."""
    with torch.no_grad():
        found = cast("Callable[..., torch.Tensor | Gradients]", node)(*arrived)
    gradients = found if isinstance(found, tuple) else (found,)
    total: dict[tuple[Node, int], torch.Tensor] = {}
    for (into, number), gradient in zip(node.next_functions, gradients, strict=True):
        if into is not None and gradient is not None:
            at = (into, number)
            gradient = gradient.sum_to_size(
                into._input_metadata[number].shape
            )  # as the engine does for what was broadcast
            total[at] = total[at] + gradient if at in total else gradient
    return tuple(total.get((edge.node, edge.output_nr)) for edge in edges)


def _node(x: torch.Tensor) -> Node:
    return get_gradient_edge(x).node


def _leading_to(ends: set[Node], starts: Sequence[Node]) -> set[Node]:
    """The nodes from which a way leads to one of the ends, the ends excluded."""
    leads: dict[Node, bool] = {}
    waiting: list[tuple[Node, bool]] = [(node, False) for node in starts]
    while waiting:
        node, is_left = waiting.pop()
        following = [each for each, _ in node.next_functions if each is not None]
        if is_left:
            leads[node] = any(each in ends or leads.get(each, False) for each in following)
        elif node not in leads:
            leads[node] = False
            waiting.append((node, True))
            waiting += [(each, False) for each in following if each not in leads]
    return {node for node, does in leads.items() if does and node not in ends}


def _reached(starts: Sequence[Node]) -> set[Node]:
    found: set[Node] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [each for each, _ in node.next_functions if each is not None]
    return found
