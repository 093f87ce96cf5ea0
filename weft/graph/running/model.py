"""`Model`: a compiled graph, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import torch

from ...engine.sharded import wrap
from ...runtime.memory.lazy_copy import lazy_clone
from ...sharding.dims import Shape
from ...sharding.layout import Layout
from ...sharding.mapping import DeviceMapping
from ...sharding.types import TensorLayout
from ..lowering.codegen import Function
from ..passes.aliasing import Sharing
from ..recording.distributed_value import DistributedKind, DistributedValue
from ..recording.sizes import value_of
from ..recording.types import TensorType
from .guard import Guard, ModelInput

if TYPE_CHECKING:
    import numpy as np

    from ..recording.graph import Graph, InputType, OutputValue

    Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

__all__ = ["Model"]


class _Assembly(NamedTuple):
    """How an output on a mesh is put together from its pieces."""

    pieces: int
    layout: Layout
    shape: Shape
    sizes: tuple[int, ...] | None
    asked: DeviceMapping | None


def _form(value: OutputValue) -> _Assembly | None:
    if not isinstance(value, DistributedValue):
        return None
    sizes = value.shape.sizes if value.shape.is_static else None
    asked = value.type.mapping if isinstance(value.type, TensorLayout) else None
    return _Assembly(len(value.pieces), value.layout, value.shape, sizes, asked)


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

    __slots__ = (
        "_constants",
        "_forms",
        "_function",
        "_guard",
        "_plain",
        "_sharing",
        "_single",
        "_sizes",
        "backend",
        "graph",
        "source",
    )

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
        self._sizes = tuple(graph.sizes)
        self._sharing = sharing if sharing.lazily or sharing.now else None
        self._guard = Guard(graph)
        self._forms = [_form(value) for value in graph.checked_outputs()]
        self._single = len(self._forms) == 1
        self._plain = all(form is None for form in self._forms)

    @property
    def input_types(self) -> tuple[InputType, ...]:
        """The types of the inputs, in order."""
        return self.graph.input_types

    @property
    def output_types(self) -> tuple[TensorType | DistributedKind, ...]:
        """The types of the outputs, in order."""
        return self.graph.output_types

    def __call__(self, *inputs: ModelInput) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the graph: one output as it is, several as a tuple; what lies on a mesh as a `weft.Tensor`."""
        outputs = self._run(inputs)
        return outputs[0] if self._single else tuple(outputs)

    def execute(self, *inputs: ModelInput) -> list[torch.Tensor]:
        """Run the graph: the outputs as a list."""
        return list(self._run(inputs))

    def numpy(self, *inputs: ModelInput) -> list[Array]:
        """Run the graph: the outputs as NumPy arrays, whole and on the host.

        >>> from weft.graph import Graph, TensorType, compile
        >>> graph = Graph("double", lambda x: x * 2, [TensorType("float32", ["n"])])
        >>> compile(graph).numpy(torch.ones(2))
        [array([2., 2.], dtype=float32)]
        """
        return [output.detach().cpu().numpy() for output in self._run(inputs)]

    def _run(self, inputs: Sequence[ModelInput]) -> Sequence[torch.Tensor]:
        tensors, sizes = self._guard.check(inputs)
        outputs = self._function(*tensors, *[sizes[name] for name in self._sizes], *self._constants)
        if self._sharing is not None:
            outputs = self._owned(outputs, self._sharing)
        return outputs if self._plain else self._laid_out(outputs, sizes)

    def _owned(self, outputs: tuple[torch.Tensor, ...], sharing: Sharing) -> tuple[torch.Tensor, ...]:
        """The outputs, each its own: what somebody else can see is copied, where possible when it is written to."""
        own = list(outputs)
        for i in sharing.lazily:
            own[i] = lazy_clone(own[i])
        for i in sharing.now:
            own[i] = own[i].clone()
        return tuple(own)

    def _laid_out(self, outputs: Sequence[torch.Tensor], sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """The outputs with those that lie on a mesh put together from their pieces."""
        rest = iter(outputs)
        results: list[torch.Tensor] = []
        for form in self._forms:
            if form is None:
                results.append(next(rest))
            else:
                pieces = tuple([next(rest) for _ in range(form.pieces)])
                shape = form.sizes or tuple(value_of(dim, sizes) for dim in form.shape)
                results.append(wrap(pieces, form.layout, shape, asked=form.asked))
        return results

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.input_types))
        outputs = ", ".join(map(str, self.output_types))
        return f"<Model {self.graph.name!r} ({self.backend}): {inputs} -> {outputs}>"
