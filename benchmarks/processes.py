"""Transitions and collectives over 4 Gloo processes, beside DTensor and the raw calls: what `multiprocess.py` measures.

    python benchmarks/section.py processes

The limit is the raw `torch.distributed` call where there is one.
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
SIZE, SMALL = 16 << 20, 1 << 10
REPEATED = "200 x"
"""How cases begin that are many calls of one op."""


def transitions(quick: bool) -> Iterator[int | Figure]:
    """All cases."""
    turns = 7 if quick else 60
    with TemporaryDirectory() as folder:
        written = Path(folder) / "figures.json"
        command = [sys.executable, str(SCRIPT), "--repetitions", str(turns), "--json", str(written)]
        subprocess.run(command, stdout=sys.stderr, check=True)
        rows = json.loads(written.read_text())
    yield len(rows)
    for row in rows:
        times = {NAMES[who]: Timing(way["median"], way["low"], way["high"], turns) for who, way in row["ways"].items()}
        size = 0 if "training" in row["case"] else SMALL if row["case"].startswith(REPEATED) else SIZE
        yield Figure("processes", row["case"], times, size, devices=4)
