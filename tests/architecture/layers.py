"""Read the layers from the architecture page, the imports from the code, and say where they disagree."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "weft"


@dataclass(frozen=True)
class Layer:
    """One row of the page: its modules, and what they may import beyond themselves and the standard library."""

    modules: tuple[str, ...]
    may_import: frozenset[str]


@dataclass(frozen=True)
class Import:
    """One module named by an import statement (or a call of `import_module`), and where."""

    importer: str
    imported: str
    line: int
    inside_function: bool


def layers_of(page: str) -> list[Layer]:
    """The rows of the page's table `| layer | ... | may import |`, top row first."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    assert [(row[0], row[-1]) for row in rows[:1]] == [("layer", "may import")], "the page has no table of layers"
    layers: list[Layer] = []
    for first, *_, last in rows[2:]:
        allowed = set(re.findall(r"`([\w.]+)`", last))
        above = {module for layer in layers for module in layer.modules}
        if "all above" in last:
            allowed |= above
        own = {name for name in allowed if name.startswith(PACKAGE)}
        assert own <= above, f"{first} may import {sorted(own - above)}, which the page lists no higher"
        layers.append(Layer(tuple(re.findall(r"`([\w.]+)`", first)), frozenset(allowed)))
    return layers


def modules_of(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the package under `root`, by its full name; `weft.sharding` for a package's own file."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(module: str, path: Path) -> Iterator[Import]:
    """Every import in a module's file, wherever it stands, with relative ones resolved."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def names(node: ast.AST) -> list[str]:
        match node:
            case ast.Import(names=aliases):
                return [alias.name for alias in aliases]
            case ast.ImportFrom(level=0, module=str(source), names=aliases):
                return [f"{source}.{alias.name}" for alias in aliases]
            case ast.ImportFrom(level=level, module=source, names=aliases):
                base = ".".join([*package.split(".")[: len(package.split(".")) - level + 1], *filter(None, [source])])
                return [f"{base}.{alias.name}" for alias in aliases]
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                return [name]
        return []

    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for name in names(child):
                yield Import(module, name, child.lineno, inside)
            yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    yield from walk(ast.parse(path.read_text(), str(path)), inside=False)


def within(name: str, modules: frozenset[str] | tuple[str, ...]) -> bool:
    """Whether `name` is one of the modules or lies inside one."""
    return any(name == module or name.startswith(module + ".") for module in modules)


def violations(root: Path, layers: list[Layer]) -> list[str]:
    """Every import of the package under `root` that the layers forbid, one readable line each."""
    found = []
    for module, path in modules_of(root):
        if module == PACKAGE:
            continue
        layer = next((layer for layer in layers if within(module, layer.modules)), None)
        if layer is None:
            found.append(f"{module} is in no layer: give it a row in docs/architecture.md")
            continue
        for entry in imports_of(module, path):
            at = f"{path.relative_to(root)}:{entry.line}: {module} imports {entry.imported}"
            if entry.imported.split(".")[0] == PACKAGE:
                if entry.inside_function:
                    found.append(f"{at} inside a function: move it to the top of the file")
                if not within(entry.imported, layer.modules) and not within(entry.imported, layer.may_import):
                    found.append(f"{at}, which its layer may not")
            elif entry.imported.split(".")[0] not in sys.stdlib_module_names and not within(
                entry.imported, layer.may_import
            ):
                found.append(f"{at}, which its layer may not")
    return found
