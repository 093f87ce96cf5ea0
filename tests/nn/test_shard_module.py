"""A module's parameters lie as the patterns say, and are otherwise what they were."""

from __future__ import annotations

import copy
import pickle
import re
import weakref

import pytest
import torch
from torch import nn

import weft
from weft import NamedMapping, P, Replicated, Sharded, Tensor
from weft.runtime.machine import use_separate_memory

MESH = weft.make_mesh({"dp": 2, "tp": 3})


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 6))


def test_the_first_match_decides_and_the_rest_is_replicated_and_listed() -> None:
    m = weft.nn.shard_module(model(), MESH, {"0.weight": P("tp", None), "*.weight": P("dp"), "1.running_*": "tp"})
    found = {name: x.placements for name, x in m.state_dict().items()}
    assert found["0.weight"] == (Replicated(), Sharded(0))
    assert found["2.weight"] == (Sharded(0), Replicated())
    assert found["1.running_mean"] == (Replicated(), Sharded(0))
    report = weft.nn.sharding_report(m)
    assert report.unmatched == ("0.bias", "1.bias", "1.num_batches_tracked", "2.bias")
    assert all(found[name] == (Replicated(), Replicated()) for name in report.unmatched)


def test_the_report_counts_bytes() -> None:
    m = weft.nn.shard_module(nn.Linear(6, 9), MESH, {"weight": P("tp", "dp")})
    report = weft.nn.sharding_report(m)
    assert report.bytes_per_device == 3 * 3 * 4 + 9 * 4
    assert "weight  (9, 6)  (tp, dp)  weight      36 of 216" in str(report)
    with pytest.raises(ValueError, match="was not given to shard_module itself"):
        weft.nn.sharding_report(nn.Linear(1, 1))


def test_values_flags_and_attributes_are_kept() -> None:
    m, before = model(), model()
    m[0].bias.requires_grad_(False)
    m[0].weight.no_weight_decay = True
    m(torch.ones(4, 6)).sum().backward()
    grad = m[0].weight.grad.clone()
    assert weft.nn.shard_module(m, MESH, {"0.*": P("tp")}) is m
    for name, x in before.named_parameters():
        assert isinstance(m.get_parameter(name), nn.Parameter)
        assert torch.equal(m.get_parameter(name).full_tensor(), x)
    assert not m[0].bias.requires_grad
    assert m[0].weight.requires_grad
    assert m[0].weight.no_weight_decay
    assert torch.equal(m[0].weight.grad.full_tensor(), grad)
    assert m[0].weight.grad.placements == m[0].weight.placements
    assert not isinstance(m[1].running_mean, nn.Parameter)


def test_tied_parameters_stay_tied() -> None:
    m = nn.Sequential(nn.Embedding(6, 9), nn.Linear(9, 6, bias=False))
    m[1].weight = m[0].weight
    weft.nn.shard_module(m, MESH, {"0.weight": P("tp", None)})
    assert m[0].weight is m[1].weight
    assert m[1].weight.mapping.spec == P("tp", None)
    assert "tied to 0.weight" in str(weft.nn.sharding_report(m))
    assert weft.nn.sharding_report(m).unmatched == ()
    assert len(list(m.parameters())) == 1


def test_sharding_again_moves() -> None:
    m = weft.nn.shard_module(nn.Linear(6, 9), MESH, {"weight": P("tp")})
    before = m.weight.full_tensor()
    weft.nn.shard_module(m, MESH, {"weight": P(None, "dp")})
    assert m.weight.mapping.spec == P(None, "dp")
    assert torch.equal(m.weight.full_tensor(), before)


# On a GPU, cuDNN would rather have all weights in one piece of memory.
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_recurrent_modules_keep_their_own_lists() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 3)
    x = torch.randn(5, 2, 6)
    expected, _ = lstm(x)
    weft.nn.shard_module(lstm, MESH, {"weight_ih*": P("tp")})
    found, _ = lstm(x)
    assert torch.allclose(found.full_tensor(), expected, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_sharded_modules_can_be_copied(copied) -> None:
    m = weft.nn.shard_module(model(), MESH, {"0.*": P("tp")})
    other = copied(m)
    assert other[0].weight.mapping == m[0].weight.mapping
    assert torch.equal(other[0].weight.full_tensor(), m[0].weight.full_tensor())
    assert isinstance(other[0].weight, nn.Parameter)
    with torch.no_grad():
        other[0].weight.zero_()
    assert m[0].weight.abs().sum() > 0


def test_copies_of_parameters_have_no_gradients() -> None:
    """As in torch, where only copies of other tensors do."""
    m = weft.nn.shard_module(nn.Linear(6, 9), MESH, {"weight": P("tp")})
    x = weft.shard(torch.ones(2, 6), MESH, P("dp")).requires_grad_()
    m(x).sum().backward()
    assert copy.deepcopy(m).weight.grad is None
    assert torch.equal(copy.deepcopy(x).grad.full_tensor(), x.grad.full_tensor())


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.bfloat16, lambda m: m.to(torch.float16)])
def test_conversion_keeps_layouts(convert) -> None:
    m = convert(weft.nn.shard_module(nn.Linear(6, 9), MESH, {"weight": P("tp")}))
    assert isinstance(m.weight, nn.Parameter)
    assert isinstance(m.weight, Tensor)
    assert m.weight.dtype is not torch.float32
    assert m.weight.mapping.layout(2) is NamedMapping(MESH, P("tp")).layout(2)


@pytest.mark.parametrize("separate", [False, True], ids=["one memory", "a memory each"])
def test_a_meta_module_comes_into_being_as_on_one_device(separate: bool) -> None:
    use_separate_memory(separate)
    try:
        torch.manual_seed(0)
        m = nn.Sequential(
            nn.Linear(6, 9, device="meta"), nn.BatchNorm1d(9, device="meta"), nn.Linear(9, 6, device="meta")
        )
        weft.nn.shard_module(m, MESH, {"0.*": P("tp"), "2.weight": P("dp", "tp")})
        expected = model().state_dict()
        assert {name: x.mapping.spec for name, x in m.named_parameters()}["2.weight"] == P("dp", "tp")
        for name, x in m.state_dict().items():
            assert torch.equal(x.full_tensor(), expected[name]), name
    finally:
        use_separate_memory(False)


def test_a_meta_module_never_exists_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = torch.empty

    def watched(*args, **kwargs):
        x = real(*args, **kwargs)
        made.extend([] if x.is_meta else [x.numel()])
        return x

    use_separate_memory(True)
    try:
        monkeypatch.setattr(torch, "empty", watched)
        weft.nn.shard_module(nn.Linear(6, 9, device="meta"), MESH, {"weight": P("tp", "dp")}, init=lambda module: None)
    finally:
        use_separate_memory(False)
    assert max(made) == 3 * 3


def test_init_replaces_reset_parameters() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(6, device="meta"))

    def ones(module: nn.Module) -> None:
        for x in module.parameters(recurse=False):
            nn.init.ones_(x)

    with pytest.raises(
        TypeError, match="'scale' is on the meta device, and Scale, which holds it, has no reset_parameters"
    ):
        weft.nn.shard_module(Scale(), MESH, {})
    m = weft.nn.shard_module(Scale(), MESH, {"scale": P("tp")}, init=ones)
    assert m.scale.mapping.spec == P("tp")
    assert m.scale.sum().item() == 6


INITS = [
    nn.init.uniform_, nn.init.normal_, nn.init.trunc_normal_, nn.init.xavier_uniform_, nn.init.xavier_normal_,
    nn.init.kaiming_uniform_, nn.init.kaiming_normal_, nn.init.orthogonal_, nn.init.ones_, nn.init.zeros_,
]  # fmt: skip


@pytest.mark.parametrize("spec", [P(), P("tp"), P("dp", "tp"), P(None, ("tp", "dp"))], ids=str)
@pytest.mark.parametrize("separate", [False, True], ids=["one memory", "a memory each"])
def test_init_functions_give_the_values_of_one_device(spec: P, separate: bool) -> None:
    use_separate_memory(separate)
    try:
        for init in INITS:
            torch.manual_seed(1)
            expected = init(torch.empty(6, 6))
            torch.manual_seed(1)
            found = weft.empty(6, 6, mapping=NamedMapping(MESH, spec))
            assert init(found) is found
            assert torch.equal(found.full_tensor(), expected), init.__name__
            assert found.mapping.spec == spec
    finally:
        use_separate_memory(False)


ERRORS = {
    "an axis that the mesh lacks": ({"0.weight": P("tpp")}, "the pattern '0.weight' is given P('tpp'): unknown mesh axis 'tpp': this mesh has "),
    "a misspelt name": ({"0.wieght": P("tp")}, "the pattern '0.wieght' matches no parameter or buffer of this module. Close names: '0.weight'"),
    "a misspelt end": ({"*.wieght": P("tp")}, "Close names: '0.weight'"),
    "nothing alike": ({"encoder.*": P("tp")}, "The names are: '0.weight', '0.bias', "),
    "too many entries": ({"*.bias": P("tp", None)}, "the pattern '*.bias' does not fit '0.bias' of shape (9,): P('tp', None) has 2 entries"),
    "an unknown axis": ({"*.bias": P("xp")}, "'xp'"),
    "another mesh": ({"*": NamedMapping(weft.make_mesh({"x": 2}), P("x"))}, "the mapping of '*' is for the mesh x=2, but the module goes to dp=2 × tp=3"),
    "something pending": ({"*": NamedMapping(MESH, P(), ["tp"])}, "leaves something pending or open"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_what_cannot_be_is_said_and_nothing_has_changed(case: str) -> None:
    patterns, message = ERRORS[case]
    m = model()
    with pytest.raises(ValueError, match=re.escape(message)):
        weft.nn.shard_module(m, MESH, patterns)
    assert not any(isinstance(x, Tensor) for x in m.parameters())


def test_tied_parameters_cannot_lie_in_two_ways() -> None:
    m = nn.Sequential(nn.Embedding(6, 9), nn.Linear(9, 6, bias=False))
    m[1].weight = m[0].weight
    with pytest.raises(ValueError, match=r"'0\.weight' and '1\.weight' are one tied tensor"):
        weft.nn.shard_module(m, MESH, {"0.weight": P("tp"), "1.weight": P("dp")})


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a torch\.nn\.Module, but got dict"):
        weft.nn.shard_module({}, MESH, {})
    with pytest.raises(TypeError, match="patterns need a DeviceMesh"):
        weft.nn.shard_module(model(), "mesh", {})
    with pytest.raises(TypeError, match="patterns are a dict"):
        weft.nn.shard_module(model(), MESH, [("*", P())])
    with pytest.raises(TypeError, match="a name pattern is a string"):
        weft.nn.shard_module(model(), MESH, {0: P()})
    with pytest.raises(TypeError, match=r"'\*' is given 3: give a spec such as P\('tp', None\)"):
        weft.nn.shard_module(model(), MESH, {"*": 3})


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_made_before_goes_on_with_the_parameters(name: str, steps_before: int, separate: bool) -> None:
    use_separate_memory(separate)
    try:
        plain, sharded = model().double(), model().double()
        held = list(sharded.parameters())
        optimizers = [OPTIMIZERS[name](m.parameters()) for m in (plain, sharded)]
        for step in range(steps_before + 2):
            if step == steps_before:
                weft.nn.shard_module(sharded, MESH, {"0.*": P("tp"), "2.weight": P("dp", "tp")})
                assert all(one is other for one, other in zip(held, sharded.parameters(), strict=True))
            x = torch.randn(4, 6, dtype=torch.float64)
            for m, optimizer in zip((plain, sharded), optimizers, strict=True):
                optimizer.zero_grad()
                m(x).square().sum().backward()
                optimizer.step()
        for one, other in zip(plain.parameters(), sharded.parameters(), strict=True):
            assert isinstance(other, Tensor)
            torch.testing.assert_close(other.full_tensor(), one, rtol=1e-6, atol=1e-6)
    finally:
        use_separate_memory(False)


def test_hooks_on_gradients_go_along() -> None:
    m, seen = nn.Linear(6, 9), []
    m.weight.register_post_accumulate_grad_hook(seen.append)
    weft.nn.shard_module(m, MESH, {"weight": P("tp")})
    m(torch.ones(2, 6)).sum().backward()
    assert len(seen) == 1
    assert seen[0] is m.weight


def test_an_optimizer_that_is_left_behind_is_told_of() -> None:
    m = nn.Linear(6, 9)
    reference, optimizer = weakref.ref(m.weight), torch.optim.SGD(m.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="an optimizer holds the old 'weight', which shard_module had to replace"):
        weft.nn.shard_module(m, MESH, {"weight": P("tp")})
    assert isinstance(m.weight, Tensor)
    assert m.weight is not reference()
    assert m.bias is optimizer.param_groups[0]["params"][1]


def test_a_parameter_that_cannot_stay_the_same_object_is_replaced() -> None:
    m = nn.Linear(6, 9)
    x = torch.randn(2, 6)
    alive = m(x)  # has saved the weight
    weft.nn.shard_module(m, MESH, {"weight": P("tp")})
    assert torch.allclose(m(x).full_tensor(), alive)
