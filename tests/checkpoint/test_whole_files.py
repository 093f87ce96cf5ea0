"""Plain files of whole tensors: what any layout writes is what one device would write, and any library reads it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import weft
from weft import P
from weft.checkpoint import CheckpointError, from_pretrained, load, loading, save, save_dcp, save_pretrained
from weft.checkpoint.files.index import Index
from weft.checkpoint.files.lock import FolderLock
from weft.checkpoint.foreign import pretrained, whole_files

MESH = weft.make_mesh({"dp": 2, "tp": 3})
SPECS = [P(), P("dp"), P(None, "tp"), P("tp", "dp"), P(("dp", "tp")), P(None, ("tp", "dp"))]


@settings(max_examples=40)
@given(
    spec=st.sampled_from([*SPECS, P(None, None, "tp"), P("dp", None, "tp"), P(None, "dp", "tp")]),
    shape=st.lists(st.integers(1, 7), min_size=3, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_a_file_of_any_layout_is_the_file_of_the_whole(spec, shape, dtype) -> None:
    x = torch.randint(0, 100, shape).to(dtype)
    with tempfile.TemporaryDirectory() as folder:
        save({"x": weft.shard(x, MESH, spec), "n": torch.ones(2)}, f"{folder}/x.safetensors")
        found = load_file(f"{folder}/x.safetensors")
        assert found["x"].dtype == dtype
        assert torch.equal(found["x"], x)
        assert torch.equal(load(f"{folder}/x.safetensors")["n"], torch.ones(2))


class Config:
    """As configs of Transformers are."""

    dtype = torch.float64

    def __init__(self, width: int = 6) -> None:
        self.width = width

    @classmethod
    def from_pretrained(cls, path: str) -> Config:
        return cls(**json.loads((Path(path) / "config.json").read_text()))

    def save_pretrained(self, path: str) -> None:
        (Path(path) / "config.json").write_text(json.dumps({"width": self.width}))


class Model(torch.nn.Module):
    """As models of Transformers are: an embedding that is also the head, and a buffer that is in no file."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed, self.body = torch.nn.Embedding(12, config.width), torch.nn.Linear(config.width, config.width)
        self.head = torch.nn.Linear(config.width, 12, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def _init_weights(self, module: torch.nn.Module) -> None:
        if hasattr(module, "angles"):
            with torch.no_grad():
                module.angles.copy_(torch.arange(4.0))


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("most", [1, 400, 1 << 30])
def test_a_pretrained_model_goes_and_comes_back(most: int, spec: P, tmp_path: Path) -> None:
    source = Model(Config()).double()
    whole = {name: x.detach().clone() for name, x in source.state_dict().items()}
    weft.nn.shard_module(source, MESH, {"embed.weight": spec, "body.weight": spec})
    save_pretrained(source, tmp_path, max_file_bytes=most)
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) == {1: 3, 400: 2, 1 << 30: 1}[most]
    stored = {name: x for file in files for name, x in load_file(file).items()}
    assert stored.keys() == {"embed.weight", "body.weight", "body.bias"}
    assert all(torch.equal(x, whole[name]) for name, x in stored.items())
    if len(files) > 1:
        listing = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert listing["weight_map"].keys() == stored.keys()
        assert listing["metadata"]["total_size"] == sum(x.numel() * 8 for x in stored.values())
    model = from_pretrained(Model, tmp_path, MESH, {"body.weight": P(None, "tp"), "*.weight": P("dp")})
    assert model.head.weight is model.embed.weight
    assert model.body.weight.mapping.spec == P(None, "tp")
    assert model.angles.full_tensor().tolist() == [0, 1, 2, 3]
    assert not model.training
    for name, x in model.state_dict().items():
        assert torch.equal(x.full_tensor(), whole[name])
    assert from_pretrained(Model, tmp_path, MESH, {}, dtype=torch.float32).body.bias.dtype == torch.float32


@pytest.mark.parametrize(
    ("dtype", "precise"),
    [(torch.float16, {"body", "embed"}), (torch.bfloat16, {"embed"}), (torch.float32, {"body", "embed"})],
)
def test_modules_that_a_model_names_for_it_stay_in_float32(
    dtype: torch.dtype, precise: set[str], tmp_path: Path
) -> None:
    class Named(Model):
        _keep_in_fp32_modules = ("body",)
        _keep_in_fp32_modules_strict = ("embed", "bod")  # parts of names are no names

    source = Named(Config()).double()
    save_pretrained(source, tmp_path)
    model = from_pretrained(Named, tmp_path, MESH, {"*.weight": P("dp")}, dtype=dtype)
    assert model.head.weight is model.embed.weight
    for name, x in model.named_parameters():
        kept = torch.float32 if name.partition(".")[0] in precise else dtype
        torch.testing.assert_close(
            x.detach().full_tensor(), source.get_parameter(name).detach().to(kept), rtol=0, atol=0
        )


class Rotary(torch.nn.Module):
    """A module with buffers of dtypes of their own that are in no file."""

    def __init__(self) -> None:
        super().__init__()
        for name, x in self.computed().items():
            self.register_buffer(name, x, persistent=False)

    @staticmethod
    def computed() -> dict[str, torch.Tensor]:
        frequencies = 1 / 10000 ** (torch.arange(0, 8, 2).float() / 8)
        return {
            "frequencies": frequencies,
            "places": torch.arange(5),
            "mask": torch.ones(2, 2).tril().bool(),
            "x": torch.ones(2),
        }


class Rotated(Model):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.rotary = Rotary()
        self.body.register_buffer("once", torch.ones(2), persistent=False)

    fills = ("frequencies", "places", "mask", "x")

    def _init_weights(self, module: torch.nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Rotary):
            for name in self.fills:
                getattr(module, name).copy_(module.computed()[name])
        if hasattr(module, "once"):
            torch.nn.init.normal_(module.weight)
            module.once = torch.full((2,), 3.0)


def test_what_is_in_no_file_keeps_its_dtype(tmp_path: Path) -> None:
    source = Rotated(Config())
    save_pretrained(source, tmp_path)
    before = torch.get_rng_state()
    model = from_pretrained(Rotated, tmp_path, MESH, {"body.weight": P("tp")}, dtype=torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.body.weight.full_tensor(), source.body.weight.bfloat16())
    assert model.body.once.full_tensor().tolist() == [3, 3]
    assert torch.get_default_dtype() == torch.float32
    for name, x in Rotary.computed().items():
        found = getattr(model.rotary, name).full_tensor()
        assert torch.equal(found, x.bfloat16() if name == "x" else x)


@pytest.mark.parametrize("name", Rotary.computed())
def test_what_is_in_no_file_and_nobody_fills_is_refused(tmp_path: Path, name: str, monkeypatch) -> None:
    save_pretrained(Rotated(Config()), tmp_path)
    monkeypatch.setattr(Rotated, "fills", [other for other in Rotary.computed() if other != name])
    with pytest.raises(CheckpointError, match=f"'rotary.{name}' is in no file, and Rotated does not fill it"):
        from_pretrained(Rotated, tmp_path, MESH, {})


def test_what_a_pretrained_model_has_no_place_for_may_stay_unread(tmp_path: Path) -> None:
    source = Model(Config()).double()
    save_pretrained(source, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({**stored, "body.inv_freq": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"'body.inv_freq' in the checkpoint, which nothing is waiting for.*strict=False"
    ):
        from_pretrained(Model, tmp_path, MESH, {})
    model = from_pretrained(Model, tmp_path, MESH, {}, strict=False)
    assert torch.equal(model.body.weight.full_tensor(), source.body.weight)


def test_a_folder_is_read_as_its_own_library_reads_it(tmp_path: Path) -> None:
    model = Model(Config()).double()
    save_pretrained(model, tmp_path)
    old = Model(Config()).double().state_dict()
    save_file({"embed.weight": old["embed.weight"]}, tmp_path / "old.safetensors")
    listing = json.dumps({"weight_map": {"embed.weight": "old.safetensors"}})
    (tmp_path / "model.safetensors.index.json").write_text(listing)
    (tmp_path / "consolidated.safetensors.index.json").write_text(listing)
    assert torch.equal(load(tmp_path)["embed.weight"], model.embed.weight)
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "consolidated.safetensors.index.json").unlink()
    assert torch.equal(from_pretrained(Model, tmp_path, MESH, {}).embed.weight.full_tensor(), model.embed.weight)


def test_what_is_no_folder_or_no_class_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no folder '.*nowhere': give one with the files of a model"):
        from_pretrained(Model, tmp_path / "nowhere", MESH, {})
    with pytest.raises(TypeError, match="Linear has no config_class, as a model's own class has: give that"):
        from_pretrained(torch.nn.Linear, tmp_path, MESH, {})
    with pytest.raises(TypeError, match="from_pretrained takes a DeviceMesh, but got dict"):
        from_pretrained(Model, tmp_path, {"tp": 2}, {})
    with pytest.raises(TypeError, match=r"full_state_dict takes a torch\.nn\.Module, but got dict"):
        weft.checkpoint.full_state_dict({})


def test_no_process_reads_more_than_its_shards(tmp_path: Path, memory: str, monkeypatch) -> None:
    save_pretrained(Model(Config()).double(), tmp_path)
    sizes = []
    empty = torch.empty

    def watched(*arguments, **options) -> torch.Tensor:
        made = empty(*arguments, **options)
        sizes.append(() if made.is_meta else tuple(made.shape))
        return made

    monkeypatch.setattr(torch, "empty", watched)
    from_pretrained(Model, tmp_path, MESH, {"embed.weight": P("tp"), "body.weight": P("tp"), "body.bias": P("tp")})
    assert ((12, 6) in sizes) == (memory == "unified")
    assert (4, 6) in sizes or memory == "unified"


def test_a_size_of_files_below_1(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_file_bytes is a number of bytes from 1 on, but got 0"):
        save_pretrained(Model(Config()), tmp_path, max_file_bytes=0)


@pytest.mark.parametrize(("before", "after"), [(40, 1 << 30), (1 << 30, 40), (40, 80)])
def test_a_pretrained_folder_is_of_the_last_save(tmp_path: Path, before: int, after: int) -> None:
    layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)) for _ in range(2)]
    save_pretrained(layers[0], tmp_path, max_file_bytes=before)
    save_pretrained(layers[1], tmp_path, max_file_bytes=after)
    kept = load(tmp_path)
    files = {name: x for file in tmp_path.glob("*.safetensors") for name, x in load_file(file).items()}
    for name, x in layers[1].state_dict().items():
        assert torch.equal(kept[name], x)
        assert torch.equal(files[name], x)
    assert (tmp_path / "model.safetensors.index.json").exists() == (len(list(tmp_path.glob("*.safetensors"))) > 1)


@pytest.mark.parametrize("memory", ["separate"], indirect=True)  # tensors here are plain
@pytest.mark.parametrize(("before", "after"), [(40, 40), (40, 80), (1 << 30, 40), (40, 1 << 30), (1 << 30, 1 << 30)])
def test_a_save_that_is_stopped_leaves_one_model_of_two(
    tmp_path: Path, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedError(BaseException):
        pass

    old, new = (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)) for _ in range(2))
    rename, unlink = Path.replace, Path.unlink
    for moment in range(12):
        folder = tmp_path / str(moment)
        save_pretrained(old, folder, max_file_bytes=before)
        left = moment

        def stops() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoppedError

        with monkeypatch.context() as patch, contextlib.suppress(StoppedError):
            patch.setattr(Path, "replace", lambda path, target: (stops(), rename(path, target))[1])
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: (stops(), unlink(path, missing_ok))[1])
            save_pretrained(new, folder, max_file_bytes=after)
        found = load(folder)
        assert any(all(torch.equal(found[k], x) for k, x in each.state_dict().items()) for each in (old, new)), moment
        save_pretrained(new, folder, max_file_bytes=after)
        assert all(torch.equal(load(folder)[name], x) for name, x in new.state_dict().items())
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


class Valued(torch.nn.Module):
    """A model whose parameters all are what its config says."""

    config_class = Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.a, self.b = (torch.nn.Parameter(torch.full((4,), float(config.width))) for _ in range(2))


@pytest.mark.parametrize("memory", ["separate"], indirect=True)  # tensors here are plain
@pytest.mark.parametrize("before", [1, 1 << 30])
@pytest.mark.parametrize("after", [1, 1 << 30])
def test_a_save_that_is_killed_leaves_weights_with_their_config(
    tmp_path: Path, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    rename, unlink, remove = Path.replace, Path.unlink, whole_files.shutil.rmtree
    seen = set()
    for moment in range(9):
        folder, left = tmp_path / str(moment), moment
        save_pretrained(Valued(Config(1)), folder, max_file_bytes=before)

        def lives() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError

        with monkeypatch.context() as patch, contextlib.suppress(KilledError):
            patch.setattr(Path, "replace", lambda path, target: (lives(), rename(path, target))[1])
            patch.setattr(Path, "unlink", lambda path, missing_ok=False: (lives(), unlink(path, missing_ok))[1])
            patch.setattr(whole_files.shutil, "rmtree", lambda path, **options: (lives(), remove(path, **options))[1])
            save_pretrained(Valued(Config(2)), folder, max_file_bytes=after)
        model = from_pretrained(Valued, folder, MESH, {})
        values = {model.config.width, *model.a.tolist(), *model.b.tolist()}
        assert len(values) == 1, (moment, values)
        seen |= values
        save_pretrained(Valued(Config(3)), folder, max_file_bytes=before)
        assert from_pretrained(Valued, folder, MESH, {}).config.width == 3
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
    assert seen == {1, 2}


@pytest.mark.parametrize("memory", ["separate"], indirect=True)  # tensors here are plain
def test_a_config_goes_back_where_the_weights_cannot_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_pretrained(Valued(Config(1)), tmp_path)
    rename = Path.replace

    def broken(path: Path, target: Path) -> Path:
        if target.name == "model.safetensors":
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        with pytest.raises(CheckpointError, match="Input/output error"):
            save_pretrained(Valued(Config(2)), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"width": 1}


def test_what_a_save_to_a_file_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    """What another writes right now does not, be it locked or just made."""
    names = (".f.safetensors.01234567", ".f.safetensors.0a1b2c3d", ".f.safetensors.76543210", ".g.safetensors.01234567")
    left, written, made, other = (tmp_path / name for name in names)
    for path in (left, written, made, other):
        path.write_bytes(b"x")
        if path != made:
            os.utime(path, (1, 1))
    lock, path = FolderLock(written), tmp_path / "f.safetensors"
    save({"x": torch.ones(2)}, path)
    assert set(tmp_path.iterdir()) == {written, made, other, path}
    lock.release()
    save({"x": torch.ones(2)}, path)
    assert set(tmp_path.iterdir()) == {made, other, path}


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4)])
def test_a_file_that_is_replaced_after_it_was_looked_at(
    tmp_path: Path, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one has as many bytes, in which the tensors lie as before, or do not."""
    path, new = tmp_path / "f.safetensors", tmp_path / "new.safetensors"
    save_file({"a": torch.zeros(4), "b": torch.ones(2)}, path)
    save_file({"a": torch.full((sizes[0],), 10.0), "b": torch.full((sizes[1],), 11.0)}, new)
    assert path.stat().st_size == new.stat().st_size
    os.utime(path, (1, 1))
    looked = loading.index_at

    def replaced(where: Path) -> Index:
        index = looked(where)
        monkeypatch.setattr(loading, "index_at", looked)
        new.replace(path)
        return index

    monkeypatch.setattr(loading, "index_at", replaced)
    found = load(path)
    assert {name: x.tolist() for name, x in found.items()} == {"a": [10.0] * sizes[0], "b": [11.0] * sizes[1]}


class Numbered(torch.nn.Linear):
    """A model whose config and weights have one number, which is that of their save."""

    class Kept:
        """The config."""

        then: Callable[[], None] = staticmethod(lambda: None)
        """What happens when it has been read."""

        def __init__(self, number: int) -> None:
            self.number = number

        @classmethod
        def from_pretrained(cls, path: str) -> Numbered.Kept:
            found = cls(json.loads(Path(path, "config.json").read_text()))
            cls.then()
            return found

        def save_pretrained(self, path: str) -> None:
            Path(path, "config.json").write_text(json.dumps(self.number))

    config_class = Kept

    def __init__(self, config: Kept) -> None:
        super().__init__(4, 4)
        self.config = config
        if not self.weight.is_meta:
            torch.nn.init.constant_(self.weight, config.number)


@pytest.mark.parametrize("most", [40, 1 << 30])
@pytest.mark.parametrize("moment", ["config", "weights"])
def test_a_model_that_is_replaced_while_it_is_read_is_of_one_save(
    tmp_path: Path, most: int, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_pretrained(Numbered(Numbered.Kept(1)), tmp_path)

    def replaced() -> None:
        monkeypatch.undo()
        save_pretrained(Numbered(Numbered.Kept(2)), tmp_path, max_file_bytes=most)

    if moment == "config":
        monkeypatch.setattr(Numbered.Kept, "then", staticmethod(replaced))
    else:
        read = pretrained.load
        monkeypatch.setattr(pretrained, "load", lambda *args, **options: (read(*args, **options), replaced())[0])
    model = from_pretrained(Numbered, tmp_path, MESH, {"weight": P("tp")})
    assert model.weight.full_tensor().unique().tolist() == [model.config.number] == [2]


def test_files_that_are_numbered_and_not_all_there(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"is incomplete, its file 'model-00002-of-00002.safetensors' is missing"):
        load(tmp_path)
    save_file({"b": torch.ones(2)}, tmp_path / "model-00002-of-00002.safetensors")
    assert load(tmp_path).keys() == {"a", "b"}


def test_one_kind_of_checkpoint_does_not_hide_behind_another(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    save(model, tmp_path / "weft")
    save_dcp(model, tmp_path / "dcp")
    with pytest.raises(CheckpointError, match=r"has a checkpoint of another kind .index.json.*save to another folder"):
        save_dcp(model, tmp_path / "weft")
    for name in ("weft", "dcp"):
        with pytest.raises(CheckpointError, match="has a checkpoint of another kind"):
            save_pretrained(model, tmp_path / name)
        there = {path.name for path in (tmp_path / name).iterdir()}
        assert not {name for name in there if name.startswith(("model", ".model"))}
    save(torch.nn.Linear(3, 3), tmp_path / "dcp")
    assert load(tmp_path / "dcp")["weight"].shape == (3, 3)


class Counting(torch.nn.Linear):
    """A module that keeps more than tensors."""

    def get_extra_state(self) -> object:
        return {"seen": 3, "last": torch.ones(2)}


def test_what_a_module_keeps_besides_tensors_is_not_lost(tmp_path: Path) -> None:
    module = torch.nn.Sequential(Counting(2, 2))
    for act in (lambda: save(module, tmp_path / "x.safetensors"), lambda: save_pretrained(module, tmp_path / "folder")):
        with pytest.raises(CheckpointError, match=r"'0\._extra_state' of the module's state is no tensor"):
            act()
    assert not any(tmp_path.iterdir())
    save(module, tmp_path / "weft")
    assert load(tmp_path / "weft")["0._extra_state"]["seen"] == 3
