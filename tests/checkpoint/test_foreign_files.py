"""Files that other libraries wrote (one file or several with an index, tied weights once, bf16) load into sharded models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import weft
from weft import P
from weft.checkpoint.files.head import DTYPES

MESH = weft.make_mesh({"dp": 2, "tp": 3})
SPECS = [P(), P("tp"), P(None, "tp"), P("tp", "dp"), P(("dp", "tp"))]


class Model(torch.nn.Module):
    """An embedding that is also the head, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = torch.nn.Embedding(12, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 12)
        self.head.weight = self.embed.weight


def written(folder: Path, tensors: dict[str, torch.Tensor], files: int) -> Path:
    """The tensors as `save_pretrained` writes them."""
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    for i, name in enumerate(tensors):
        weight_map[name] = f"model-{i % files + 1:05d}-of-{files:05d}.safetensors"
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name, where in weight_map.items() if where == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("kept", ["embed.weight", "head.weight", "both"])
def test_tied_weights_need_one_of_their_names(kept: str, files: int, spec: P, tmp_path: Path) -> None:
    source = Model()
    whole = {name: x.detach().clone() for name, x in source.state_dict().items()}
    tensors = {name: x for name, x in whole.items() if x.shape != (12, 6) or kept in (name, "both")}
    model = weft.nn.shard_module(Model(), MESH, {"embed.weight": spec, "head.weight": spec, "body.weight": spec})
    weft.checkpoint.load(written(tmp_path, tensors, files), model)
    assert model.head.weight is model.embed.weight
    for name, x in model.state_dict().items():
        assert torch.equal(x.full_tensor(), whole[name])


def test_of_two_values_for_a_tied_weight_the_first_counts(tmp_path: Path) -> None:
    whole = {name: x.detach().clone() for name, x in Model().state_dict().items()}
    whole["head.weight"] = whole["embed.weight"] + 1
    model = weft.nn.shard_module(Model(), MESH, {"embed.weight": SPECS[0], "head.weight": SPECS[0]})
    weft.checkpoint.load(written(tmp_path, whole, 3), model)
    assert torch.equal(model.head.weight.full_tensor(), whole["embed.weight"])


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_all_words_for_dtypes_are_those_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.arange(2 * dtype.itemsize, dtype=torch.uint8).remainder(2).view(dtype)
    weft.checkpoint.save({"x": x}, tmp_path / "x.safetensors")  # the library itself looks at the file that is loaded
    back = weft.checkpoint.load(tmp_path / "x.safetensors")["x"]
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), x.view(torch.uint8))


def test_what_is_tied_to_nothing_is_still_missed(tmp_path: Path) -> None:
    whole = Model().state_dict()
    written(tmp_path, {name: whole[name] for name in ("body.weight", "body.bias", "head.bias")}, 1)
    model = weft.nn.shard_module(Model(), MESH, {})
    with pytest.raises(
        weft.checkpoint.CheckpointError, match=r"has no 'embed\.weight', 'head\.weight' in the checkpoint"
    ):
        weft.checkpoint.load(tmp_path, model)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(("kept", "wanted"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float16", "float64")])
def test_floating_point_files_load_into_another_dtype_on_request(
    kept: str, wanted: str, spec: P, tmp_path: Path
) -> None:
    before, after = getattr(torch, kept), getattr(torch, wanted)
    source = torch.nn.Linear(6, 9, dtype=before)
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    model = weft.nn.shard_module(torch.nn.Linear(6, 9, dtype=after), MESH, {"weight": spec})
    with pytest.raises(weft.checkpoint.CheckpointError, match=f"is torch.{kept} in .* pass cast=True to convert it"):
        weft.checkpoint.load(tmp_path, model)
    weft.checkpoint.load(tmp_path, model, cast=True)
    assert model.weight.dtype == after
    assert torch.equal(model.weight.full_tensor(), source.weight.to(after))
    plain = weft.checkpoint.load(tmp_path, torch.nn.Linear(6, 9, dtype=after), cast=True)
    assert torch.equal(plain.weight, source.weight.to(after))


def test_whole_numbers_are_not_cast(tmp_path: Path) -> None:
    save_file({"x": torch.arange(4)}, tmp_path / "x.safetensors")
    like = {"x": weft.shard(torch.zeros(4), MESH, P("dp"))}
    with pytest.raises(weft.checkpoint.CheckpointError, match=r"'x' is torch\.int64 in the checkpoint"):
        weft.checkpoint.load(tmp_path / "x.safetensors", like, cast=True)
