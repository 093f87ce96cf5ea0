"""`save_dcp`: a folder that `torch.distributed.checkpoint` loads, written by all processes, each its shards."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

import torch

from ...runtime.processes import world
from ...runtime.processes.agreement.values import gathered
from ...sharding.geometry import box_shape, whole_box
from ...tensor.tensor import Tensor
from ..background import finish_running
from ..deferred import Deferred
from ..errors import CheckpointError
from ..exchange import agreed, taken
from ..files.index import INDEX
from ..files.lock import FolderLock
from ..files.opening import check_is_found
from ..files.writing import replace, sync_folder
from ..shares import Share, check_dense, check_has_values, identity, settled, shares
from ..tree import State, Stateful, check_depth, check_keys, plain_number
from .dcp import METADATA

__all__ = ["save_dcp"]

_Item = tuple[str, tuple[int, ...], int, int]
"""A name, where the shard begins in the tensor, and where it lies in the file: from which byte on, and how many."""


def save_dcp(state: State, path: str | os.PathLike[str]) -> None:
    """Saves a state as a folder of `torch.distributed.checkpoint`, which loads it in any number of processes.

    The state is a dict of modules, optimizers, tensors and values, as for `save`. No process gathers a tensor that is
    split. A folder that is there already is replaced at once. `weft.checkpoint.load` reads such folders, from here or
    from torch. Every process calls this.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"tp": 2})
    >>> model = weft.nn.shard_module(torch.nn.Linear(4, 4), mesh, {"weight": weft.P("tp")})
    >>> weft.checkpoint.save_dcp({"model": model, "step": 3}, "folder")
    >>> state = weft.checkpoint.load("folder", {"model": model, "step": None})
    >>> state["step"]
    3
    """

    def take() -> tuple[Path, dict[str, object], object]:
        flat, paths = _flattened(state)
        held = {name: x for name, x in flat.items() if isinstance(x, torch.Tensor)}
        check_dense(held, "torch's checkpoints")
        check_has_values(held)
        finish_running()
        return Path(path), flat, paths

    nothing: tuple[Path, dict[str, object], object] = (Path(), {}, {})
    (folder, flat, paths), unfit = taken(take, nothing)
    tensors = {name: x for name, x in flat.items() if isinstance(x, torch.Tensor)}
    values = {name: x for name, x in flat.items() if not isinstance(x, torch.Tensor)}
    token, here = agreed(folder, "a folder of torch's", unfit, tensors), world.current().process
    ready = {name: settled(x) for name, x in tensors.items()}
    file = f"__{here}_{token}.distcp"
    found = dict(shares(ready, tensors))
    problem: Exception | None = None
    lock: FolderLock | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(folder) if here == 0 else None
        check_is_found(folder, [INDEX])
        report: list[_Item] | str = _write(folder / file, found, ready, values if here == 0 else {})
    except Exception as error:  # noqa: BLE001 - raised in all processes: torch.save has many errors, for a full disk too
        problem, report = error, str(_first_cause(error))
    try:
        reports = gathered(report, "save")
        outcome = next(
            (f"process {i} could not write: {said}" for i, said in enumerate(reports) if isinstance(said, str)), None
        )
        if outcome is None and here == 0:
            try:
                items = {f"__{i}_{token}.distcp": said for i, said in enumerate(reports) if not isinstance(said, str)}
                known = {identity(tensors[name]): name for name in found}
                content = _metadata(
                    ready, {name: known[identity(x)] for name, x in tensors.items()}, found, values, paths, items
                )
                replace(folder / METADATA, content, token)
            except Exception as error:  # noqa: BLE001 - raised in all processes
                problem, outcome = error, str(error)
        outcome = gathered(outcome, "save")[0]
        if outcome is not None:
            with suppress(OSError, ValueError):  # it is no folder
                if not _lists(folder, file):
                    (folder / file).unlink(missing_ok=True)
            raise CheckpointError(f"cannot save to {str(folder)!r}: {outcome}") from problem
        if here == 0:
            for old in (*folder.glob("__*.distcp"), *folder.glob(f".{METADATA}.*")):
                if token not in old.name:
                    with suppress(OSError):  # what is complete is so beside what cannot be removed
                        old.unlink(missing_ok=True)
    finally:
        if lock is not None:
            lock.release()


def _lists(folder: Path, file: str) -> bool:
    """Whether the list that stands there names a file already: what went wrong did so after the new list took its place."""
    try:
        return file.encode() in (folder / METADATA).read_bytes()
    except FileNotFoundError:
        return False


def _first_cause(error: BaseException) -> BaseException:
    """What came first: torch says of a full disk only that it did not get where it should."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _flattened(state: State) -> tuple[dict[str, object], object]:
    """The tensors and values of a state by name, and their paths; what is empty is a value, which torch leaves out."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    plain = _plain(state)
    if not isinstance(plain, dict):
        raise CheckpointError(
            f"torch's checkpoints hold a dict, but the state is a {type(state).__name__}: use {{'state': …}}"
        )
    same = "torch's checkpoints name what they hold by its keys, joined with dots, and two names are the same"
    try:
        flat, paths = flatten_state_dict(plain)
    except ValueError as error:
        raise CheckpointError(f"{same} ({error}): rename one of them") from error
    for path in _empty_dicts(plain, ()):
        name = ".".join(map(str, path))
        if name in flat:
            raise CheckpointError(f"{same} ({name!r}): rename one of them")
        flat[name], paths[name] = {}, path
    return flat, paths


def _empty_dicts(plain: object, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Where a state has empty dicts, but for itself."""
    if isinstance(plain, dict):
        if not plain and path:
            yield path
        for key, item in plain.items():
            yield from _empty_dicts(item, (*path, str(key)))
    elif isinstance(plain, list):
        for i, item in enumerate(plain):
            yield from _empty_dicts(item, (*path, i))


def _plain(state: State, path: tuple[str, ...] = ()) -> object:
    """The state as dicts and lists of tensors and values; a tuple is a value to torch, which in turn is to hold no shards."""
    if isinstance(state, Stateful):
        state = state.state_dict()
    if isinstance(state, (Mapping, list, tuple)):
        check_depth(path)
    if isinstance(state, Mapping):
        check_keys(state, path)
        return {key: _plain(item, (*path, str(key))) for key, item in state.items()}
    if isinstance(state, (list, tuple)) and type(state) in (list, tuple):  # others are values
        items = [_plain(item, (*path, str(i))) for i, item in enumerate(state)]
        return items if isinstance(state, list) or _holds_shards(items) else tuple(items)
    return state if isinstance(state, torch.Tensor) else plain_number(state)


def _holds_shards(value: object) -> bool:
    if isinstance(value, (Tensor, Deferred)):
        return True
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return any(map(_holds_shards, items))


def _write(
    path: Path, found: Mapping[str, list[Share]], ready: Mapping[str, torch.Tensor], values: Mapping[str, object]
) -> list[_Item]:
    """Writes what this process has to write; where each thing lies."""
    items: list[_Item] = []
    with path.open("wb") as file:
        for name, value in values.items():
            start = file.tell()
            torch.save(value, file)
            items.append((name, (), start, file.tell() - start))
        for name, each in found.items():
            for share in each:
                if share.process == world.current().process:
                    start = file.tell()
                    _save_tensor(share.own, file)
                    items.append((name, tuple(begin for begin, _ in share.box), start, file.tell() - start))
            if not each and world.current().process == 0:  # an empty tensor has no shards, but a place
                start = file.tell()
                _save_tensor(torch.empty(ready[name].shape, dtype=ready[name].dtype, device="cpu"), file)
                items.append((name, (0,) * ready[name].dim(), start, file.tell() - start))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)
    return items


def _save_tensor(x: torch.Tensor, file: IO[bytes]) -> None:
    x = x.whole() if isinstance(x, Deferred) else x
    x = x.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg().contiguous()
    if x.untyped_storage().nbytes() != x.numel() * x.itemsize:  # torch.save writes all of a storage
        x = x.clone()
    torch.save(x, file)


def _metadata(
    ready: Mapping[str, torch.Tensor],
    first_name: Mapping[str, str],
    found: Mapping[str, list[Share]],
    values: Mapping[str, object],
    paths: object,
    items: Mapping[str, list[_Item]],
) -> bytes:
    """What DCP wants to know of the folder, as it pickles it."""
    from torch.distributed.checkpoint import metadata as words
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    entries: dict[str, words.TensorStorageMetadata | words.BytesStorageMetadata] = {}
    for name, x in ready.items():
        boxes = [share.box for share in found[first_name[name]]] or [whole_box(x.shape)]
        chunks = [
            words.ChunkStorageMetadata(torch.Size([start for start, _ in box]), torch.Size(box_shape(box)))
            for box in boxes
        ]
        entries[name] = words.TensorStorageMetadata(words.TensorProperties(dtype=x.dtype), x.size(), chunks)
    entries |= {name: words.BytesStorageMetadata() for name in values}
    tied: dict[str, list[str]] = {}
    for name, first in first_name.items():
        tied.setdefault(first, []).append(name)
    places = {
        words.MetadataIndex(name, None if first in values else torch.Size(begin)): _StorageInfo(file, start, length)
        for file, each in items.items()
        for first, begin, start, length in each
        for name in tied.get(first, [first])
    }
    content = io.BytesIO()
    pickle.dump(words.Metadata(entries, paths, places, words.StorageMeta()), content)
    return content.getvalue()
