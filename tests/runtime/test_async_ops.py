"""Communication that goes on meanwhile keeps what it reads until it has read it, and no longer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from weft.runtime.processes.transport.async_ops import Arriving, issue, settle

WIRES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("wire", WIRES)
def test_what_was_read_is_free_once_it_has_arrived(wire: str) -> None:
    device = torch.device(wire)

    def begun() -> tuple[Arriving, weakref.ref[torch.Tensor]]:
        x = torch.ones(3, device=device)
        return issue(lambda: (x + 1,), [x], device), weakref.ref(x)

    arriving, source = begun()
    (found,) = arriving.wait()
    assert source() is None
    assert found.tolist() == [2, 2, 2]


@pytest.mark.gpu
def test_what_is_read_is_not_given_to_others_before_it_has_been_read() -> None:
    device, size = torch.device("cuda"), 1 << 26
    for _ in range(3):
        x = torch.ones(size, device=device)

        def read(x: torch.Tensor = x) -> tuple[torch.Tensor, ...]:
            torch.cuda._sleep(50_000_000)
            return (x + 1,)

        arriving = issue(read, [x], device)
        del x, read
        torch.full((size,), 7.0, device=device)  # would get the memory that is still to be read
        assert arriving.wait()[0].unique().tolist() == [2]


def test_threads_that_ask_at_once_all_get_theirs() -> None:
    found: dict[int, list[float]] = {}

    def ask(number: int) -> None:
        for each in range(20):
            tensor = torch.full((2,), float(number * 100 + each))
            arriving = issue(lambda tensor=tensor: (tensor * 2,), [tensor], torch.device("cpu"))
            found.setdefault(number, []).append(float(arriving.wait()[0][0]))

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    settle()
    assert found == {number: [2.0 * (number * 100 + each) for each in range(20)] for number in range(4)}


@pytest.mark.parametrize("has_ended", [True, False])
def test_what_failed_is_heard_of_alike_whether_or_not_it_has_ended(has_ended: bool) -> None:
    """A process in which it has ended, and one in which it has not, raise at the same calls, and make the others again."""
    wire, go_on = torch.device("cpu"), threading.Event()

    def failing() -> tuple[torch.Tensor, ...]:
        go_on.wait(20)
        raise ValueError("no")

    def made() -> tuple[torch.Tensor, ...]:
        return (torch.ones(1),)

    def heard(call: Callable[[], object]) -> str | None:
        try:
            call()
        except ValueError as error:
            return str(error)
        return None

    first = issue(failing, [], wire)
    if has_ended:
        go_on.set()
        while not first.done():
            time.sleep(0.001)
    unaware = issue(made, [], wire)
    go_on.set()
    assert [heard(first.wait), heard(unaware.wait)] == ["no", "no"]
    assert [heard(settle), heard(issue(made, [], wire).wait)] == [None, None]

    go_on.clear()
    first = issue(failing, [], wire)
    if has_ended:
        go_on.set()
        while not first.done():
            time.sleep(0.001)
    threading.Timer(0.05, go_on.set).start()
    assert [heard(settle), heard(settle), heard(issue(made, [], wire).wait)] == ["no", None, None]
