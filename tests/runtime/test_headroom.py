"""Room for copies: it is there before somebody needs it, nobody loses what is in it, and nothing is taken."""

from __future__ import annotations

import ctypes
import mmap
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from weft.runtime.memory import headroom
from weft.runtime.memory.headroom import populate, room_for
from weft.runtime.memory.host_memory import empty_cache, keep_freed_memory
from weft.runtime.memory.host_pool import pool

SIZE, COUNT = 4 << 20, 8
PAGES = SIZE // mmap.PAGESIZE


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    if not keep_freed_memory():
        pytest.skip("the C library cannot be told to keep memory")
    yield
    empty_cache()


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def filled_blocks() -> tuple[list[torch.Tensor], int]:
    """New blocks with something in them, and the page faults that it took."""
    before = faults()
    blocks = [torch.empty(SIZE // 4).fill_(i) for i in range(COUNT)]
    return blocks, faults() - before


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def can_populate() -> bool:
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return ctypes.CDLL(None).madvise(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE), headroom._POPULATE_WRITE) == 0


PROGRAM = """
from tests.runtime.test_headroom import COUNT, SIZE, filled_blocks
from weft.runtime.memory.headroom import populate, room_for
import weft.tensor
if {room}:
    populate(room_for([SIZE] * COUNT))
print(filled_blocks()[1])
"""


def faults_of_blocks(room: bool) -> int:
    """The page faults of new blocks in a program of its own, whose memory nobody has used before."""
    program = [sys.executable, "-c", PROGRAM.format(room=room)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@pytest.mark.multiprocess
def test_blocks_fault_no_pages_where_room_was_made() -> None:
    if not can_populate():
        pytest.skip("this system faults pages in only when somebody writes")
    assert faults_of_blocks(room=False) > COUNT * PAGES // 2, "this would see pages that nobody has brought"
    assert faults_of_blocks(room=True) < PAGES


def test_what_is_in_memory_stays_in_it() -> None:
    blocks, _ = filled_blocks()
    populate([(block.data_ptr(), SIZE) for block in blocks])
    assert all(bool((block == i).all()) for i, block in enumerate(blocks))


def test_room_is_free_for_whoever_asks_next() -> None:
    assert len(room_for([SIZE] * COUNT)) >= COUNT
    before = address_space()
    for _ in range(20):
        room_for([SIZE] * COUNT)
    assert address_space() - before < COUNT * SIZE


@pytest.mark.parametrize("sizes", [[], [100, 2000], [1 << 60]], ids=["nothing", "small blocks", "more than there is"])
def test_there_is_no_room_for(sizes: list[int]) -> None:
    assert room_for(sizes) == ()


def test_where_nothing_is_kept_no_room_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "bound", 0)
    assert room_for([SIZE]) == ()


def test_addresses_where_nothing_lies_are_passed_over() -> None:
    populate([(mmap.PAGESIZE, SIZE)])
