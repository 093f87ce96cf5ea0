"""Faults at random moments: whatever happens, the last complete checkpoint loads, and what is damaged is named.

    python tests/checkpoint/faults.py                      500 faults and 10,000 flipped bits
    python tests/checkpoint/faults.py --faults 50 --flips 0

A checkpoint here is a generation: all of its tensors, and its step, have the same number. Whoever loads must find one
generation, whole, and none older than the last that was complete before the fault. A few faults of each kind run in the
test suite.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from tests.checkpoint.damage import bits, flipped
from tests.multiprocess.launching import Processes
from weft.checkpoint import CheckpointError, load, save, verify
from weft.checkpoint.files import writing

SIZES = (3, 70_001, 300_000)
PROGRAM = str(Path(__file__).with_name("saver.py"))


class WronglyAcceptedError(AssertionError):
    """A checkpoint was accepted wrongly, or lost."""


def state(generation: int) -> dict[str, object]:
    tensors = {str(size): torch.full((size,), generation, dtype=torch.int32) for size in SIZES}
    return {"step": generation, "tensors": tensors}


def generation_at(path: Path) -> int:
    """The generation that a checkpoint is, which must be one."""
    found = load(path)
    values = {found["step"], *(int(v) for x in found["tensors"].values() for v in x.unique())}
    if len(values) != 1 or {x.numel() for x in found["tensors"].values()} != set(SIZES):
        raise WronglyAcceptedError(f"a load gave a mixture: {values}")
    return int(found["step"])


def check_at_least(path: Path, generation: int) -> int:
    """A fault has happened: what is there now is whole, and not older than it must be."""
    found = generation_at(path)
    verify(path)
    if found < generation:
        raise WronglyAcceptedError(f"generation {generation} was complete, but {found} is there")
    return found


def forked(act: Callable[[], None]) -> int:
    """A child of this process that does something, and is killed or ends."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        act()
        status = 0
    except CheckpointError:
        status = 3
    finally:
        os._exit(status)


def keep_saving(path: Path, generation: int) -> None:
    """Saves one generation after another, in the foreground and in the background."""
    while True:
        generation += 1
        if generation % 3:
            save(state(generation), path)
        else:
            handle = save(state(generation), path, wait=False)
            time.sleep(random.uniform(0, 0.004))
            handle.wait()


def killed_save(path: Path, chance: random.Random) -> None:
    """kill -9 while a program saves."""
    before = generation_at(path)
    child = forked(lambda: keep_saving(path, before))
    time.sleep(chance.uniform(0, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = check_at_least(path, before)
    if chance.random() < 0.3:  # what it has left does not stand in the way
        save(state(found + 1), path)
        names = sorted(file.name[:7] for file in path.iterdir())
        if names != ["index.j", "tensors"]:
            raise WronglyAcceptedError(f"a save left {names}")


def killed_load(path: Path, chance: random.Random) -> None:
    """kill -9 while a program loads."""
    before = generation_at(path)
    child = forked(lambda: [load(path) for _ in range(1000)] and None)
    time.sleep(chance.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    check_at_least(path, before)


def full_disk(path: Path, chance: random.Random) -> None:
    """The system lets a program write only so much."""
    before = generation_at(path)
    size = chance.randrange(1, 1_600_000)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        handle = save(state(before + 1), path, wait=False) if size % 2 else save(state(before + 1), path)
        if handle is not None:
            handle.wait()

    status = os.waitstatus_to_exitcode(os.waitpid(forked(limited), 0)[1])
    if status not in (0, 3):
        raise WronglyAcceptedError(f"a save on a full disk ended with {status}")
    found = check_at_least(path, before)
    if found != before + (status == 0):
        raise WronglyAcceptedError(f"a save said {status}, but generation {found} is there")


class Failing:
    """The system's calls, of which one kind fails from some call on."""

    def __init__(self, call: str, after: int, number: int) -> None:
        self.call, self.after, self.number = call, after, number

    def __getattr__(self, name: str) -> object:
        found = getattr(os, name)
        if name != self.call:
            return found

        def broken(*arguments: object, **options: object) -> object:
            self.after -= 1
            if self.after < 0:
                raise OSError(self.number, os.strerror(self.number))
            return found(*arguments, **options)

        return broken


def failing_call(path: Path, chance: random.Random) -> None:
    """A call of the system fails: the disk is full, read only, or broken."""
    before = generation_at(path)
    call, number = chance.choice(
        [
            ("open", errno.EROFS),
            ("write", errno.ENOSPC),
            ("write", errno.EIO),
            ("fsync", errno.EIO),
            ("open", errno.EACCES),
        ]
    )
    real = writing.os
    writing.os = Failing(call, chance.randrange(6), number)  # type: ignore[assignment]
    said = ""
    try:
        save(state(before + 1), path)
    except CheckpointError as error:
        said = str(error)
    finally:
        writing.os = real
    if said and os.strerror(number) not in said:
        raise WronglyAcceptedError(f"the error {said!r} does not say {os.strerror(number)!r}")
    found = check_at_least(path, before)
    if not said and found != before + 1:
        raise WronglyAcceptedError("a save said nothing, but is not there")


def two_savers(path: Path, chance: random.Random) -> None:
    """Two programs save to one folder at once."""
    before = generation_at(path)

    def insist(generation: int) -> None:
        for _ in range(10):
            try:
                save(state(generation), path)
            except CheckpointError as error:
                if "another program saves to" not in str(error):
                    raise
            time.sleep(random.uniform(0, 0.002))

    children = [forked(lambda: insist(before + 1)), forked(lambda: insist(before + 2))]
    for _ in range(5):
        generation_at(path)
    for child in children:
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise WronglyAcceptedError("a saver failed with another error")
    check_at_least(path, before)


def load_while_saving(path: Path, chance: random.Random) -> None:
    """A program loads while another saves."""
    before = generation_at(path)
    child = forked(lambda: keep_saving(path, before))
    try:
        for _ in range(8):
            before = check_at_least_now(path, before)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    check_at_least(path, before)


def check_at_least_now(path: Path, generation: int) -> int:
    """What loads while others save is whole, and not older than what was there before."""
    found = generation_at(path)
    if found < generation:
        raise WronglyAcceptedError(f"generation {generation} was there, but {found} loaded after it")
    return found


def damaged(path: Path, chance: random.Random) -> None:
    """Bits, bytes, lengths and files are not what they were; each damage is found and named, and then taken back."""
    before = generation_at(path)
    copy = Path(tempfile.mkdtemp(dir=path.parent))
    shutil.copytree(path, copy, dirs_exist_ok=True)
    save(state(before + 1), path)
    files = sorted(copy.iterdir())
    victim = chance.choice(files)
    content = bytearray(victim.read_bytes())
    at = chance.randrange(len(content))
    what = chance.choice(["bit", "byte", "cut", "more", "gone", "zeros", "stale", "swap", "shift"])
    if what == "bit":
        content[at] ^= 1 << chance.randrange(8)
    elif what == "byte":
        content[at] ^= chance.randrange(1, 256)
    elif what == "cut":
        del content[at:]
    elif what == "more":
        content += bytes(chance.randrange(1, 9))
    elif what == "zeros":
        content[at : at + 512] = bytes(a ^ 255 for a in content[at : at + 512])
    elif what == "shift":
        content[at : at + 64] = content[at : at + 1] + content[at : at + 64][:-1]
        if content == victim.read_bytes():
            content[at] ^= 1
    victim.write_bytes(content)
    if what == "gone":
        victim.unlink()
    elif what == "stale":
        shutil.copy(path / "index.json", copy / "index.json")
    elif what == "swap":
        data, other = (next(folder.glob("tensors-*")) for folder in (copy, path))
        shutil.copy(other, data)
    said = ""
    try:
        load(copy)
    except CheckpointError as error:
        said = str(error)
    if str(copy) not in said and "tensors-" not in said:
        raise WronglyAcceptedError(f"damage ({what} of {victim.name} at {at}) was accepted, or not named: {said!r}")
    shutil.rmtree(copy)
    check_at_least(path, before + 1)


def killed_processes(path: Path, chance: random.Random) -> None:
    """kill -9 of one or all of the processes that save together."""
    before = generation_at(path)
    how = chance.choice(["wait", "background"])
    with Processes([PROGRAM, str(path), str(before), how], 2) as started:
        while "saved" not in started.running[0].out and started.running[0].poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        for victim in chance.choice([[0], [1], [0, 1]]):
            started.running[victim].send_signal(signal.SIGKILL)
        found = check_at_least_now(path, before)
        if any(ended.status is None for ended in started.wait(60)):
            raise WronglyAcceptedError("a process did not notice that the other was killed")
    if found == before:
        raise WronglyAcceptedError("the processes saved nothing")
    check_at_least(path, found)


KINDS: dict[str, tuple[Callable[[Path, random.Random], None], int]] = {
    "killed while saving": (killed_save, 150),
    "killed while loading": (killed_load, 40),
    "a full disk": (full_disk, 50),
    "a call of the system fails": (failing_call, 60),
    "two savers": (two_savers, 25),
    "a load while saving": (load_while_saving, 25),
    "damaged files": (damaged, 130),
    "one of several processes killed": (killed_processes, 20),
}
"""What can go wrong, and how often of 500 times."""


def tried(kind: str, times: int, folder: Path, seed: int = 0) -> None:
    """A kind of fault, so many times."""
    act, _ = KINDS[kind]
    path = folder / kind.replace(" ", "-")
    save(state(1), path)
    chance = random.Random(f"{kind} {seed}")
    for _ in range(times):
        act(path, chance)


def flips(times: int, folder: Path, seed: int = 0) -> int:
    """Flips one bit after another, anywhere in a checkpoint; how many are accepted."""
    torch.manual_seed(0)
    path = folder / "flips"
    save({"x": torch.randn(500), "y": [torch.arange(40), "text", 1.5]}, path)
    places = bits(path)
    chance, accepted = random.Random(seed), 0
    for _ in range(times):
        file, bit = chance.choice(places)
        flipped(file, bit)
        try:
            load(path)
            accepted += 1
        except CheckpointError:
            pass
        flipped(file, bit)
    load(path)
    return accepted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # children are forked
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for kind, (_, share) in KINDS.items():
            times = max(1, share * arguments.faults // 500)
            start = time.monotonic()
            tried(kind, times, Path(folder), arguments.seed)
            total[kind] += times
            print(f"{times:5} x {kind}: none accepted wrongly ({time.monotonic() - start:.0f} s)", flush=True)
        print(f"{total.total()} faults; the last complete checkpoint was there after each")
        if arguments.flips:
            print(f"{arguments.flips} bits flipped, {flips(arguments.flips, Path(folder), arguments.seed)} accepted")


if __name__ == "__main__":
    main()
