"""What a program pays before its first op is done, beyond `import torch`.

    python benchmarks/start.py

Beside it stands a class of a few lines with a `__torch_dispatch__`: what torch takes for the first op of any such class.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from tempfile import TemporaryDirectory

ROUNDS = 5
PROGRAMS = {
    "import torch": "import torch",
    "Weft": """
import torch
import weft
mesh = weft.make_mesh({"tp": 4})
x = weft.shard(torch.ones(8, 64), mesh, weft.P(None, "tp"))
w = weft.shard(torch.ones(64, 8), mesh, weft.P("tp", None))
assert (x @ w).sum().item() == 4096
""",
    "a class of a few lines": """
import torch
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        made = torch.Tensor._make_wrapper_subclass(cls, x.shape)
        made.x = x
        return made
    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        return cls(op(*[each.x for each in args]))
assert (Wrapper(torch.ones(8, 64)) @ Wrapper(torch.ones(64, 8))).x.sum().item() == 4096
""",
}


def seconds(code: str, environment: dict[str, str]) -> float:
    """How long a program takes."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Runs the programs in turns, and prints what each takes beyond the first."""
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with TemporaryDirectory() as compiled:
        # As installed packages are: compiled once, whatever the environment says about writing bytecode.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        for turn in range(ROUNDS + 1):
            for name, code in PROGRAMS.items():
                time_of_one = seconds(code, environment)
                if turn:
                    taken[name].append(time_of_one)
    first = statistics.median(taken["import torch"])
    print(f"import torch: {first:.2f} s")
    for name, times in list(taken.items())[1:]:
        print(f"{name}: {statistics.median(times) - first:.2f} s beyond that, to the first op")


if __name__ == "__main__":
    main()
