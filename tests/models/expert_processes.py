"""Trains the models with experts in several processes, each of which compares with one device.

Started by a launcher: expert_processes.py DEVICES_PER_PROCESS
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import weft
from tests.models.expert_models import MODELS, differences

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    weft.distributed.init(backend="gloo", timeout=120, devices_per_process=int(sys.argv[1]))
    mesh = weft.make_mesh({"ep": 4})
    said = [each for name in MODELS for each in differences(name, mesh)]
    said += [each for name in MODELS for each in differences(name, mesh, how="eager", count=2)]
    print("\n".join(said) or "all as on one device")
