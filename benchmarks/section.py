"""Run one section of the benchmarks and print a line of JSON a figure.

    python benchmarks/section.py transitions [--quick]

The first line says how many there will be.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path

SECTIONS = {
    "ops": "overhead:ops",
    "transitions": "in_process:transitions",
    "collectives": "in_process:collectives",
    "training": "training:steps",
    "processes": "processes:transitions",
    "planning": "planning_time:figures",
    "graphs": "graph_time:figures",
}
"""Name to `module:function`; the function yields how many figures there will be, then the figures."""


def main() -> None:
    """Measure, and print each figure when it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SECTIONS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    module, _, function = SECTIONS[options.name].partition(":")
    for said in getattr(import_module(module), function)(options.quick):
        line = {"total": said} if isinstance(said, int) else said.as_dict()
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
