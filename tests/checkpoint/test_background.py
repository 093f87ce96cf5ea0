"""`save(..., wait=False)`: what is saved is the state at the call, whatever happens to it while it is written."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from rich.errors import LiveError
from rich.progress import Progress

import weft
from weft import P
from weft.checkpoint import CheckpointError, Keeper, background, load, save, saving, verify
from weft.checkpoint.files.lock import FolderLock

MESH = weft.make_mesh({"dp": 2, "tp": 3})


@pytest.fixture(autouse=True)
def nothing_running() -> Iterator[None]:
    yield
    background._running = None


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writing begins when this is set."""
    go = threading.Event()
    write = saving.write_file
    monkeypatch.setattr(saving, "write_file", lambda *arguments: (go.wait(30), write(*arguments))[1])
    yield go
    go.set()


STATES = {
    "plain": lambda: torch.arange(6.0),
    "a parameter": lambda: torch.nn.Parameter(torch.arange(6.0)),
    "a view": lambda: torch.arange(24.0)[6:12],
    "columns": lambda: torch.arange(24.0).view(4, 6).mT,
    "memory of NumPy": lambda: torch.from_numpy(torch.arange(6.0).numpy()),
    "memory that NumPy has": lambda: torch.arange(6.0).numpy() is not None and torch.arange(6.0),
    "sharded": lambda: weft.shard(torch.arange(24.0).view(4, 6), MESH, P("dp", "tp")),
    "replicated": lambda: weft.shard(torch.arange(6.0), MESH, P()),
    "a sharded parameter": lambda: torch.nn.Parameter(weft.shard(torch.arange(24.0).view(4, 6), MESH, P("tp"))),
}


@pytest.mark.parametrize("kind", STATES)
def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path, kind: str, held: threading.Event) -> None:
    x = STATES[kind]()
    before = (x.detach().full_tensor() if isinstance(x, weft.Tensor) else x.detach()).clone()
    handle = save({"x": x, "step": 1}, tmp_path, wait=False)
    with torch.no_grad():
        x.mul_(-1).sub_(3)
    assert not handle.done()
    held.set()
    handle.wait()
    assert torch.equal(load(tmp_path)["x"], before)
    assert verify(tmp_path).tensors == 1


@pytest.mark.parametrize("memory", ["separate"], indirect=True)  # tensors here are plain
@pytest.mark.parametrize("when", ["while it is saved", "later"])
def test_a_tensor_may_grow_in_place(tmp_path: Path, when: str, held: threading.Event) -> None:
    module = torch.nn.Module()
    module.register_buffer("queue", torch.arange(6.0))
    handle = save({"module": module, "x": torch.ones(3)}, tmp_path, wait=False)
    if when == "later":
        held.set()
        handle.wait()
    module.queue.resize_(600).fill_(7)
    held.set()
    handle.wait()
    assert load(tmp_path)["module"]["queue"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_training_goes_on_while_it_is_saved(tmp_path: Path, held: threading.Event) -> None:
    model = weft.nn.shard_module(torch.nn.Linear(6, 6), MESH, {"weight": P("tp", "dp")})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 6)).square().sum().backward()
        optimizer.step()

    step()
    before = weft.checkpoint.full_state_dict(model)
    moment = optimizer.state[model.weight]["exp_avg"].full_tensor().clone()
    handle = save({"model": model, "optimizer": optimizer}, tmp_path, wait=False)
    for _ in range(3):
        step()
    held.set()
    handle.wait()
    found = load(tmp_path)
    assert torch.equal(found["model"]["weight"], before["weight"])
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], moment)


def test_the_handle_says_how_far_it_is(tmp_path: Path, held: threading.Event) -> None:
    handle = save({"x": torch.ones(10)}, tmp_path, wait=False)
    assert (handle.done(), handle.written, handle.total) == (False, 0, 40)
    assert repr(handle) == f"<Saving '{tmp_path}': 0 of 40 bytes>"
    with pytest.raises(TimeoutError, match=r"has written 0 of 40 bytes after 0\.01 s, and goes on"):
        handle.wait(0.01)
    held.set()
    handle.wait()
    assert (handle.done(), handle.written) == (True, 40)
    assert repr(handle) == f"<Saving '{tmp_path}': complete>"


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_the_program_goes_first_until_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nice: list[int] = []
    begun, go = threading.Event(), threading.Event()

    def slowly(path: Path, shards: dict[str, torch.Tensor]) -> Generator[int, None, object]:
        nice.append(_niceness())
        begun.set()
        go.wait(30)
        yield 0
        nice.append(_niceness())
        return (yield from write(path, shards))

    write = saving.write_file
    monkeypatch.setattr(saving, "write_file", slowly)
    handle = save({"x": torch.ones(3)}, tmp_path, wait=False)
    assert begun.wait(30)
    with pytest.raises(TimeoutError):
        handle.wait(0.01)
    go.set()
    handle.wait()
    assert nice == [min(19, _niceness() + 10), _niceness()]
    assert load(tmp_path)["x"].tolist() == [1, 1, 1]


def _niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_the_next_save_waits_for_the_one_before(tmp_path: Path, held: threading.Event) -> None:
    first = save({"x": torch.ones(3)}, tmp_path, wait=False)
    threading.Timer(0.1, held.set).start()
    save({"x": torch.zeros(3)}, tmp_path)
    assert first.done()
    assert not load(tmp_path)["x"].any()


def failing(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_what_went_wrong_is_raised_by_the_handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"x": torch.zeros(3)}, tmp_path)
    monkeypatch.setattr(saving, "write_file", failing)
    handle = save({"x": torch.ones(3)}, tmp_path, wait=False)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"process 0 could not write its files: \[Errno 28\] No space left"):
            handle.wait()
    assert repr(handle).endswith("failed>")
    monkeypatch.undo()
    assert not load(tmp_path)["x"].any()
    save({"x": torch.ones(3)}, tmp_path)


def test_what_nobody_heard_is_raised_by_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "write_file", failing)
    handle = save({"x": torch.ones(3)}, tmp_path / "a", wait=False)
    while not handle.done():
        time.sleep(0.001)
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match=r"the save before this one failed: cannot save to '.*a', .* No space left"
    ):
        save({"x": torch.ones(3)}, tmp_path / "b")
    save({"x": torch.ones(3)}, tmp_path / "b")


def test_two_savers_do_not_meet(tmp_path: Path) -> None:
    save({"x": torch.zeros(3)}, tmp_path)
    lock = FolderLock(tmp_path)
    for wait in (True, False):
        with pytest.raises(CheckpointError, match="another program saves to"):
            save({"x": torch.ones(3)}, tmp_path, wait=wait)
    lock.release()
    assert not load(tmp_path)["x"].any()
    save({"x": torch.ones(3)}, tmp_path)


def test_a_load_while_a_save_replaces_it_finds_one_of_the_two(tmp_path: Path) -> None:
    save({"x": torch.full((1000,), 0)}, tmp_path)
    stop = threading.Event()
    problems: list[CheckpointError] = []

    def saver() -> None:
        value = 0
        try:
            while not stop.is_set():
                value += 1
                save({"x": torch.full((1000,), value)}, tmp_path)
        except CheckpointError as error:
            problems.append(error)

    thread = threading.Thread(target=saver)
    thread.start()
    seen: list[list[int]] = []
    while len({str(values) for values in seen}) < 6 and not problems:
        seen.append(load(tmp_path)["x"].unique().tolist())
    stop.set()
    thread.join()
    assert problems == []
    assert all(len(values) == 1 for values in seen)
    assert seen == sorted(seen)


def test_the_program_may_go_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: threading.Event
) -> None:
    (tmp_path / "elsewhere" / "c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    going = save({"x": torch.ones(8)}, "c", wait=False)
    keeper = Keeper("run", wait=True)
    monkeypatch.chdir("elsewhere")
    held.set()
    going.wait()
    keeper.save(1, {"n": 1})
    assert torch.equal(load(tmp_path / "c")["x"], torch.ones(8))
    assert keeper.latest() == tmp_path / "run" / "step-00000001"
    assert [path.name for path in Path().iterdir()] == ["c"]
    assert not list(Path("c").iterdir())


def test_a_single_file_is_not_written_in_the_background(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="save to a directory to use wait=False"):
        save({"x": torch.ones(3)}, tmp_path / "x.safetensors", wait=False)


def test_bars_show_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save({"x": torch.ones(1000)}, tmp_path, progress=True)
    assert "saving" in capsys.readouterr().out
    save({"x": torch.ones(1000)}, tmp_path, progress=True, wait=False).wait()
    assert "4.0/4.0 kB" in capsys.readouterr().out
    load(tmp_path, progress=True)
    assert "4.0/4.0 kB" in capsys.readouterr().out
    verify(tmp_path, progress=True)
    assert "verifying" in capsys.readouterr().out


def test_a_bar_that_cannot_be_shown_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Progress) -> None:
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Progress, "start", refused)
    save({"x": torch.ones(3)}, tmp_path, progress=True)
    save({"x": torch.zeros(3)}, tmp_path, wait=False, progress=True).wait()
    assert not load(tmp_path, progress=True)["x"].any()
