"""What each of several processes runs for `test_several_processes`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

import weft
from tests.state.cases import case, check
from weft import DeviceMesh, Fused, NamedMapping, P
from weft.checkpoint.progress import Count, shown
from weft.runtime.processes import passing
from weft.runtime.processes.group import group_of
from weft.runtime.processes.neighbours import neighbours_of
from weft.runtime.processes.transport import exchange, reading
from weft.state import transferring

HERE = int(os.environ["RANK"])


def meshes() -> list[DeviceMesh]:
    """One of each process, and some of both."""
    devices = [weft.CPU(i) for i in range(4)]
    return [
        DeviceMesh(devices[:2], (2,), ("a",)),
        DeviceMesh(devices[2:], (2,), ("b",)),
        DeviceMesh(devices, (2, 2), ("a", "b")),
        DeviceMesh(devices[1:], (3,), ("a",)),
    ]


def check_states() -> None:
    """States at random, in messages of any size."""
    for seed in range(24):
        found = case(seed, meshes())
        plan = weft.plan_state(found.state, found.wanted.__getitem__)
        with weft.comm_log() as log:
            moved = weft.transfer_state(
                found.state, found.wanted.__getitem__, bucket=[16, 64, 1 << 20][seed % 3], verify=seed % 2 == 0
            )
        assert log.total_bytes == plan.bytes_received.total
        check(found, moved)


def check_fused() -> None:
    """Parts become one elsewhere, in a narrower dtype and in place, and come back."""
    trainer, server, both, _ = meshes()
    parts = {name: torch.randn(size, 6) for name, size in (("q", 7), ("k", 3), ("v", 2))}
    state = weft.shard(parts, trainer, P("a"))
    whole = torch.cat(list(parts.values())).bfloat16()
    names = {"qkv": ("q", "k", "v")}
    served = weft.transfer_state(state, NamedMapping(server, P("b")), torch.bfloat16, names=names)
    assert torch.equal(served["qkv"].full_tensor(), whole)
    into = {"qkv": weft.zeros(12, 6, dtype=torch.bfloat16, mapping=NamedMapping(both, P("b", "a")))}
    weft.transfer_state(state, into=into, names=names, verify=True)
    assert torch.equal(into["qkv"].full_tensor(), whole)
    back = weft.transfer_state(
        into, NamedMapping(trainer, P(None, "a")), names={Fused(("q", "k", "v"), sizes=(7, 3, 2)): "qkv"}
    )
    for name, x in parts.items():
        assert torch.equal(back[name].full_tensor(), x.bfloat16())


def check_pending() -> None:
    """What is pending is reduced on its way."""
    both = meshes()[2]
    x, w = torch.randn(4, 8), torch.randn(8, 4)
    pending = weft.shard(x, both, P(None, "a")) @ weft.shard(w, both, P("a"))
    moved = weft.transfer_state({"y": pending, "w": weft.shard(w, both, P("b"))}, NamedMapping(both, P("a")))
    torch.testing.assert_close(moved["y"].full_tensor(), x @ w)
    assert torch.equal(moved["w"].full_tensor(), w)


def check_messages(*, near: bool) -> None:
    """Many tensors take as many messages as the plan says, and no more bytes; neighbours send addresses alone."""
    devices = [weft.CPU(0), weft.CPU(2)]  # one of each process
    one, other = (DeviceMesh(devices, (2,), ("x",)), DeviceMesh(devices[::-1], (2,), ("x",)))
    state = weft.shard({str(i): torch.ones(64, 4) for i in range(100)}, one, P("x"))
    sent: list[int] = []

    def counting(group, outgoing, incoming, *more):  # type: ignore[no-untyped-def]
        sent.extend(x.nbytes for listed in outgoing.values() for x in listed)
        return exchange.post(group, outgoing, incoming, *more)

    plan = weft.plan_state(state, NamedMapping(other, P("x")), bucket=16384)
    with mock.patch.object(passing, "post", counting):
        weft.transfer_state(state, NamedMapping(other, P("x")), bucket=16384)
    assert plan.messages == 8
    if near:  # all at once, and a byte of thanks
        assert sent == [100 * 8, 1], sent
        return
    assert len(sent) * 2 == plan.messages
    assert sum(sent) * 2 == plan.bytes_received.total


def check_progress() -> None:
    """Who gives counts as who takes, in the bytes that travel; the first of those that have to do with it shows a bar."""
    trainer, server, both, last = meshes()
    parts = {"a": torch.randn(64, 4), "b": torch.randn(6), "one": torch.tensor(1.0)}
    counts: list[Count] = []
    bars: list[bool | None] = []

    @contextmanager
    def watched(what: str, total: int, wanted: bool, *, here: bool | None = None) -> Iterator[Count]:
        with shown(what, total, wanted=False, here=here) as count:
            counts.append(count)
            bars.append(here)
            yield count

    with mock.patch.object(transferring, "shown", watched):
        for mesh, to, dtype in ((trainer, server, torch.float64), (both, last, torch.bfloat16), (server, server, None)):
            state = {name: weft.shard(x, mesh, P(*mesh.axis_names[: x.dim() // 2])) for name, x in parts.items()}
            weft.transfer_state(state, NamedMapping(to, P(to.axis_names[0])), dtype, bucket=128, progress=True)
    assert [count.done for count in counts] == [count.total for count in counts], counts
    assert [bool(count.total) for count in counts] == [True, True, HERE == 1]
    assert bars == [HERE == 0, HERE == 0, HERE == 1]


def check_damage(*, near: bool) -> None:
    """A byte that changes on its way is found, and both processes are told."""
    trainer, server, _, _ = meshes()
    state = weft.shard({"a": torch.ones(8), "b": torch.ones(8)}, trainer, P("a"))

    def damaging(group, outgoing, incoming, *more):  # type: ignore[no-untyped-def]
        for x in (x for listed in outgoing.values() for x in listed):
            x[3] ^= 1
        return exchange.post(group, outgoing, incoming, *more)

    def misreading(process, theirs, ours):  # type: ignore[no-untyped-def]
        reading.read_memory(process, theirs, ours)
        ctypes.memset(ours[0][0] + 3, 7, 1)

    said = "nothing"
    patched = (
        mock.patch.object(passing, "read_memory", misreading) if near else mock.patch.object(passing, "post", damaging)
    )
    with patched:
        try:
            weft.transfer_state(state, NamedMapping(server, P("b")), verify=True)
        except weft.WeftError as error:
            said = str(error)
    if HERE == 1:
        assert "1 of the messages that this process received did not arrive as they were sent" in said, said
        assert "from process 0, with parts of 'a', 'b'" in said, said
    else:
        assert "another process received messages that did not arrive as they were sent" in said, said


def check_different_calls() -> None:
    """Processes that ask for different things are told."""
    trainer, server, _, _ = meshes()
    state = weft.shard({"a": torch.ones(8, 4)}, trainer, P("a"))
    wanted = P("b") if HERE == 0 else P(None, "b")
    try:
        weft.transfer_state(state, NamedMapping(server, wanted))
    except weft.MismatchError as error:
        assert "transfer_state of 1 tensor," in str(error), error
    else:
        raise AssertionError("nobody was told")


def main() -> None:
    """All of it."""
    weft.distributed.init(devices_per_process=2, timeout=60)
    found = neighbours_of(group_of((0, 1)), torch.device("cpu"))
    assert set(found.readable) == found.readers
    for near in [True, False] if found.readable else [False]:
        with mock.patch.object(passing, "neighbours_of", lambda *_, near=near: found if near else reading.NOBODY):
            check_states()
            check_fused()
            check_pending()
            check_messages(near=near)
            check_progress()
            check_damage(near=near)
    check_different_calls()
    print("done")


if __name__ == "__main__":
    main()
