"""All of PyTorch's samples of its ops, on tensors laid out over four devices: `docs/op-coverage.md`.

python benchmarks/op_coverage.py              all samples (some minutes)
python benchmarks/op_coverage.py --most 4     the first few of each op
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.progress import track  # noqa: E402 - after the path is set

from tests.rules.harness import memory  # noqa: E402
from tests.rules.opinfo import LAYOUTS, REASONS, Tried, name_of, op_infos, tried  # noqa: E402

PAGE = ROOT / "docs" / "op-coverage.md"
MODES = {"one memory": False, "separate memories": True}


@dataclass(slots=True)
class Tally:
    """How the samples of one op went in one layout."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    moves: bool = False
    details: list[str] = field(default_factory=list)

    def add(self, sample: Tried) -> None:
        """Counts one sample."""
        self.forward[sample.forward.kind] += 1
        self.backward[sample.backward.kind] += 1
        self.moves |= sample.moves
        for way, outcome in (("forward", sample.forward), ("backward", sample.backward)):
            if outcome.kind in ("wrong", "error"):
                self.details.append(f"{way}, {outcome.kind}: {outcome.detail}")


Tallies = dict[tuple[str, str], dict[str, Tally]]
"""(mode, layout) to op to tally."""


def run(most: int | None) -> Tallies:
    """All samples in all layouts and modes."""
    found: Tallies = {}
    for mode, separate in MODES.items():
        for layout in LAYOUTS:
            tallies = found[mode, layout] = {}
            with memory(separate):
                for op in track(op_infos(), f"{mode}, {layout}"):
                    tally = tallies.setdefault(name_of(op), Tally())
                    for sample in tried(op, most, layout):
                        tally.add(sample)
    return found


def share(counts: Counter[str]) -> str:
    """Passed of compared."""
    total = sum(counts[kind] for kind in ("pass", "wrong", "error"))
    return f"{counts['pass']}/{total}" if total else "–"


def percent(counts: Counter[str]) -> str:
    """Passed of compared, as a percentage."""
    total = sum(counts[kind] for kind in ("pass", "wrong", "error"))
    return f"{counts['pass']:,} of {total:,} ({100 * counts['pass'] / total:.1f} %)"


def summary(found: Tallies) -> list[str]:
    """One row per mode and layout."""
    lines = ["| memory | layout | forward | backward | wrong values |", "|---|---|---|---|---|"]
    for (mode, layout), tallies in found.items():
        forward, backward = Counter[str](), Counter[str]()
        for tally in tallies.values():
            forward += tally.forward
            backward += tally.backward
        wrong = forward["wrong"] + backward["wrong"]
        lines.append(f"| {mode} | {layout} | {percent(forward)} | {percent(backward)} | {wrong} |")
    return lines


def failures(found: Tallies) -> list[str]:
    """Which ops failed, how often, and why."""
    lines = ["| op | memory, layout | failed | why |", "|---|---|---|---|"]
    for (mode, layout), tallies in found.items():
        for name, tally in tallies.items():
            if tally.details:
                why = REASONS.get(name) or tally.details[0].splitlines()[0][:160].replace("|", "/")
                lines.append(f"| `{name}` | {mode}, {layout} | {len(tally.details)} | {why} |")
    return lines


def table(found: Tallies) -> list[str]:
    """One row per op, one column per layout, in separate memories."""
    columns = {layout: found["separate memories", layout] for layout in LAYOUTS}
    lines = [f"| op | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name in sorted(next(iter(columns.values()))):
        cells = []
        for tallies in columns.values():
            tally = tallies[name]
            still = "" if tally.moves else " ∎"
            cells.append(f"{share(tally.forward)}, {share(tally.backward)}{still}")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def page(found: Tallies, most: int | None) -> str:
    """The page."""
    samples = "all samples" if most is None else f"the first {most} samples"
    return "\n".join(
        [
            "# Op coverage",
            "",
            f"PyTorch's own database of ops (`op_db`, torch {torch.__version__}), {samples} of each op in float32. Every tensor of a",
            "sample lies on four devices in one layout; results and gradients are compared with plain torch.",
            "`python benchmarks/op_coverage.py` writes this page. Which split of which input moves what is on the page of",
            "[ops and layouts](op-layouts.md).",
            "",
            *summary(found),
            "",
            "## What fails",
            "",
            "Everything that fails raises; nothing gives another value.",
            "",
            *failures(found),
            "",
            "One call is torch's own to get wrong: `torch.linalg.matrix_rank(x, out=y)` leaves `y` as it was for tensors of any",
            "subclass, because torch then forgets `out` before any op sees it. Write `y.copy_(torch.linalg.matrix_rank(x))`.",
            "`torch.utils.dlpack.to_dlpack(x)`, the old function, asks nobody either, and hands over an address that is nowhere, for",
            "tensors of any such subclass: use `torch.from_dlpack(x)`, which does, or `x.full_tensor()`.",
            "",
            "## Every op",
            "",
            "Samples passed forward, then backward, of those compared, in separate memories. ∎: no sample moved any data on its way",
            "forward; other ops moved or reduced something, because the op needs it (a sum over a split dim) or because no rule for it",
            "keeps that layout.",
            "",
            *table(found),
            "",
        ]
    )


def main() -> None:
    """Runs the samples and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=None, help="the most samples of each op")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = run(arguments.most)
    PAGE.write_text(page(found, arguments.most))
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
