"""The programs compile for a Hopper GPU, which needs none, and to the instructions they are meant to be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """PTX and SASS by name, made in a process of its own: this one may be using the interpreter."""
    environment = dict(os.environ, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))
    found = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compiler"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    made: dict[str, dict[str, str]] = json.loads(found.stdout)
    return made


ALIGNED = ["broadcast", "all_gather", "all_to_all", "all_reduce", "all_reduce_bf16", "reduce_scatter", "meeting"]


@pytest.mark.parametrize("name", ALIGNED)
def test_full_blocks_move_sixteen_bytes_at_a_time(assembly, name):
    assert "LDG.E.128" in assembly[name]["sass"]
    assert "STG.E.128" in assembly[name]["sass"]


def test_unaligned_memory_is_not_read_sixteen_bytes_at_a_time(assembly):
    assert "LDG.E.128" not in assembly["unaligned"]["sass"]


@pytest.mark.parametrize("name", [*ALIGNED, "unaligned"])
def test_nothing_spills_to_local_memory(assembly, name):
    assert "LDL" not in assembly[name]["sass"]
    assert "STL" not in assembly[name]["sass"]


def test_arrivals_are_releases_and_waits_are_acquires_at_system_scope(assembly):
    assert re.search(r"\b(atom|red)\.global\.sys\.release\.add\.u32", assembly["meeting"]["ptx"])
    assert "ld.global.sys.acquire.b32" in assembly["meeting"]["ptx"]


def test_one_gpu_alone_meets_nobody(assembly):
    assert "atom." not in assembly["all_reduce"]["ptx"]
    assert "bar.sync" not in assembly["all_reduce"]["ptx"]
