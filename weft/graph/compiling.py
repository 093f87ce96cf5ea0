"""`compile`: from a recorded graph to a `Model`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .lowering.codegen import generate, source_of
from .lowering.inductor import joined
from .lowering.program import lower
from .passes import optimize, shared_outputs
from .recording.types import BufferType
from .running.cuda_capture import recorded
from .running.model import Model
from .running.peers import check_peer_access

if TYPE_CHECKING:
    from .recording.graph import Graph

__all__ = ["BACKENDS", "Backend", "compile"]

Backend = Literal["eager", "inductor"]
BACKENDS = ("eager", "inductor")


def compile(  # noqa: A001 - the document's name
    graph: Graph, *, backend: Backend = "eager", cuda_graph: bool | None = None
) -> Model:
    """Compile a graph: `"eager"` runs torch's own kernels from one flat function, `"inductor"` fuses them first.

    Where all its values are on one GPU, a run becomes one launch (a CUDA graph, recorded when inputs of the same shapes
    come for the second time); `cuda_graph=False` turns this off, `cuda_graph=True` refuses where it cannot be.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("double", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     graph.output(graph.inputs[0] * 2)
    >>> compile(graph)
    <Model 'double' (eager): f32[n] on cpu:0 -> f32[n] on cpu:0>
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: use one of {', '.join(map(repr, BACKENDS))}")
    check_peer_access(graph)
    program = lower(graph, joined=backend == "inductor")
    optimize(program)
    function = generate(program.fx, graph.name)
    source = source_of(program.fx)
    if backend == "inductor":
        function = joined(function, static=all(value.shape.is_static for value in graph.inputs))
    buffers = frozenset(i for i, kind in enumerate(v.type for v in graph.arguments) if isinstance(kind, BufferType))
    sharing = shared_outputs(program, set(buffers))
    function = recorded(graph, program, function, buffers, cuda_graph)
    return Model(graph, function, program.constants, sharing, backend=backend, source=source)
