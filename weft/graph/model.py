"""`Model`: a compiled graph, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import torch

from weft.graph.codegen import Function
from weft.graph.guard import Guard, ModelInput
from weft.graph.passes.aliasing import Sharing
from weft.graph.types import TensorType
from weft.runtime.in_process import lazy_clone

if TYPE_CHECKING:
    from weft.graph.graph import Graph, InputType

__all__ = ["Model"]


@final
class Model:
    """A compiled graph: call it with tensors, as often as you like, in any sizes that the graph's names allow.

    >>> from weft.graph import Graph, TensorType, compile
    >>> with Graph("double", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     graph.output(graph.inputs[0] * 2)
    >>> model = compile(graph)
    >>> model(torch.ones(3)), model.execute(torch.ones(1))
    (tensor([2., 2., 2.]), [tensor([2.])])
    """

    __slots__ = ("_constants", "_function", "_guard", "_sharing", "_single", "backend", "graph", "source")

    def __init__(
        self,
        graph: Graph,
        function: Function,
        constants: Sequence[torch.Tensor],
        sharing: Sharing,
        *,
        backend: str,
        source: str,
    ) -> None:
        self.graph = graph
        self.backend = backend
        self.source = source
        self._function = function
        self._constants = tuple(constants)
        self._sharing = sharing if sharing.lazily or sharing.now else None
        self._guard = Guard(graph)
        self._single = len(graph.checked_outputs()) == 1

    @property
    def input_types(self) -> tuple[InputType, ...]:
        """The types of the inputs, in order."""
        return self.graph.input_types

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the outputs, in order."""
        return self.graph.output_types

    def __call__(self, *inputs: ModelInput) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the graph: one output as it is, several as a tuple."""
        outputs = self._run(inputs)
        return outputs[0] if self._single else tuple(outputs)

    def execute(self, *inputs: ModelInput) -> list[torch.Tensor]:
        """Run the graph: the outputs as a list."""
        return list(self._run(inputs))

    def _run(self, inputs: Sequence[ModelInput]) -> Sequence[torch.Tensor]:
        outputs = self._function(*self._guard.check(inputs), *self._constants)
        if self._sharing is None:
            return outputs
        own = list(outputs)
        for i in self._sharing.lazily:
            own[i] = lazy_clone(own[i])
        for i in self._sharing.now:
            own[i] = own[i].clone()
        return own

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.input_types))
        outputs = ", ".join(map(str, self.output_types))
        return f"<Model {self.graph.name!r} ({self.backend}): {inputs} -> {outputs}>"
