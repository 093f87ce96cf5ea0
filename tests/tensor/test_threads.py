"""Threads: what they compute on their own and on shared tensors is right, and what one of them sets is its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch

import weft
from weft import P
from weft.errors import ReshardError
from weft.sharding.layout import Layout
from weft.watch import comm_log, setting

COUNT = 8


def together(work: Callable[[int], None], count: int = COUNT) -> None:
    """Runs work in several threads that begin at once, and raises what any of them raised."""
    gate = threading.Barrier(count)

    def begun(number: int) -> None:
        gate.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(begun, number) for number in range(count)]:
            done.result()


def test_threads_that_share_a_pending_tensor_all_see_its_value() -> None:
    mesh = weft.make_mesh({"a": 4})
    for _ in range(30):
        x = weft.shard(torch.arange(12.0).reshape(3, 4), mesh, P(None, "a"))
        pending, expected = x @ x.mT, x.full_tensor() @ x.full_tensor().mT

        def work(number: int, pending: weft.Tensor = pending, expected: torch.Tensor = expected) -> None:
            seen = pending.exp() if number % 2 else sum(pending.local_shards).exp()  # type: ignore[union-attr]
            whole = seen.full_tensor() if isinstance(seen, weft.Tensor) else seen
            torch.testing.assert_close(whole, expected.exp())

        together(work)


def test_who_comes_late_for_the_pieces_of_a_pending_tensor_gets_them() -> None:
    """A thread that has found none, and asks when another has just made them."""
    x = weft.shard(torch.arange(12.0).reshape(3, 4), weft.make_mesh({"a": 4}), P(None, "a"))
    pending = x @ x.mT
    value = pending.wait()._value
    assert vars(type(value))["pieces"].__get__(value, type(value)) is value.pieces


def test_layouts_made_in_several_threads_are_one() -> None:
    for size in range(2, 30):
        mesh = weft.make_mesh({"a": size, "b": 1}, devices=[weft.CPU(i) for i in range(size)])
        found: list[Layout] = []
        together(lambda _, mesh=mesh, found=found: found.append(Layout(mesh, [("a",), ("b",)])))  # type: ignore[misc]
        assert len({id(layout) for layout in found}) == 1


def test_ops_in_several_threads_on_own_and_shared_tensors() -> None:
    mesh = weft.make_mesh({"a": 2, "b": 2})
    torch.manual_seed(0)
    shared = torch.randn(6, 5, dtype=torch.float64)
    split = weft.shard(shared, mesh, P("a", "b"))
    until = time.monotonic() + float(os.environ.get("WEFT_TEST_THREADS_SECONDS", "0"))

    def work(number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        rounds = count()
        while next(rounds) < 20 or time.monotonic() < until:
            plain = torch.randn(5, 6, dtype=torch.float64, generator=generator, device="cpu").to(shared.device)
            own = weft.shard(plain, mesh, P(None, ("b", "a"))).requires_grad_()
            (own @ split).softmax(0)[1:].square().sum().backward()
            plain.requires_grad_()
            (plain @ shared).softmax(0)[1:].square().sum().backward()
            torch.testing.assert_close(own.grad.full_tensor(), plain.grad)  # type: ignore[union-attr]

    together(work)


def test_a_policy_and_a_log_are_those_of_the_thread_that_opened_them() -> None:
    x = weft.shard(torch.ones(4, 4), weft.make_mesh({"a": 2}), P("a"))
    with weft.comm_log() as log, weft.reshard_policy("raise"):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: x.flip(0).sum().item()).result() == 16
        assert len(log) == 0
        with pytest.raises(ReshardError):
            x.flip(0)


def test_a_policy_of_one_task_is_not_that_of_another() -> None:
    x = weft.shard(torch.ones(4, 4), weft.make_mesh({"a": 2}), P("a"))

    async def strict(begun: asyncio.Event, done: asyncio.Event) -> None:
        with weft.reshard_policy("raise"):
            begun.set()
            await done.wait()
            with pytest.raises(ReshardError):
                x.flip(0)

    async def lax(begun: asyncio.Event, done: asyncio.Event) -> None:
        await begun.wait()
        assert x.flip(0).sum().item() == 16
        done.set()

    async def both() -> None:
        events = asyncio.Event(), asyncio.Event()
        await asyncio.gather(strict(*events), lax(*events))

    asyncio.run(both())


def test_a_policy_holds_in_the_backward_pass_that_it_is_set_around() -> None:
    mesh = weft.make_mesh({"a": 2})
    x = weft.shard(torch.ones(4, 4), mesh, P("a")).requires_grad_()
    y = (x.flip(0) * x).sum()
    with weft.comm_log() as log:
        y.backward(retain_graph=True)
    assert log.total_bytes > 0
    with weft.reshard_policy("raise"), pytest.raises(ReshardError):
        y.backward()


def test_a_thread_of_torch_sees_the_log_that_is_open_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward passes on GPUs run in threads of torch's own; what is paused there once must not stay as it was then."""
    monkeypatch.setattr(setting, "_is_of_torch", lambda: threading.current_thread() is not threading.main_thread())
    x = weft.shard(torch.ones(4, 4), weft.make_mesh({"a": 2}), P("a"))

    def of_torch() -> None:
        with comm_log.paused():
            x.flip(0)
        x.flip(0)

    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            with weft.comm_log() as log:
                pool.submit(of_torch).result()
            assert len(log) == 1
