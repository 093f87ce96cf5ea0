"""Every cache of a module states its bound, and who clears it (`weft.caches`)."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier, Thread

import pytest

from tests.architecture.caches import unstated_in
from tests.architecture.layers import ROOT
from weft.caches import BoundedCache, cached


def test_every_cache_states_its_bound_and_who_clears_it() -> None:
    found = unstated_in(ROOT)
    assert found == {}, "use weft.caches, or say `Bound: … Cleared: ….` in the text below"


STATED = {
    "in words": '_x: dict[int, int] = {}\n"""What for. Bound: the ops there are.\nCleared: never."""',
    "by a class": "_x = BoundedCache[int, int](8)",
    "a constant": "_x = {1: 2}\n_y = [3]\n_z: int = 4",
    "names of the module": "__all__: list[str] = []",
    "in a function": "def f():\n    x = {}\n    return x",
    "by the decorator": "@cached(8)\ndef f(): ...",
}
UNSTATED = {
    "a dict": "_x = {}",
    "a dict with a type": "_x: dict[int, int] = {}",
    "a list": "_x: list[int] = []",
    "a set": "_x: set[int] = set()",
    "weak keys": "_x = weakref.WeakKeyDictionary()",
    "weak values with a type": "_x = WeakValueDictionary[int, int]()",
    "a default": "_x = defaultdict(list)",
    "no bound": '_x = {}\n"""Cleared: never."""',
    "nobody clears": '_x = {}\n"""Bound: the ops there are."""',
    "the text of another": '_x = {}\n_y = 1\n"""Bound: one. Cleared: never."""',
}
DECORATORS = ("cache", "functools.cache", "lru_cache", "lru_cache(maxsize=8)", "functools.lru_cache(None)")


def names_in(text: str, folder: Path) -> list[str]:
    (folder / "weft").mkdir()
    (folder / "weft" / "x.py").write_text(text)
    return list(unstated_in(folder))


@pytest.mark.parametrize("case", STATED)
def test_what_is_stated_passes(case: str, tmp_path: Path) -> None:
    assert names_in(STATED[case], tmp_path) == []


@pytest.mark.parametrize("case", UNSTATED)
def test_what_is_not_stated_fails(case: str, tmp_path: Path) -> None:
    assert names_in(UNSTATED[case], tmp_path) == ["weft.x._x"]


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("where", ["", "class C:\n    "])
def test_a_function_that_remembers_without_saying_for_how_long_fails(
    decorator: str, where: str, tmp_path: Path
) -> None:
    indent = " " * (len(where) - len("class C:\n")) if where else ""
    assert names_in(f"{where}@{decorator}\n{indent}def f(): ...", tmp_path) == ["weft.x.f"]


def test_a_bounded_cache_keeps_to_its_bound_in_many_threads() -> None:
    cache = BoundedCache[tuple[int, int], int](10)
    start = Barrier(8)

    def fill(thread: int) -> None:
        start.wait()
        for number in range(500):
            cache[thread, number] = number
            assert cache.get((thread, number), number) == number

    threads = [Thread(target=fill, args=[thread]) for thread in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(cache) == 10


def test_putting_in_what_is_there_puts_nothing_out() -> None:
    cache = BoundedCache[str, int](2)
    cache["a"], cache["b"], cache["a"] = 1, 2, 3
    assert cache == {"a": 3, "b": 2}


def test_caches_are_emptied_by_whom_they_name() -> None:
    clears = []
    cache = BoundedCache[str, int](2, cleared_by=clears.append)
    cache["a"] = 1
    made = []

    @cached(2, cleared_by=clears.append)
    def noted(x: int) -> int:
        made.append(x)
        return x

    noted(1), noted(1)
    for clear in clears:
        clear()
    noted(1)
    assert (cache, made) == ({}, [1, 1])
