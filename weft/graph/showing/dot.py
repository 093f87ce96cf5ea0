"""A graph as a drawing, in the language of Graphviz."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from ..recording.op import PART, Kind, RecordedCall
from ..recording.types import BufferType, TensorType

if TYPE_CHECKING:
    from ..recording.graph import Graph

__all__ = ["COLOURS", "box_label", "is_part", "source_box", "to_dot", "types_of"]

COLOURS = {
    None: "#ffffff",
    Kind.COMPUTE: "#dbe9f6",
    Kind.VIEW: "#f2f2f2",
    Kind.CONSTANT: "#fff4cc",
    Kind.MOVEMENT: "#fde0c5",
    Kind.COLLECTIVE: "#f8c4c4",
    Kind.BUFFER: "#e3d7f0",
}


def to_dot(graph: Graph) -> str:
    r"""The graph in the language of Graphviz: one box an operation, in a frame for each device.

    >>> from weft.graph import Graph, TensorType
    >>> with Graph("double", input_types=[TensorType("float32", ["n"])]) as graph:
    ...     graph.output(graph.inputs[0] * 2)
    >>> print(to_dot(graph))
    digraph "double" {
      node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];
      subgraph "cluster_cpu:0" {
        label="cpu:0";
        "input0" [label="input0\nf32[n]", fillcolor="#ffffff"];
        "mul" [label="mul\nf32[n]", fillcolor="#dbe9f6"];
      }
      "out0" [label="output 0", shape=plaintext, fillcolor="#ffffff"];
      "input0" -> "mul";
      "mul" -> "out0";
    }
    """
    frames: dict[str, list[str]] = {}
    edges = []
    for node in graph.fx.nodes:
        if is_part(node):
            continue
        devices = dict.fromkeys(str(kind.device) for kind in types_of(node))
        frames.setdefault(next(iter(devices)) if len(devices) == 1 else "", []).append(_box(node))
        edges += [f'  "{source_box(used).name}" -> "{node.name}";' for used in dict.fromkeys(node.all_input_nodes)]
    lines = [
        f'digraph "{graph.name}" {{',
        '  node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10];',
    ]
    for device, boxes in frames.items():
        if device:
            lines += [
                f'  subgraph "cluster_{device}" {{',
                f'    label="{device}";',
                *(f"    {box}" for box in boxes),
                "  }",
            ]
        else:
            lines += [f"  {box}" for box in boxes]
    for i, value in enumerate(graph.results if graph.outputs is not None else ()):
        lines.append(f'  "out{i}" [label="output {i}", shape=plaintext, fillcolor="#ffffff"];')
        edges.append(f'  "{source_box(value.node).name}" -> "out{i}";')
    return "\n".join([*lines, *dict.fromkeys(edges), "}"])


def is_part(node: fx.Node) -> bool:
    """Whether a node only picks one of several results."""
    return node.op != "placeholder" and node.meta["call"].op is PART


def source_box(node: fx.Node) -> fx.Node:
    """The operation that an edge starts from: a result of several stands for all of them."""
    if not is_part(node):
        return node
    whole = node.args[0]
    assert isinstance(whole, fx.Node)
    return whole


def types_of(node: fx.Node) -> tuple[TensorType | BufferType, ...]:
    """The types of what an operation gives, or of an input."""
    if node.op == "placeholder":
        return (node.meta["input"].type,)
    call: RecordedCall = node.meta["call"]
    return call.types


def box_label(node: fx.Node) -> list[str]:
    """What a box says: the name of the op, and the types without their devices."""
    kinds = dict.fromkeys(str(kind).rsplit(" on ", 1)[0] for kind in types_of(node))
    return [node.name if node.op == "placeholder" else node.meta["call"].op.name, *kinds]


def _box(node: fx.Node) -> str:
    colour = COLOURS[None if node.op == "placeholder" else node.meta["call"].op.kind]
    label = "\\n".join(box_label(node))
    return f'"{node.name}" [label="{label}", fillcolor="{colour}"];'
