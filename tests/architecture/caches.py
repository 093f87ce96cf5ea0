"""Find what modules remember, and whether each says how much that may become and who empties it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.layers import modules_of

STATED = re.compile(r"Bound: .+?\.\s+Cleared: .+?\.", re.DOTALL)
"""What the text below a container says."""
GROWING = {
    "Counter",
    "OrderedDict",
    "WeakIdKeyDictionary",
    "WeakKeyDictionary",
    "WeakSet",
    "WeakValueDictionary",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "set",
}
HOME = "weft.caches"


def name_of(node: ast.expr) -> str:
    """The last name of `a`, `a.b`, `a[b]`, `a(b)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return name_of(inner)
    return ""


def is_growing(value: ast.expr | None) -> bool:
    """Whether a value is a container that begins empty: it is there to be filled."""
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=[], keywords=[]):
            return name_of(value.func) in GROWING
        case ast.Call(args=[*_], func=func):
            return name_of(func) in ("defaultdict", "deque")
    return False


def unstated(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """What a module remembers without saying how much, or who empties it: names and lines."""
    body = ast.parse(path.read_text(), str(path)).body
    for node, below in zip(body, [*body[1:], None], strict=True):
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ):
                if name != "__all__" and is_growing(value) and not says(below):
                    yield f"{module}.{name}", node.lineno
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and module != HOME:
            for decorator in node.decorator_list:
                if name_of(decorator) in ("cache", "lru_cache"):
                    yield f"{module}.{node.name}", node.lineno


def says(below: ast.stmt | None) -> bool:
    """Whether a statement is a text that states a bound, and who clears."""
    match below:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return STATED.search(text) is not None
    return False


def unstated_in(root: Path) -> dict[str, int]:
    """All of them in the package under `root`, with their lines."""
    return {name: line for module, path in modules_of(root) for name, line in unstated(module, path)}
