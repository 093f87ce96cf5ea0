"""Read the code blocks of a page and run them: what the page shows is what happens.

- ```` ```python ```` blocks run in order; the blocks of a page share their names.
- A ```` ```text ```` block right below one is its output, and must be what it prints.
- ```` ```pycon ```` blocks are checked like doctests, with the same names.
- ```` ```console ```` blocks run the `weft` commands in them, and must show what these print.
- ```` ```python no-run: why ```` is left out, and has to say why.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner

from weft.cli import main

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<info>[^`\n]*)\n(?P<body>.*?)^ *(?P=fence) *$", re.M | re.S)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NO_RUN = re.compile(r"python no-run: \S.*")


@dataclass(frozen=True)
class Block:
    """One block that runs: its kind, its code, the page's line it starts on and the output shown below it."""

    kind: str
    code: str
    line: int
    output: str | None


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page that run, in order."""
    found: list[Block] = []
    fences = list(FENCE.finditer(text))
    for fence, below in pairwise([*fences, None]):
        assert fence is not None
        info, line = fence["info"].strip(), text.count("\n", 0, fence.start("body")) + 1
        kind = info.split(" ")[0]
        if not kind:
            raise ValueError(f"line {line - 1}: a block is not marked: use python, pycon, console or text")
        if kind not in {"python", "pycon", "console", "py", "python3"} or NO_RUN.fullmatch(info):
            continue
        if info not in {"python", "pycon", "console"}:
            raise ValueError(f"line {line - 1}: a block is marked {info!r}: use python, pycon or python no-run: <why>")
        shown = below is not None and below["info"].strip() == "text" and not text[fence.end() : below.start()].strip()
        output = textwrap.dedent(below["body"]) if below is not None and shown else None
        found.append(Block(kind, textwrap.dedent(fence["body"]), line, output))
    return found


def run_page(text: str, name: str) -> None:
    """Run a page's blocks; raises what a block raises, or AssertionError where the shown output is not the real one."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(text):
        if block.kind == "pycon":
            check_session(block, names, name)
            continue
        if block.kind == "console":
            check_commands(block, name)
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # The empty lines make tracebacks show the page's own line numbers.
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), names)
        if block.output is not None:
            same = doctest.OutputChecker().check_output(block.output, printed.getvalue(), FLAGS)
            assert same, (
                f"{name}:{block.line}: the page shows\n{block.output}\nbut the block prints\n{printed.getvalue()}"
            )


def check_session(block: Block, names: dict[str, object], name: str) -> None:
    """Check an interactive session like a doctest, keeping its names for the blocks below."""
    test = doctest.DocTestParser().get_doctest(block.code, names, f"{name}:{block.line}", name, block.line - 1)
    report = io.StringIO()
    result = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=report.write, clear_globs=False)
    names.update(test.globs)
    assert result.failed == 0, report.getvalue()


def check_commands(block: Block, name: str) -> None:
    """Run the `weft` commands of a console, and compare what they print with what stands below them, if anything does."""
    for command in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
        line, _, shown = command.partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] != "weft":
            continue
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{name}:{block.line}: {line}\n{result.output}"
        assert not shown.strip() or shown.rstrip() == result.output.rstrip(), (
            f"{name}:{block.line}: the page shows\n{shown}\nbut the command prints\n{result.output}"
        )


def pages(root: Path) -> list[Path]:
    """The pages of the project: those at its root and all under docs."""
    return sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
