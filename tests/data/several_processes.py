"""What each of several processes runs for `test_data`: it loads its own rows, and the global batch comes out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import weft
from weft import P


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Samples that say which of them were loaded here."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.loaded.append(index)
        return {"x": torch.full((3,), float(index)), "y": torch.tensor(index)}


def check_rows() -> None:
    """Each process loads its rows, the last batch's fewer too, and all have the same batches."""
    mesh = weft.make_mesh({"dp": 2 * weft.distributed.process_count()})
    data = Numbers(19)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    found = weft.data.batches(loader, mesh, {"x": P("dp"), "y": P("dp")})
    given = list(found)
    batches = [(each["x"].full_tensor(), each["y"].full_tensor()) for each in given]
    assert [len(y) for _, y in batches] == [8, 8, 3]
    order = torch.cat([y for _, y in batches])
    assert sorted(order.tolist()) == list(range(19))
    assert all(torch.equal(x, y.double().float().unsqueeze(1).expand(-1, 3)) for x, y in batches)
    own = [int(i) for each in given for shard in each["y"].local_shards for i in shard]
    assert data.loaded == own
    assert len(own) < 19


def check_other_meshes() -> None:
    """Targets on a mesh that some processes have no part of; they load nothing for it, and know what it is."""
    devices = weft.devices()
    first = weft.DeviceMesh(devices[:2], (2,), ("dp",))
    last = weft.DeviceMesh(devices[-2:], (2,), ("dp",))
    data = Numbers(8)
    specs = {"x": P("dp"), "y": weft.NamedMapping(last, P("dp"))}
    found = list(weft.data.batches(DataLoader(data, batch_size=4), first, specs, prefetch=0))
    assert [each["y"].full_tensor().tolist() for each in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found[0]["x"].mesh == first
    assert found[0]["y"].mesh == last
    outside = weft.distributed.process_index() not in (0, weft.distributed.process_count() - 1)
    assert data.loaded == ([] if outside else list(range(8)))


def check_resuming(folder: Path) -> None:
    """What was given before a checkpoint is not given after it, in the same order as without."""
    mesh = weft.make_mesh({"dp": len(weft.devices())})

    def made() -> weft.data.Batches:
        return weft.data.batches(DataLoader(Numbers(24), batch_size=4, shuffle=True), mesh, P("dp"))

    whole, again = made(), made()
    taken = iter(whole)
    for _ in range(2):
        next(taken)
    weft.checkpoint.save({"data": whole}, folder)
    expected = [each["y"].full_tensor().tolist() for each in taken]
    expected += [each["y"].full_tensor().tolist() for each in whole]
    weft.checkpoint.load(folder, {"data": again})
    found = [each["y"].full_tensor().tolist() for each in again]
    assert len(found) == 4
    found += [each["y"].full_tensor().tolist() for each in again]
    assert found == expected


def check_local_parts() -> None:
    """One's own part of a tensor, of equal and of other sizes."""
    here, count = weft.distributed.process_index(), weft.distributed.process_count()
    mesh = weft.make_mesh({"dp": 2 * count})
    mapping = weft.NamedMapping(mesh, P("dp"))
    found = weft.from_process_local(torch.full((2, 3), here), mapping)
    assert found.full_tensor()[:, 0].tolist() == [process for process in range(count) for _ in range(2)]
    (again,) = weft.data.batches([torch.full((2,), here)], mesh, P("dp"), local=True)
    assert again.shape == (2 * count,)
    try:
        weft.from_process_local(torch.ones(5 if here else 4, 3), mapping)
    except ValueError as error:
        assert "but it brings one of shape" in str(error), error
    else:
        assert not here, "unbalanced parts were taken"
    try:
        weft.from_process_local(torch.ones(2, 3 + here), mapping)
    except ValueError as error:
        assert "different sizes of dim 1 where they hold the same of it" in str(error), error
    else:
        raise AssertionError("different parts were taken")


def check_disagreement() -> None:
    """Parts that are not of one batch."""
    here = weft.distributed.process_index()
    mesh = weft.make_mesh({"dp": len(weft.devices())})
    padded = DataLoader(Numbers(8), batch_size=4, collate_fn=lambda rows: torch.ones(len(rows), 3 + here))
    try:
        next(iter(weft.data.batches(padded, mesh, P("dp"), seed=0)))
    except ValueError as error:
        assert "have loaded parts of different batches" in str(error), error
    else:
        raise AssertionError("it was not noticed")


def check_other_values() -> None:
    """Processes that load the same rows, and draw what they are; and such that bring batches of their own as if they were all."""
    here, count = weft.distributed.process_index(), weft.distributed.process_count()
    mesh = weft.make_mesh({"tp": 2 * count})
    drawn = DataLoader(Numbers(8), batch_size=4, collate_fn=lambda rows: {"x": torch.full((len(rows), 3), float(here))})
    own = [{"x": torch.full((4,), float(here))}]
    for loader, said in ((drawn, "both loaded the rows 0 to 3 of a batch"), (own, "both loaded a batch")):
        try:
            next(iter(weft.data.batches(loader, mesh, P(), seed=0)))
        except weft.errors.MismatchError as error:
            assert said in str(error), error
            assert "with other values in batch['x']" in str(error), error
        else:
            raise AssertionError("it was not noticed")


class Noisy(Numbers):
    """Samples that are drawn, with some numbers more or less, as augmentations are."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = super().__getitem__(index)
        return {**sample, "x": sample["x"] + torch.rand(3 + index % 3)[:3]}


def check_what_is_drawn() -> None:
    """Processes load different rows and draw for them; the program's numbers stay alike, and who loads the same rows has the same."""
    count = weft.distributed.process_count()
    mesh = weft.make_mesh({"dp": 2 * count})
    for spec in (P("dp"), P()):
        for workers in (0, 1):
            torch.manual_seed(0)
            loader = DataLoader(Noisy(11), batch_size=4, shuffle=True, num_workers=workers)
            given = [each["x"].full_tensor() for each in weft.data.batches(loader, mesh, spec, seed=0)]
            noise = torch.cat(given) % 1
            assert len(noise.unique(dim=0)) == 11, noise  # processes do not draw the same for different rows
            weft.shard(torch.rand(5), mesh, P())  # compared between processes
            torch.manual_seed(0)
            loader = DataLoader(Noisy(11), batch_size=4, shuffle=True, num_workers=workers)
            again = [each["x"].full_tensor() for each in weft.data.batches(loader, mesh, spec, seed=0)]
            assert all(map(torch.equal, given, again))


@dataclass(frozen=True)
class Named:
    """A sample or a batch whose samples have names, and notes of any kind."""

    x: torch.Tensor
    names: list[str]
    notes: list[object]
    split: str = "train"
    missing: None = None


def named(rows: list[dict[str, torch.Tensor]]) -> Named:
    """A batch with a name for each sample."""
    numbers = [int(row["y"]) for row in rows]
    notes: list[object] = [{"odd": n % 2, "list": [n] * n} if n % 2 else (None, n) for n in numbers]
    return Named(torch.stack([row["x"] for row in rows]), [f"sample {n}" for n in numbers], notes)


def check_what_is_no_tensor() -> None:
    """Of a list with something for each sample a process has what belongs to its rows, whoever has loaded what."""
    mesh = weft.make_mesh({"dp": 2 * weft.distributed.process_count()})
    whole = list(DataLoader(Numbers(7), batch_size=5, collate_fn=named))
    loader = DataLoader(Numbers(7), batch_size=5, collate_fn=named)
    for given in (loader, whole):
        for found, expected in zip(weft.data.batches(given, mesh, P("dp"), seed=0), whole, strict=True):
            own = sorted({int(row[0]) for shard in found.x.local_shards for row in shard})
            assert torch.equal(found.x.full_tensor(), expected.x)
            assert found.names == [f"sample {n}" for n in own], (own, found)
            assert found.notes == [expected.notes[int(n) - int(expected.x[0, 0])] for n in own], found
            assert not own or (type(found), found.split, found.missing) == (Named, "train", None)
    samples = [(torch.tensor(n), f"sample {n}", {"n": n, "text": str(n)}) for n in range(4)]
    for x, names, rest in weft.data.batches(DataLoader(samples, batch_size=4), mesh, P("dp")):
        own = [int(n) for shard in x.local_shards for n in shard]
        assert list(names) == [f"sample {n}" for n in own], names
        assert rest["text"] == [str(n) for n in own]
        assert rest["n"].full_tensor().tolist() == list(range(4))
    differs = [{"x": torch.ones(4), "length": weft.distributed.process_index()}]
    try:
        next(iter(weft.data.batches(differs, mesh, P("dp"))))
    except ValueError as error:
        assert "A number or text in a batch is one for all of it" in str(error), error
    else:
        raise AssertionError("it was not noticed")
    (own,) = weft.data.batches([{"x": torch.ones(2), "names": ["a", "b"]}], mesh, {"x": P("dp")}, local=True)
    assert own["names"] == ["a", "b"]


def main(folder: str) -> None:
    weft.distributed.init(devices_per_process=2)
    check_rows()
    check_other_meshes()
    check_resuming(Path(folder))
    check_local_parts()
    check_disagreement()
    check_other_values()
    check_what_is_no_tensor()
    check_what_is_drawn()
    weft.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
