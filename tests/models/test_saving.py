"""What the libraries of models save and load by themselves is what they save and load of the plain model."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.multiprocess.launching import Processes
from weft import P

hf = pytest.importorskip("transformers", reason="needs transformers: make test-models")
peft = pytest.importorskip("peft", reason="needs peft: make test-models")

WORDS = 48
MESH = weft.make_mesh({"dp": 2, "tp": 2})
PATTERNS = {
    "*embed_tokens.weight": P(None, "tp"),
    "*q_proj.weight": P("tp"),
    "*q_proj.base_layer.weight": P("tp"),
    "*lora_A*.weight": P("tp"),
    "*up_proj.weight": P("tp"),
    "*down_proj.weight": P(None, ("tp", "dp")),
    "*down_proj.base_layer.weight": P(None, ("tp", "dp")),
}

PRETRAINED = {"*embed_tokens.weight": P(None, "tp"), "*q_proj.weight": P("tp"), "*up_proj.weight": P("tp")}

pytestmark = pytest.mark.usefixtures("memory")


def llama(tied: bool = True, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    return hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=WORDS, tie_word_embeddings=tied, **sizes)).to(dtype)


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    names = [name for name, _ in model.named_parameters()]
    used = {pattern: spec for pattern, spec in PATTERNS.items() if fnmatch.filter(names, pattern)}
    return weft.nn.shard_module(model, MESH, used, init=lambda module: None)


def words() -> torch.Tensor:
    return torch.randint(3, WORDS, (4, 6), generator=torch.Generator().manual_seed(1))


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("size", ["50GB", "4KB"])
@pytest.mark.parametrize("tied", [True, False])
def test_save_pretrained_writes_what_it_writes_of_the_plain_model(tied: bool, size: str, tmp_path: Path) -> None:
    llama(tied).save_pretrained(tmp_path / "plain", max_shard_size=size)
    model = sharded(llama(tied))
    model.save_pretrained(tmp_path / "sharded", max_shard_size=size)
    model.save_pretrained(tmp_path / "given", state_dict=weft.checkpoint.full_state_dict(model))
    assert same(read(tmp_path / "sharded"), read(tmp_path / "plain"))
    assert same(read(tmp_path / "given"), read(tmp_path / "plain"))
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path / "sharded", dtype=torch.float64)
    assert same(again.state_dict(), llama(tied).state_dict())


@pytest.mark.parametrize("size", ["50GB", "4KB"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_pretrained_model_loads_into_a_sharded_one(tied: bool, size: str, tmp_path: Path) -> None:
    source = llama(tied, torch.bfloat16)
    source.save_pretrained(tmp_path, max_shard_size=size)
    with torch.device("meta"):
        model = llama(tied, torch.float32)
    weft.checkpoint.load(tmp_path, sharded(model), cast=True)
    found = weft.checkpoint.full_state_dict(model)
    assert same(found, {name: x.float() for name, x in source.state_dict().items()})
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


@pytest.mark.parametrize("tied", [True, False])
def test_pretrained_models_come_and_go_in_any_layout(tied: bool, tmp_path: Path) -> None:
    source = llama(tied)
    source.save_pretrained(tmp_path / "plain", max_shard_size="4KB")
    model = weft.checkpoint.from_pretrained(hf.LlamaForCausalLM, tmp_path / "plain", MESH, PRETRAINED)
    assert model.model.layers[0].mlp.up_proj.weight.mapping.spec == P("tp")
    assert same(weft.checkpoint.full_state_dict(model), source.state_dict())
    assert torch.allclose(model(words()).logits.full_tensor(), source.eval()(words()).logits)
    weft.checkpoint.save_pretrained(model, tmp_path / "sharded", max_file_bytes=4000)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert same(read(tmp_path / "sharded"), read(tmp_path / "plain"))
    again = hf.LlamaForCausalLM.from_pretrained(tmp_path / "sharded", dtype=torch.float64)
    assert same(again.state_dict(), source.state_dict())


@pytest.mark.multiprocess
@pytest.mark.timeout(300)
def test_four_processes_read_a_model_of_which_none_holds_a_whole_tensor(tmp_path: Path) -> None:
    source = llama(False, torch.float32).eval()
    source.save_pretrained(tmp_path / "llama", max_shard_size="8KB")
    assert len(list((tmp_path / "llama").glob("*.safetensors"))) > 3
    with Processes([str(Path(__file__).with_name("pretrained.py")), str(tmp_path / "llama")], 4, fresh=True) as started:
        ended = started.wait(280)
    assert [each.status for each in ended] == [0] * 4, ended[0].err
    (said,) = {each.out for each in ended}
    expected = round(source(torch.arange(6)[None]).logits.double().sum().item(), 4)
    assert said.splitlines()[0] == "True True"
    assert float(said.splitlines()[1]) == pytest.approx(expected, abs=1e-3)
    assert same(read(tmp_path / "llama-again"), read(tmp_path / "llama"))


ADAPTERS = {
    "lora": lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1),
    "dora": lambda: peft.LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "down_proj"]),
    "ia3": lambda: peft.IA3Config(target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
}
ORDERS = {
    "the model is sharded": lambda model, adapter: peft.get_peft_model(sharded(model), adapter),
    "the adapted model is sharded": lambda model, adapter: sharded(peft.get_peft_model(model, adapter)),
}


def trained(model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    torch.manual_seed(2)
    losses = []
    for _ in range(3):
        loss = model(input_ids=words(), labels=words()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_adapters_train_save_and_load(kind: str, order: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    plain = peft.get_peft_model(llama(), ADAPTERS[kind]())
    torch.manual_seed(1)
    model = ORDERS[order](llama(), ADAPTERS[kind]())
    model.load_state_dict(plain.state_dict())  # the adapters' own random numbers are drawn in another order
    assert trained(model) == pytest.approx(trained(plain), rel=1e-6)  # the model computes its loss in float32
    plain.save_pretrained(tmp_path / "plain")
    model.save_pretrained(tmp_path / "sharded")
    ours, theirs = read(tmp_path / "sharded"), read(tmp_path / "plain")
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)
    again = peft.PeftModel.from_pretrained(sharded(llama()), tmp_path / "sharded").eval()
    found, expected = (m.eval()(input_ids=words()).logits.full_tensor() for m in (again, model))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
