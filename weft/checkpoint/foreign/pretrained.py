"""Models of Hugging Face: folders that `from_pretrained` reads and `save_pretrained` writes, straight from and into layouts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from ...nn.shard_module import shard_module
from ...runtime.machine import residence
from ...runtime.processes.agreement.values import gathered
from ...sharding.mesh import DeviceMesh
from ...sharding.spec import Spec
from ..background import finish_running
from ..errors import CheckpointError
from ..exchange import agreed, of_all, taken
from ..files.opening import index_at
from ..loading import PAUSE, TRIES, load
from ..shares import check_has_values, check_storable, settled
from ..tree import flattened
from .whole_files import check_names, config_folder, save_files

__all__ = ["from_pretrained", "save_pretrained"]

_FILE_BYTES = 5 << 30
_BLANK = 0xA5
"""Each byte of what a model is to fill."""
_SMALL_RANGE, _SMALL_PRECISION = "_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"
"""Where models of Transformers name modules that float16 is too small for, and those that bfloat16 is too coarse for as well."""


Model = TypeVar("Model", bound=torch.nn.Module)


def from_pretrained(
    kind: type[Model],
    path: str | os.PathLike[str],
    mesh: DeviceMesh,
    patterns: Mapping[str, Spec],
    *,
    dtype: torch.dtype | None = None,
    strict: bool = True,
    verify: bool = True,
    progress: bool = False,
) -> Model:
    """A model of Transformers from the folder that `save_pretrained` wrote, its parameters laid out as they are read.

    `kind` is the model's class, such as `LlamaForCausalLM`; `patterns` are those of `weft.nn.shard_module`. The model is
    made without memory first, and each process reads what its devices hold: none holds a tensor whole that is split. The
    dtype is the one that the config says, unless one is given; modules that the model names for it stay in float32. `strict=False` leaves unread what the files have and the
    model has not, as files of older versions do. Every process calls this.

    >>> import torch, weft
    >>> class Config:
    ...     @classmethod
    ...     def from_pretrained(cls, path):
    ...         return cls()
    >>> class Model(torch.nn.Linear):
    ...     config_class = Config
    ...
    ...     def __init__(self, config):
    ...         super().__init__(4, 4)
    >>> weft.checkpoint.save_pretrained(Model(Config()), "folder")
    >>> mesh = weft.make_mesh({"tp": 2})
    >>> model = weft.checkpoint.from_pretrained(Model, "folder", mesh, {"weight": weft.P("tp")})
    >>> model.weight.mapping.spec
    P('tp')
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"from_pretrained takes a DeviceMesh, but got {type(mesh).__name__}: make one with weft.make_mesh"
        )
    together = len(set(residence(mesh).owners)) > 1

    def read() -> Model:
        made: list[tuple[Model, Path]] = []

        def make() -> None:
            model, files = _made(kind, Path(path), dtype)
            made.append((shard_module(model, mesh, patterns, init=_init_of_the_rest(model, files)), files))

        if together:
            of_all(make, "load")
        else:
            make()
        ((model, files),) = made
        load(files, model, strict=strict, cast=True, verify=verify, progress=progress)
        return model.eval()

    return _of_one_save(path, read, together)


def _of_one_save(path: str | os.PathLike[str], read: Callable[[], Model], together: bool) -> Model:
    """What is read of a folder while no save replaces what is there, in the eyes of any process: config and weights may be of two else."""
    for left in reversed(range(TRIES)):
        stamps, problem = _stamps(path), None
        try:
            model = read()
        except Exception as error:  # noqa: BLE001 - raised below, unless a save is the cause
            problem = error
        changed = _stamps(path) != stamps
        if any(gathered(changed, "load") if together else [changed]) and left:
            time.sleep(PAUSE)
        elif problem is not None:
            raise problem
        else:
            return model
    raise AssertionError("the last try returns or raises")


def _stamps(path: str | os.PathLike[str]) -> list[tuple[str, int, int]]:
    """What a save replaces of a model's folder, as far as it is there."""
    found: list[tuple[str, int, int]] = []
    for name in ("config.json", "model.safetensors", "model.safetensors.index.json"):
        with suppress(OSError, TypeError):
            there = Path(path, name).stat()
            found.append((name, there.st_size, there.st_mtime_ns))
    return found


def _made(kind: type[Model], where: Path, dtype: torch.dtype | None) -> tuple[Model, Path]:
    """The model without memory, and which files it is read from."""
    made_of = getattr(kind, "config_class", None)
    if made_of is None:
        raise TypeError(
            f"{getattr(kind, '__name__', kind)} has no config_class, as a model's own class has: give that, such as LlamaForCausalLM"
        )
    if not where.is_dir():  # or its config would be looked for on the hub
        raise CheckpointError(
            f"there is no folder {str(where)!r}: give one with the files of a model, downloaded before"
        )
    config = made_of.from_pretrained(str(config_folder(where)))
    said, usual = getattr(config, "dtype", None), torch.get_default_dtype()
    dtype = dtype or (said if isinstance(said, torch.dtype) else usual)
    torch.set_default_dtype(dtype)  # so that what the model makes in a dtype of its own keeps it
    try:
        with torch.device("meta"):
            model = kind(config)
    finally:
        torch.set_default_dtype(usual)
    computed = list(_computed(model))
    model.to(dtype)
    _keep_precise(model, dtype)
    _fill_computed(model, computed)
    whole = where / "model.safetensors"  # other files beside it may hold the same in other words
    return model, whole if whole.is_file() else where


def _keep_precise(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Lets those modules have float32 that the model names as too small in its range, or in its precision, as Transformers does."""
    named = {torch.float16: (_SMALL_RANGE, _SMALL_PRECISION), torch.bfloat16: (_SMALL_PRECISION,)}.get(dtype, ())
    precise = [f".{part}." for each in named for part in getattr(model, each, None) or ()]
    for name, x in (*model.named_parameters(), *model.named_buffers()):
        if x.is_floating_point() and any(part in f".{name}." for part in precise):
            x.data = x.data.float()


def _computed(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, torch.Tensor]]:
    """The buffers that are in no file, such as the frequencies of rotary embeddings: their names and their modules."""
    for prefix, module in model.named_modules():
        for name, x in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] in module._non_persistent_buffers_set:
                yield name, module, x


def _fill_computed(model: torch.nn.Module, computed: Sequence[tuple[str, torch.nn.Module, torch.Tensor]]) -> None:
    """Has the model fill such buffers, in the dtypes that it made them in; raises for one that it does not fill."""
    blank: dict[str, torch.Tensor] = {}
    for name, module, x in computed:
        memory = torch.full((x.numel() * x.itemsize,), _BLANK, dtype=torch.uint8, device="cpu")
        blank[name] = memory.view(x.dtype).view(x.shape)
        module._buffers[name.rpartition(".")[2]] = blank[name]
    with torch.no_grad():
        for module in {id(module): module for _, module, _ in computed}.values():
            _filler(model)(module)
    for name, module, _ in computed:
        x = blank[name]
        kept = module._buffers[name.rpartition(".")[2]] is x
        if kept and x.numel() and bool((x.view(-1).view(torch.uint8) == _BLANK).all()):
            raise CheckpointError(
                f"{name!r} is in no file, and {type(model).__name__} does not fill it: let its _init_weights(module) do so for "
                f"the module that has it ({type(module).__name__}), or make the buffer persistent before the model is saved"
            )


def _filler(model: torch.nn.Module) -> Callable[[torch.nn.Module], object]:
    """What fills the parameters and buffers that a module of the model holds."""
    fill: Callable[[torch.nn.Module], object] = getattr(model, "_init_weights", _reset)
    return fill


def _init_of_the_rest(model: torch.nn.Module, where: Path) -> Callable[[torch.nn.Module], None]:
    """What fills the modules that are not all in the files; the others would be made whole, and be overwritten."""
    there = index_at(where).tensors
    known = {id(x) for name, x in model.state_dict(keep_vars=True).items() if name in there}
    rest = {
        id(module)
        for module in model.modules()
        if any(
            id(x) not in known and x.is_meta
            for x in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        )
    }
    fill = _filler(model)

    def init(module: torch.nn.Module) -> None:
        if id(module) in rest:
            fill(module)

    return init


def _reset(module: torch.nn.Module) -> None:
    reset: Callable[[], object] | None = getattr(module, "reset_parameters", None)
    if reset is not None:
        reset()


def save_pretrained(model: torch.nn.Module, path: str | os.PathLike[str], *, max_file_bytes: int = _FILE_BYTES) -> None:
    """Writes a model as its own `save_pretrained` does, from any layout: no process holds a tensor whole that is split.

    The files are plain safetensors of at most `max_file_bytes` bytes (more where one tensor has more), with a list of
    them and with the config where the model has one. Of tied parameters the first name is written. Every process calls this.

    >>> import torch, weft
    >>> from safetensors.torch import load_file
    >>> model = weft.nn.shard_module(torch.nn.Linear(4, 4), weft.make_mesh({"tp": 2}), {"weight": weft.P("tp")})
    >>> weft.checkpoint.save_pretrained(model, "folder")
    >>> sorted(load_file("folder/model.safetensors"))
    ['bias', 'weight']
    """

    def take() -> tuple[Path, dict[str, torch.Tensor]]:
        if isinstance(max_file_bytes, bool) or not isinstance(max_file_bytes, int) or max_file_bytes < 1:
            raise ValueError(f"max_file_bytes is a number of bytes from 1 on, but got {max_file_bytes!r}")
        structure, tensors = flattened(model)
        check_storable(tensors, plain=True)
        check_has_values(tensors)
        check_names(structure, tensors)
        finish_running()
        return Path(path), tensors

    nothing: dict[str, torch.Tensor] = {}
    (where, tensors), unfit = taken(take, (Path(), nothing))
    token = agreed(where, f"files of at most {max_file_bytes} bytes", unfit, tensors)
    ready = {name: settled(x) for name, x in tensors.items()}
    save_files(tensors, ready, where, max_file_bytes, token, partial(_save_configs, model))


def _save_configs(model: torch.nn.Module, where: Path) -> None:
    for part in ("config", "generation_config"):
        config = getattr(model, part, None)
        if config is not None and hasattr(config, "save_pretrained"):
            config.save_pretrained(str(where))
