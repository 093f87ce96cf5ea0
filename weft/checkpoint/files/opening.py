"""Which checkpoint lies at a path: one that `save` wrote, plain safetensors files from anywhere, or a folder of torch's DCP."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...sharding.geometry import whole_box
from ..errors import CheckpointError
from ..foreign.dcp import METADATA, dcp_index
from ..tree import flat_dict
from .access import FileStamp, open_file, read_at
from .head import HeadError, StoredTensor, head_length, kept_in
from .index import INDEX, Index, SavedFile, SavedShard, SavedTensor, check_file_name, read_json

__all__ = ["check_is_found", "index_at"]

_NUMBERED = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.safetensors")
_WHOLE = "model.safetensors"
_LISTED = ".index.json"
_PUBLIC_INDEX = f"*.safetensors{_LISTED}"
"""How other libraries list the files of a model that does not fit into one."""


def index_at(path: Path) -> Index:
    """What lies at a path."""
    try:
        return _index_at(path)
    except OSError as error:
        raise CheckpointError(f"cannot look for a checkpoint at {str(path)!r}: {error}") from error


def _index_at(path: Path) -> Index:
    if path.is_file():
        return _index_of(path.parent, [path.name])
    if (path / INDEX).is_file():
        return Index.read(path / INDEX)
    if (path / METADATA).is_file():
        return dcp_index(path)
    listed = sorted(path.glob(_PUBLIC_INDEX), key=_model_first) if path.is_dir() else []
    if listed:
        return _listed(path, listed[0])
    plain = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if path / _WHOLE in plain:  # others read it, and not the parts beside it that a save may have left
        plain = [file for file in plain if not (file.name.startswith("model-") and _NUMBERED.fullmatch(file.name))]
    if plain and not any(file.name.startswith("tensors-") for file in plain):
        _check_are_all(path, [file.name for file in plain])
        return _index_of(path, [file.name for file in plain])
    if plain:
        raise CheckpointError(
            f"the checkpoint {str(path)!r} has no {INDEX}: it was not completed, use another checkpoint"
        )
    raise CheckpointError(
        f"there is no checkpoint at {str(path)!r}: give a directory that weft.checkpoint.save wrote, a safetensors file, or a folder of "
        "torch.distributed.checkpoint"
    )


def _check_are_all(folder: Path, names: list[str]) -> None:
    """Raises where files say of how many they are one, and others of these are not there."""
    there: dict[tuple[str, str], set[int]] = {}
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        if numbered:
            there.setdefault((numbered[1], numbered[3]), set()).add(int(numbered[2]))
    for (begin, count), numbers in there.items():
        missing = next((number for number in range(1, int(count) + 1) if number not in numbers), None)
        if missing is not None:
            raise CheckpointError(
                f"the checkpoint {str(folder)!r} is incomplete, its file '{begin}-{missing:05d}-of-{count}.safetensors' is missing: "
                "copy the whole directory, or use another checkpoint"
            )


def check_is_found(path: Path, before: Iterable[str]) -> None:
    """Raises where a checkpoint of another kind lies, which would be found in the stead of one that is written there."""
    for name in before:
        if (path / name).exists():
            raise CheckpointError(
                f"{str(path)!r} has a checkpoint of another kind ({name}), which a load would find there instead: save to another folder, or remove that one"
            )


def _model_first(listing: Path) -> tuple[bool, str]:
    """Of several lists in a folder, that of a model is the one that others read."""
    return not listing.name.startswith("model."), listing.name


def _listed(folder: Path, listing: Path) -> Index:
    """The index of the files that another library lists, with the file of each tensor."""
    match read_json(listing):
        case {"weight_map": dict(weights)}:
            pass
        case _:
            raise CheckpointError(
                f"the index {str(listing)!r} is damaged (it has no weight_map): use another checkpoint"
            )
    try:
        names = {check_file_name(name) for name in weights.values()}
        whole = listing.name.removesuffix(_LISTED)
        if whole not in names and (folder / whole).is_file():  # others read it, and not the list
            return _index_of(folder, [whole])
        index = _index_of(folder, sorted(names))
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"the index {str(listing)!r} is damaged ({error}): use another checkpoint") from error
    lost = [name for name in weights if name not in index.tensors]
    if lost:
        raise CheckpointError(
            f"the index {str(listing)!r} lists {lost[0]!r}, which is not in {weights[lost[0]]!r}: use another checkpoint"
        )
    return index


def _index_of(folder: Path, files: Iterable[str]) -> Index:
    """The index of plain files, in which every tensor is whole."""
    tensors: dict[str, SavedTensor] = {}
    sizes: dict[str, SavedFile] = {}
    for name in files:
        kept, stamp = _plain_file(folder / name, folder)
        sizes[name] = SavedFile(stamp.nbytes, stamp=stamp)
        for key, place in kept.items():
            if key in tensors:
                raise CheckpointError(
                    f"{key!r} is in {tensors[key].shards[0].file!r} and in {name!r} of {str(folder)!r}: give the path of one file"
                )
            shard = SavedShard(name, key, whole_box(place.shape), place.start)
            tensors[key] = SavedTensor(place.shape, place.dtype, (shard,) if place.nbytes else ())
    return Index(flat_dict(list(tensors)), tensors, sizes)


def _plain_file(path: Path, folder: Path) -> tuple[dict[str, StoredTensor], FileStamp]:
    try:
        with open_file(path, folder) as (file, stamp):
            size = stamp.nbytes
            head = read_at(file, 0, head_length(read_at(file, 0, min(8, size)), size))
            with safe_open(path, framework="pt", device="cpu"):  # the library's own checks
                return kept_in(head, size), stamp
    except (
        SafetensorError,
        HeadError,
        OSError,
        RuntimeError,
    ) as error:  # RuntimeError: it has gone since it was opened here
        raise CheckpointError(
            f"the file {str(path)!r} is damaged or no safetensors file ({str(error)[:300]}): use another checkpoint"
        ) from error
