"""Bytes that the busiest device receives over the lower bound: Weft's planner, DTensor's and XLA's, as one line of JSON.

python benchmarks/bytes_over_bound.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from planning import HERE, MIB, asked, cases, planned


def peers() -> dict[str, dict[str, float]]:
    """MiB per transition, by each peer that can be asked here."""
    found: dict[str, dict[str, float]] = {}
    try:
        answer = asked([sys.executable, str(HERE / "peers" / "dtensor_bytes.py")])["mib"]
        for i, name in enumerate(("DTensor greedy", "DTensor graph")):
            found[name] = {key: pair[i] for key, pair in answer.items()}
        found["XLA"] = asked([sys.executable, str(HERE / "peers" / "xla_bytes.py")])["mib"]
    except subprocess.CalledProcessError as error:
        print(error.stderr, file=sys.stderr)
    return found


def main() -> None:
    """Ask everyone."""
    others = peers()
    ratios: dict[str, list[float]] = {"Weft": [], **{name: [] for name in others}}
    for case in cases():
        plan = planned(case)
        limit = plan.lower_bound.max
        ratios["Weft"].append(plan.bytes_received.max / limit)
        for name, answer in others.items():
            ratios[name].append(answer[f"{case.mesh} {case.name}"] * MIB / limit)
    summary = {
        name: {"mean": statistics.geometric_mean(r), "worst": max(r), "cases": len(r)} for name, r in ratios.items()
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
