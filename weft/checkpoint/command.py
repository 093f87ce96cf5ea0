"""The `weft checkpoint` command: `verify`, `ls`, `convert` and `diff`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import torch

from .comparing import differences, legible, values_of
from .deferred import Deferred
from .errors import CheckpointError
from .files.index import Index
from .files.opening import index_at
from .files.verifying import verify
from .foreign.dcp_writing import save_dcp
from .foreign.pretrained import save_pretrained
from .reading import Reader
from .saving import save
from .tree import State, children, unflattened

__all__ = ["checkpoint"]

_PATH = click.Path(path_type=Path)
_ONLY = "The part of the state with this name, such as model."


@click.group()
def checkpoint() -> None:
    """Look at checkpoints: verify, list, convert and compare them."""


class _Unreadable(click.ClickException):
    """What is wrong with a checkpoint, where the status 1 says something else."""

    exit_code = 2


@contextmanager
def _told(kind: type[click.ClickException] = click.ClickException) -> Iterator[None]:
    """What is wrong with a checkpoint is said as the command's error."""
    try:
        yield
    except (CheckpointError, TypeError) as error:
        raise kind(str(error)) from error


@checkpoint.command("verify")
@click.argument("path", type=_PATH)
@click.option("--quiet", is_flag=True, help="Show no bar, and say nothing if all is well.")
def verify_command(path: Path, quiet: bool) -> None:
    """Read all of a checkpoint and compare it with its checksums; the status is 1 if anything is wrong."""
    with _told():
        found = verify(path, progress=not quiet and sys.stdout.isatty())
    if not quiet:
        how = "checksums agree" if found.checksums else "files are whole; they have no checksums"
        click.echo(f"{path}: {found.tensors} tensors, {_size(found.nbytes)} in {found.files} files: {how}")


@checkpoint.command("ls")
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def ls_command(path: Path, as_json: bool) -> None:
    """List the tensors and values of a checkpoint; only its index is read."""
    with _told():
        index = index_at(path)
    values = values_of(index.structure)
    if as_json:
        click.echo(json.dumps({"tensors": _listed(index), "values": values}, indent=2, default=str))
        return
    width = max((len(legible(name)) for name in [*index.tensors, *values]), default=0)
    for name, saved in index.tensors.items():
        kind = f"{str(saved.dtype).removeprefix('torch.')} {list(saved.shape)}"
        shards = f"{len(saved.shards)} shard{'s' if len(saved.shards) != 1 else ''}"
        click.echo(f"{legible(name):<{width}}  {kind:<28} {_size(saved.nbytes):>10}  {shards}")
    for name, value in values.items():
        click.echo(f"{legible(name):<{width}}  {value!r}")


@checkpoint.command("diff")
@click.argument("one", type=_PATH)
@click.argument("other", type=_PATH)
def diff_command(one: Path, other: Path) -> None:
    """Say what differs between two checkpoints, of any kind and layout; the status is 1 if anything does, 2 if one cannot be read."""
    with _told(_Unreadable):
        found = False
        for line in differences(one, other):
            found = True
            click.echo(line)
    if found:
        raise click.exceptions.Exit(1)


def _save_pretrained(state: State, path: Path) -> None:
    save_pretrained(_AsModule(_tensors(state)), path)


_FORMS: dict[str, Callable[[State, Path], object]] = {
    "weft": save,
    "safetensors": lambda state, path: save(_tensors(state), path),
    "pretrained": _save_pretrained,
    "dcp": save_dcp,
}


@checkpoint.command("convert")
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@click.option(
    "--to", "form", type=click.Choice(list(_FORMS)), default=None, help="What to write.  [default: by TARGET]"
)
@click.option("--only", metavar="NAME", default=None, help=_ONLY)
def convert_command(source: Path, target: Path, form: str | None, only: str | None) -> None:
    """Write a checkpoint in another form: one of Weft, a safetensors file, a folder of Transformers, or one of torch's DCP.

    Without --to, TARGET is a safetensors file if its name ends so, else a checkpoint of Weft.
    """
    form = form or ("safetensors" if target.suffix == ".safetensors" else "weft")
    if form == "safetensors" and target.suffix != ".safetensors":
        raise click.ClickException(f"{str(target)!r} is no name of a safetensors file: let it end in .safetensors")
    with _told():
        _FORMS[form](_deferred(source, only), target)
    click.echo(f"{target}: written")


def _deferred(path: Path, only: str | None) -> State:
    """The state of a checkpoint, or a part of it, each tensor of which is read when it is written; names of one tensor stay so."""
    index = index_at(path)
    node = index.structure
    for name in only.split(".") if only else ():
        below = {str(key): each for key, each in children(node).items()}
        if name not in below:
            raise click.ClickException(f"{str(path)!r} has no {only!r}: weft checkpoint ls shows what it has")
        node = below[name]
    reader = Reader(path, index)
    known: dict[object, Deferred] = {}

    def made(name: str) -> Deferred:
        saved = index.tensors[name]
        key = (saved.dtype, saved.shards) if saved.nbytes else name
        return known.setdefault(key, Deferred(saved, lambda box: reader.read_box(name, box)))

    return unflattened(node, made)


class _AsModule(torch.nn.Module):
    """Tensors by name as a module."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def state_dict(self, *_: object, **__: object) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return self._tensors


def _tensors(state: State) -> dict[str, torch.Tensor]:
    """A flat dict of tensors, which is all that plain files hold."""
    if not isinstance(state, dict) or not all(isinstance(x, torch.Tensor) for x in state.values()):
        raise CheckpointError(
            "plain files hold tensors by name, but this state has other values or nested dicts: name the part to write, such as --only model"
        )
    return state


def _listed(index: Index) -> dict[str, object]:
    return {
        name: {
            "dtype": str(saved.dtype).removeprefix("torch."),
            "shape": saved.shape,
            "shards": [{"file": shard.file, "box": shard.box} for shard in saved.shards],
        }
        for name, saved in index.tensors.items()
    }


def _size(nbytes: int) -> str:
    """Bytes for people.

    >>> _size(512), _size(402_653_184)
    ('512 B', '402.7 MB')
    """
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
