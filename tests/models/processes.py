"""Runs the models with several processes, each of which compares with plain torch and writes down what differs.

Started by a launcher: processes.py FOLDER DEVICES_PER_PROCESS LAYOUT MODEL...
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import weft
from tests.models.catalogue import MODELS
from tests.models.layouts import LAYOUTS
from tests.models.running import differences, run


def work(folder: Path, layout: str, names: list[str]) -> None:
    """What each process does; one that differs or fails does not stop the others."""
    mesh = LAYOUTS[layout].mesh(weft.devices())
    process = weft.distributed.process_index()
    for name in names:
        try:
            said = differences(run(MODELS[name], mesh), run(MODELS[name], None))
        except Exception:  # noqa: BLE001 - whatever it is, it is written down
            said = [traceback.format_exc()]
        (folder / f"{process} {name}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    weft.distributed.init(backend="gloo", timeout=120, devices_per_process=int(sys.argv[2]))
    work(Path(sys.argv[1]), sys.argv[3], sys.argv[4:])
