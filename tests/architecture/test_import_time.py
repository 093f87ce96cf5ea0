"""`import weft.sharding` is light: no torch, no third party, a few milliseconds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("module", ["weft", "weft.sharding"])
def test_importing_loads_no_third_party(module: str) -> None:
    # Compared with a bare interpreter, since environments may preload modules of their own.
    names = "print(*{name.split('.')[0] for name in sys.modules})"
    before = set(run(f"import sys; {names}").split())
    after = set(run(f"import sys, {module}; {names}").split())
    assert "weft" in after
    assert {name for name in after - before if name not in sys.stdlib_module_names} == {"weft"}


def test_importing_the_words_takes_well_under_50_ms(tmp_path: Path) -> None:
    # As installed packages are: compiled once, whatever the environment says about writing bytecode.
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)

    def started(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=compiled)
        return time.perf_counter() - start

    started("import weft.sharding")  # compiles
    # Interleaved, and the least of each: other work on the machine only ever adds time.
    bare, loaded = zip(*((started("pass"), started("import weft.sharding")) for _ in range(9)), strict=True)
    assert min(loaded) - min(bare) < 0.050
