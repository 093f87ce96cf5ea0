"""Run notebooks cell by cell, without Jupyter: `python -m tests.docs.notebooks` writes what they show into them."""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import json
from pathlib import Path

__all__ = ["NOTEBOOKS", "executed", "written"]

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


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
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


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
    """Runs every notebook and writes its outputs."""
    for path in NOTEBOOKS:
        path.write_text(written(executed(json.loads(path.read_text()))))


if __name__ == "__main__":
    main()
