"""Make notebooks of pages and examples, and run them cell by cell, without Jupyter.

`python -m tests.docs.notebooks` writes them, with what they show. The cells of `layouts.ipynb` are its own; those of the
others are the tutorial's blocks and the examples' code.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
import re
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.pages import FENCE

__all__ = [
    "EXAMPLES",
    "NAMES",
    "NOTEBOOKS",
    "SOURCES",
    "executed",
    "made",
    "notebook_of_page",
    "notebook_of_script",
    "written",
]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = (
    "data_parallel_mlp",
    "tensor_parallel_transformer",
    "sequence_parallel",
    "pipeline_parallel",
    "expert_parallel",
    "ring_attention",
    "trainer_to_inference",
)
SOURCES = {"tutorial": ROOT / "docs" / "tutorial.md", **{name: EXAMPLES / f"{name}.py" for name in NAMES}}
"""What the cells of a notebook are made of."""
NOTEBOOKS = {
    "layouts": EXAMPLES / "notebooks" / "layouts.ipynb",
    **{name: EXAMPLES / "notebooks" / f"{name}.ipynb" for name in SOURCES},
}


def made(name: str) -> dict:
    """A notebook without its outputs, made of its source where it has one."""
    if name not in SOURCES:
        return json.loads(NOTEBOOKS[name].read_text())
    text = SOURCES[name].read_text()
    return notebook_of_page(text) if SOURCES[name].suffix == ".md" else notebook_of_script(text, name)


def notebook_of_page(text: str) -> dict:
    """A cell for each text and each block that runs; the outputs that the page shows are left to the notebook."""
    cells = []
    fences = list(FENCE.finditer(text))
    ends = [0, *(fence.end() for fence in fences)]
    for fence, begin in zip([*fences, None], ends, strict=True):
        words = text[begin : fence.start() if fence else None].strip()
        if words:
            cells.append(("markdown", re.sub(r"\]\((?!http)([^)]+)\)", r"](../../docs/\1)", words)))
        kind = fence["info"].strip() if fence else ""
        if fence and kind == "python":
            cells.append(("code", fence["body"].strip()))
        elif fence and kind != "text":
            cells.append(("markdown", fence[0]))
    return _notebook(cells)


def notebook_of_script(text: str, name: str) -> dict:
    """A cell for the imports, one for each function, and one for each paragraph of `main`."""
    tree = ast.parse(text)
    lines = text.splitlines()
    title, *rest = (ast.get_docstring(tree) or "").split("\n\n")
    shown = [paragraph for paragraph in rest if not paragraph.startswith("    ")]
    made = f"The program `examples/{name}.py`, piece by piece."
    cells = [("markdown", "\n\n".join([f"# {title.rstrip('.')}", *shown, made]))]
    body = [node for node in tree.body[1:] if not isinstance(node, ast.If)]
    starts = [node.lineno for node in body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
    breaks = [node.lineno for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for begin, end in pairwise([starts[0], *breaks]):
        code = "\n".join(lines[begin - 1 : end - 1]).strip()
        if "from models" in code:
            code = f'import sys\n\nsys.path.append("..")  # where models/ is\n\n{code}'
        cells.append(("code", code))
    main = body[-1]
    assert isinstance(main, ast.FunctionDef), f"{name} does not end in main()"
    cells.append(("markdown", ast.get_docstring(main) or ""))
    code = textwrap.dedent("\n".join(lines[main.body[1].lineno - 1 : main.end_lineno]))
    return _notebook(cells + [("code", piece.strip()) for piece in re.split(r"\n\n(?=\S)", code)])


def _notebook(cells: list[tuple[str, str]]) -> dict:
    made: list[dict] = []
    for number, (kind, text) in enumerate(cells):
        cell: dict = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": _lines(text)}
        made.append({"execution_count": None, "outputs": [], **cell} if kind == "code" else cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def executed(notebook: dict) -> dict:
    """The notebook with the outputs that its cells have when they are run in order."""
    result = copy.deepcopy(notebook)
    names: dict[str, object] = {"__name__": "__main__"}
    cells = [cell for cell in result["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"] = number
        cell["outputs"] = _run("".join(cell["source"]), names, number)
    return result


def written(notebook: dict) -> str:
    """The notebook as a file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _run(code: str, names: dict[str, object], number: int) -> list[dict]:
    """What a cell prints, and the value of its last line if that is an expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            data = {"text/html": _lines(value._repr_html_()), **data}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Makes every notebook and writes it with its outputs."""
    sys.path.insert(0, str(EXAMPLES))
    for name, path in NOTEBOOKS.items():
        with TemporaryDirectory() as folder, contextlib.chdir(folder):
            path.write_text(written(executed(made(name))))


if __name__ == "__main__":
    main()
