"""Communication that goes on meanwhile keeps what it reads until it has read it, and no longer."""

from __future__ import annotations

import threading
import weakref

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
