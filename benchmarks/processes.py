"""Transitions and collectives over 4 Gloo processes, beside DTensor and the raw calls: what `multiprocess.py` measures.

    python benchmarks/section.py processes

The limit is the raw `torch.distributed` call where there is one. Each time is the best of its turns, not their median:
four processes on fewer cores wait for each other, and that is what the best turn leaves out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from contest import Timing
from figure import LIMIT, WEFT, Figure

SCRIPT = Path(__file__).with_name("multiprocess.py")
NAMES = {"weft": WEFT, "dtensor": "DTensor", "raw": LIMIT}
SIZE = 16 << 20


def transitions(quick: bool) -> Iterator[int | Figure]:
    """All cases."""
    turns = 5 if quick else 40
    with TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        command = [sys.executable, str(SCRIPT), "--repetitions", str(turns), "--json", str(written)]
        subprocess.run(command, stdout=sys.stderr, check=True)
        rows = json.loads(written.read_text())
    yield len(rows)
    for row in rows:
        bests = {NAMES[who]: way["best"] for who, way in row["ways"].items()}
        times = {who: Timing(best, best, best, turns) for who, best in bests.items()}
        yield Figure("processes", row["case"], times, 0 if "training" in row["case"] else SIZE, devices=4)
