"""A program in which torch refuses elements that one of its processes has; all raise it, and go on together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation has it

import weft
from weft import P

HERE, COUNT = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def last(x: torch.Tensor, value: object) -> torch.Tensor:
    """The same with another last row, which the last process has."""
    x = x.clone()
    x[-1] = value
    return x


def cases(whole: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    """What torch refuses of the last row alone; `whole` lays a tensor out."""
    rows, ones = 2 * COUNT, torch.ones(2 * COUNT, 3)
    wrong = last(torch.zeros(rows, dtype=torch.long), 99)
    numbers = torch.arange(1, rows + 1)
    broken, singular = (last(torch.eye(3).repeat(rows, 1, 1), value) for value in (torch.nan, 0.0))
    return {
        "index": lambda: whole(ones).gather(1, whole(wrong[:, None])),
        "embedding": lambda: F.embedding(whole(wrong), torch.ones(4, 3)),
        "classes": lambda: F.cross_entropy(whole(ones), whole(wrong)),
        "one_hot": lambda: F.one_hot(whole(wrong), 5),
        "zero": lambda: whole(numbers) // whole(last(numbers, 0)),
        "probabilities": lambda: F.binary_cross_entropy(whole(last(ones, 2.0)), whole(ones)),
        "eigenvalues": lambda: torch.linalg.eig(whole(broken))[0].real * 2,
        "symmetric": lambda: torch.linalg.eigh(whole(broken))[0],
        "factors": lambda: torch.linalg.lu_factor_ex(whole(singular), check_errors=True)[0],
        "iterated": lambda: torch.lobpcg(whole(broken), k=1)[0],
    }


def told(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, IndexError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def held() -> int:
    """How many files and threads this process has."""
    return len(os.listdir("/proc/self/fd")) + len(os.listdir("/proc/self/task"))


def loops(mesh: weft.DeviceMesh) -> None:
    """Each is refused by all, in the block that uses what it gives; what follows is right."""
    whole: Callable[[torch.Tensor], torch.Tensor] = lambda x: weft.shard(x, mesh, P("a"))  # noqa: E731 - a name for it
    plain = cases(lambda x: x)
    y = whole(torch.arange(4.0 * COUNT))
    before = 0
    for name, call in cases(whole).items():
        before = before or (held() if name == "classes" else 0)  # by now there are connections to let go of
        for _ in range(2):  # the second time, it is a call like one before
            said = told(lambda call=call: (call() * 2).sum().item())
            assert said == told(plain[name]), (name, said)
            parts = weft.from_local([torch.ones(2)], weft.NamedMapping(mesh, P("a")))
            assert parts.shape == (2 * COUNT,)  # which they tell each other
            assert (y * 2).sum().item() == 2 * torch.arange(4.0 * COUNT).sum()
            assert y.full_tensor().tolist() == torch.arange(4.0 * COUNT).tolist()
    assert held() < before + 20, (before, held())  # a refusal would keep eight or more


def columns(mesh: weft.DeviceMesh) -> None:
    """What is refused of rows is refused by those that have no column of them too, as an error of the same kind."""
    table, wrong = weft.shard(torch.ones(4, 1), mesh, P(None, "a")), last(torch.zeros(4, dtype=torch.long), 99)
    for given in (wrong, weft.shard(wrong, mesh, P("a"))):
        assert told(lambda given=given: F.embedding(given, table).sum().item()).startswith("IndexError")
        assert told(lambda given=given: table.index_select(0, given).sum().item()).startswith("IndexError")
    assert table.sum().item() == 4


def large(mesh: weft.DeviceMesh) -> None:
    """Messages that are waited for by a thread of their own leave nothing behind either."""
    numbers = torch.arange(1, 20000 * COUNT + 1)
    x, wrong = (weft.shard(each, mesh, P("a")) for each in (numbers, last(numbers, 0)))
    before = 0
    for turn in range(6):
        said = told(lambda: (x // wrong).full_tensor() * 2)
        assert said == "RuntimeError: ZeroDivisionError", said
        assert torch.equal(x.full_tensor(), numbers)
        before = held() if turn == 2 else before
    assert held() < before + 12, (before, held())


def training(mesh: weft.DeviceMesh) -> None:
    """Batches with a class that there is not are left out by all processes; the others train as in one."""
    losses = []
    for lay in (lambda x: x, lambda x: weft.shard(x, mesh, P("a"))):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 4)
        if losses:
            weft.nn.shard_module(model, mesh, {"*": P()})
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        seen = []
        for step in range(6):
            batch = torch.randn(2 * COUNT, 3)
            classes = torch.arange(2 * COUNT) % 4
            classes[-1 if step == 4 else 0] = 7 if step in (2, 4) else 0
            try:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(lay(batch)), lay(classes))
                loss.backward()
                optimizer.step()
                seen.append(loss.item())
            except IndexError as error:
                assert str(error) == "Target 7 is out of bounds.", error
                seen.append(-1.0)
        losses.append(seen)
    torch.testing.assert_close(*map(torch.tensor, losses))
    assert losses[0].count(-1.0) == 2


def ahead(mesh: weft.DeviceMesh) -> None:
    """What was asked for before arrives, though one process refuses something meanwhile."""
    x = weft.shard(torch.arange(2.0 * COUNT), mesh, P("a"))
    arriving = weft.all_gather(x, async_op=True)
    one = weft.shard(last(torch.ones(2 * COUNT, dtype=torch.long), 0), mesh, P("a"))
    said = told(lambda: (1 // one).sum().item())
    assert said == "RuntimeError: ZeroDivisionError", said
    assert arriving.full_tensor().tolist() == list(range(2 * COUNT))
    assert x.sum().item() == sum(range(2 * COUNT))


def guests() -> None:
    """Who has no device of a mesh is told as well."""
    mesh = weft.make_mesh({"b": 1}, devices=weft.devices()[:1])
    x = weft.shard(torch.tensor([1, 0]), mesh, P("b"))
    said = told(lambda: weft.all_gather(1 // x).full_tensor() + 1)
    assert said == "RuntimeError: ZeroDivisionError", said
    for _ in range(2):  # the first process refuses both before the others have heard of any
        said = told(lambda: weft.all_gather(1 // x).full_tensor() + 1)
        assert said == "RuntimeError: ZeroDivisionError", said
    twice = weft.local_map(lambda part: part * 2, P("b"), P("b"), mesh=mesh)
    for _ in range(2):
        assert told(lambda: twice(x).full_tensor()).startswith(
            "RuntimeError: local_map runs the function on the devices of"
        )
    assert x.full_tensor().tolist() == [1, 0]
    mixed = x.bool().select_scatter(torch.tensor(7), 0, 1)  # a guest has nothing that would tell the dtype
    assert mixed.dtype is torch.bool
    assert mixed.full_tensor().tolist() == [True, True]
    square = weft.shard(torch.eye(3) + 1, mesh, P())  # of ones alone, no matrix would be regular
    assert torch.linalg.lstsq(square, square, driver="gels")[0].trace().round().item() == 3
    assert told(lambda: x.slice_scatter(torch.ones(2), 0, 0, 1)).startswith("RuntimeError: expected src to have a size")


def guests_know_by_names() -> None:
    """Who has no device of a mesh tells by names what others tell by memory, and by the index what they refuse."""
    mesh = weft.make_mesh({"b": 1}, devices=weft.devices()[:1])
    x = weft.shard(torch.zeros(6, 4), mesh, P("b"))
    before, overlap = x.full_tensor(), "RuntimeError: unsupported operation: some elements of the input tensor and the"
    assert told(lambda: x[0].copy_(x.reshape(-1)[0])).startswith(overlap)
    assert told(lambda: x[1:].copy_(x[:-1])).startswith(overlap)
    assert told(lambda: x[1:].copy_(x[:-1].clone())) == "nothing"
    for _ in range(2):
        for call in (lambda: x.take(torch.tensor([99])), lambda: x.put_(torch.tensor([99]), torch.ones(1))):
            assert told(call) == "IndexError: out of range: tried to access index 99 on a tensor of 24 elements."
    assert torch.equal(x.full_tensor(), before)


def guests_log_alike() -> None:
    """A copy is no view of what it was made of: what was brought of the one does not serve for the other."""
    some = max(1, COUNT - 1)
    mesh = weft.make_mesh({"b": some}, devices=weft.devices()[:some])
    for size in (1, 2):
        x = weft.shard(torch.arange(2.0 * size).reshape(size, 2), mesh, P("b"))
        with weft.comm_log() as log:
            torch.func.hessian(lambda z: F.layer_norm(z, z.shape[-1:]).sum())(x)
        # compared as what all processes bring
        assert weft.shard(torch.tensor([len(log)]), weft.make_mesh({"a": COUNT}), P()).tolist() == [len(log)]


def alike(mesh: weft.DeviceMesh) -> None:
    """What all refuse by themselves, one soon after the other, keeps nobody waiting."""
    x = weft.shard(torch.ones(2 * COUNT, 3), mesh, P("a"))
    start = time.monotonic()
    for _ in range(5):
        for index in (torch.tensor([0, 99]), weft.shard(torch.tensor([0, 99]), mesh, P())):
            assert told(lambda index=index: x[index]).startswith("IndexError: index 99 is out of bounds")
            assert told(lambda index=index: x.index_fill(0, index, 1.0)).startswith("IndexError: index 99 is out of")
    assert x.sum().item() == 6 * COUNT
    assert time.monotonic() - start < 5


def without_elements(mesh: weft.DeviceMesh) -> None:
    """An index that all have is refused by each in the call itself, also by those that have nothing to index."""
    wrong, full, one = torch.tensor([99]), torch.full((7, 1), 99), torch.ones(1, 1)
    x = weft.shard(torch.zeros(7, 1), mesh, P(None, "a"))  # which the first process has, and the others have nothing of
    calls: dict[str, Callable[[], object]] = {
        "index_add_": lambda: x.index_add_(0, wrong, one),
        "index_copy_": lambda: x.index_copy_(0, wrong, one),
        "index_fill_": lambda: x.index_fill_(0, wrong, 1.0),
        "index_put_": lambda: x.index_put_((wrong,), one),
        "index_select": lambda: x.index_select(0, wrong),
        "lookup": lambda: x[wrong],
        "gather": lambda: x.gather(0, full),
        "scatter_": lambda: x.scatter_(0, full, full.float()),
        "embedding": lambda: F.embedding(wrong, x),
        "take": lambda: x.take(wrong),
    }
    for _ in range(2):
        for name, call in calls.items():
            assert "99" in told(call), (name, told(call))
            assert x.sum().item() == 0, name


def later(mesh: weft.DeviceMesh) -> None:
    """Nobody waits for who is slow and will refuse the same by itself."""
    x = weft.shard(torch.zeros(COUNT, dtype=torch.long), mesh, P("a"))
    time.sleep(0.8 * HERE)
    said = told(lambda: 1 // x)
    assert said == "RuntimeError: ZeroDivisionError", said
    assert x.sum().item() == 0


def end_early(mesh: weft.DeviceMesh) -> None:
    """The program ends after a refusal where others had come to meet the first process for the first time."""
    mapping, rows = weft.NamedMapping(mesh, P("a")), 2 if HERE else 3
    try:
        weft.from_local([torch.ones(rows)], mapping, shape=(2 * COUNT,)).sum().item()
    except ValueError as error:
        assert str(error).startswith("from_local: the shard of device 0 has shape (3,)"), error
        line = end_early.__code__.co_firstlineno + 4
        assert not HERE or error.__notes__ == [f"process 0 has refused it, at {__file__}:{line}"], error.__notes__
    assert weft.from_local([torch.ones(2)], mapping).sum().item() == 2 * COUNT


def end_large(mesh: weft.DeviceMesh) -> None:
    """The program ends after a refusal where others waited for large messages of the first process."""
    numbers, wrong = torch.arange(1, 20000 * COUNT + 1), torch.ones(20000 * COUNT, dtype=torch.long)
    wrong[0] = 0
    x, y = (weft.shard(each, mesh, P("a")) for each in (numbers, wrong))
    assert torch.equal(x.full_tensor(), numbers)
    assert told(lambda: (x // y).full_tensor() * 2) == "RuntimeError: ZeroDivisionError"


def compared(mesh: weft.DeviceMesh) -> None:
    """What processes bring next is compared by notes that all number alike (`WEFT_CHECK=1`)."""
    first = weft.make_mesh({"b": 1}, devices=weft.devices()[:1])
    for _ in range(3):
        x = weft.shard(torch.tensor([1, 0]), first, P("b"))
        assert told(lambda x=x: weft.all_gather(1 // x).full_tensor() + 1) == "RuntimeError: ZeroDivisionError"
        assert weft.shard(torch.ones(COUNT), mesh, P("a")).sum().item() == COUNT


def main() -> None:
    weft.distributed.init(timeout=30)
    mesh = weft.make_mesh({"a": COUNT})
    if sys.argv[1:]:
        {"early": end_early, "large": end_large, "compared": compared}[sys.argv[1]](mesh)
        return
    start = time.monotonic()
    for part in (loops, columns, large, training, ahead, alike, without_elements, later):
        part(mesh)
    guests()
    guests_know_by_names()
    assert time.monotonic() - start < 25, "somebody was waited for in vain"
    guests_log_alike()  # which imports much
    print("done")


if __name__ == "__main__":
    sys.exit(main())
