"""`import weft.sharding` is light: no torch, no third party, nothing slow."""

from __future__ import annotations

import subprocess
import sys

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


def test_importing_the_words_loads_nothing_slow() -> None:
    # What takes milliseconds each. The time itself is in benchmarks/vocabulary.py: here it would depend on the machine.
    slow = {"ast", "asyncio", "dataclasses", "dis", "inspect", "json", "logging", "numpy", "pathlib", "torch", "urllib"}
    loaded = set(run("import sys, weft.sharding; print(*sys.modules)").split())
    assert not slow & loaded
