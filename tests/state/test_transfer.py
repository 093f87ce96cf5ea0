"""A whole state in other layouts, dtypes and names is the state that it was."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.state.cases import case, check
from weft import Fused, NamedMapping, P, TensorLayout


def meshes() -> list[weft.DeviceMesh]:
    devices = [weft.CPU(i) for i in range(6)]
    return [
        weft.make_mesh({"dp": 2, "tp": 2}, devices=devices[:4]),
        weft.make_mesh({"x": 3}, devices=devices[3:]),
        weft.make_mesh({"x": 4}, devices=devices[:4]),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_moving_keeps_the_state_and_takes_what_was_planned(seed: int) -> None:
    found = case(seed, meshes())
    plan = weft.plan_state(found.state, found.wanted.__getitem__)
    with weft.comm_log() as log, weft.reshard_policy("raise"):
        moved = weft.transfer_state(found.state, found.wanted.__getitem__)
    check(found, moved)
    assert log.total_bytes == plan.bytes_received.total == plan.lower_bound.total
    assert {(record.op, record.implicit) for record in log} <= {("transfer_state", False)}


def test_every_form_says_the_same(memory: str) -> None:
    trainer, server, _ = meshes()
    state = weft.shard({"a": torch.ones(8, 8), "b": torch.ones(5)}, trainer, P(("dp", "tp")))
    with weft.comm_log() as log:
        weft.transfer_state(state, NamedMapping(server, P("x")))
    assert [(r.kind, r.bytes_received, r.total_bytes) for r in log] == [("exchange", 96, 256), ("exchange", 8, 20)], (
        memory
    )


def test_a_module_and_other_things_in_a_tree() -> None:
    trainer, server, _ = meshes()
    model = weft.nn.shard_module(torch.nn.Linear(6, 4), trainer, {"weight": P("tp", "dp")})
    state = {"model": model, "step": 3, "more": [None, "text", weft.shard(torch.arange(5), trainer, P("dp"))]}
    moved = weft.transfer_state(state, NamedMapping(server, P("x")), torch.bfloat16)
    assert (moved["step"], moved["more"][:2]) == (3, [None, "text"])
    assert torch.equal(moved["more"][2].full_tensor(), torch.arange(5))
    weight = moved["model"]["weight"]
    assert not weight.requires_grad
    assert torch.equal(weight.full_tensor(), model.weight.full_tensor().bfloat16())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float32, torch.float64])
def test_what_has_fewer_bytes_travels(dtype: torch.dtype) -> None:
    trainer, server, _ = meshes()
    x = torch.randn(6, 6)
    state = weft.shard({"w": x, "n": torch.arange(6)}, trainer, P("dp"))
    plan = weft.plan_state(state, NamedMapping(server, P("x")), dtype)
    assert plan.entries[0].passages[0].itemsize == min(4, dtype.itemsize)
    moved = weft.transfer_state(state, NamedMapping(server, P("x")), dtype)
    assert torch.equal(moved["w"].full_tensor(), x.to(dtype))
    assert moved["n"].dtype is torch.int64


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_parts_become_one_and_come_back(dim: int) -> None:
    trainer, server, _ = meshes()
    shapes = {"q": 7, "k": 3, "v": 2}
    parts = {
        f"{layer}.{name}": torch.randn((size, 6) if dim == 0 else (6, size))
        for layer in range(2)
        for name, size in shapes.items()
    }
    state = weft.shard({**parts, "head": torch.ones(4, 4)}, trainer, P("tp", "dp"))
    fused = ("*.q", "*.k", "*.v")
    with weft.comm_log() as log:
        joined = weft.transfer_state(state, NamedMapping(server, P("x")), names={"*.qkv": Fused(fused, dim)})
    assert sorted(joined) == ["0.qkv", "1.qkv", "head"]
    for layer in range(2):
        whole = torch.cat([parts[f"{layer}.{name}"] for name in shapes], dim)
        assert torch.equal(joined[f"{layer}.qkv"].full_tensor(), whole)
    plan = weft.plan_state(state, NamedMapping(server, P("x")), names={"*.qkv": Fused(fused, dim)})
    assert log.total_bytes == plan.bytes_received.total
    split = {Fused(fused, dim, (7, 3, 2)): "*.qkv"}
    back = weft.transfer_state(joined, {"*": P(None, "tp")}, names=split, mesh=trainer)
    for name, x in parts.items():
        assert torch.equal(back[name].full_tensor(), x)
        assert back[name].mapping.spec == P(None, "tp")


def test_every_device_receives_of_a_part_what_it_lacks() -> None:
    mesh = weft.make_mesh({"x": 4})
    state = weft.shard({"a": torch.ones(8), "b": torch.ones(8)}, mesh, P("x"))
    plan = weft.plan_state(state, NamedMapping(mesh, P("x")), names={"ab": ("a", "b")})
    # Of 4 elements each, devices have held: 0 and 1 of a; 2 and 3 of a; 4 to 5 of b; 6 to 7 of b.
    assert plan.bytes_received.total == (2 + 4 + 4 + 2) * 4
    assert plan.messages == 6


def test_into_tensors_that_are_there() -> None:
    trainer, server, _ = meshes()
    x = torch.randn(6, 5)
    state = weft.shard({"w": x, "b": x[0]}, trainer, P("dp"))
    model = weft.shard({"w": torch.zeros(6, 5).bfloat16(), "b": torch.zeros(5)}, server, P("x"))
    view, before = model["w"][1:4], model["w"]._version
    kept = {name: (each, each.mapping) for name, each in model.items()}
    assert weft.transfer_state(state, into=model) is model
    for name, (each, mapping) in kept.items():
        assert model[name] is each
        assert each.mapping == mapping
    assert torch.equal(model["w"].full_tensor(), x.bfloat16())
    assert torch.equal(model["b"].full_tensor(), x[0])
    assert torch.equal(view.full_tensor(), x.bfloat16()[1:4])
    assert model["w"]._version > before


def test_into_a_module_and_into_views() -> None:
    trainer, server, _ = meshes()
    plain = torch.nn.Linear(6, 4)
    model = weft.nn.shard_module(torch.nn.Linear(6, 4), server, {"weight": P(None, "x")})
    state = weft.shard(dict(plain.state_dict()), trainer, P("dp"))
    weft.transfer_state(state, into=model)
    assert torch.equal(model.weight.full_tensor(), plain.weight)
    assert model.weight.requires_grad
    base = weft.shard(torch.zeros(8), server, P("x"))
    weft.transfer_state({"v": weft.shard(torch.ones(3), trainer, P("dp"))}, into={"v": base[2:5]})
    assert base.full_tensor().tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("where", [slice(None, 6), slice(2, None)])
def test_parts_go_into_views(where: slice) -> None:
    trainer, server, _ = meshes()
    base = weft.zeros(8, 6, mapping=NamedMapping(server, P("x")))
    parts = {"q": torch.randn(4, 6), "k": torch.randn(2, 6)}
    state = weft.shard(parts, trainer, P("dp"))
    weft.transfer_state(state, into={"qk": base[where]}, names={"qk": ("q", "k")})
    assert torch.equal(base[where].full_tensor(), torch.cat(list(parts.values())))
    split = {"q": base[where][:4], "k": base[where][4:]}
    weft.transfer_state({"qk": weft.ones(6, 6)}, into=split, names={("q", "k"): "qk"})
    assert base.sum().item() == 36


def test_a_state_is_written_to_itself_under_other_names() -> None:
    trainer, _, _ = meshes()
    a, b = torch.randn(6, 5), torch.randn(6, 5)
    state = weft.shard({"a": a, "b": b}, trainer, P("dp"))
    weft.transfer_state(state, into=state, names={"a": "b", "b": "a"})
    assert torch.equal(state["a"].full_tensor(), b)
    assert torch.equal(state["b"].full_tensor(), a)
    whole = weft.shard(torch.arange(8.0), trainer, P("dp"))
    weft.transfer_state({"a": whole[:4], "b": whole[4:]}, into={"a": whole[4:], "b": whole[:4]})
    assert whole.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


def test_parts_of_several_dtypes_become_the_one_that_was_asked_for() -> None:
    trainer, server, _ = meshes()
    parts = {"q": torch.randn(4, 6), "k": torch.randn(2, 6).bfloat16()}
    state = weft.shard(parts, trainer, P("dp"))
    whole = torch.cat([each.half() for each in parts.values()])
    moved = weft.transfer_state(state, NamedMapping(server, P("x")), torch.float16, names={"qk": ("q", "k")})
    assert torch.equal(moved["qk"].full_tensor(), whole)
    into = {"qk": weft.zeros(6, 6, dtype=torch.float16, mapping=NamedMapping(server, P("x")))}
    weft.transfer_state(state, into=into, names={"qk": ("q", "k")})
    assert torch.equal(into["qk"].full_tensor(), whole)


def test_what_depends_on_a_tensor_knows_that_it_was_written_to() -> None:
    trainer, server, _ = meshes()
    x, w, new = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8)
    split, weight = weft.shard(x, trainer, P(None, "tp")), weft.shard(w, trainer, P("tp"))
    pending = split @ weight
    rows = weft.shard(x, trainer, P("tp"))
    before = rows @ weight
    weft.transfer_state({"w": weft.shard(new, server, P("x"))}, into={"w": weight})
    torch.testing.assert_close(pending.full_tensor(), x @ w)
    torch.testing.assert_close(sum(pending.local_shards[:2]), x @ w)
    torch.testing.assert_close(before.full_tensor(), x @ w)
    torch.testing.assert_close((rows @ weight).full_tensor(), x @ new)


def test_what_is_pending_is_reduced() -> None:
    trainer, server, _ = meshes()
    x, w = torch.randn(4, 8), torch.randn(8, 4)
    pending = weft.shard(x, trainer, P(None, "tp")) @ weft.shard(w, trainer, P("tp", None))
    state = {"y": pending, "w": weft.shard(w, trainer, P("dp"))}
    plan = weft.plan_state(state, NamedMapping(server, P("x")))
    with weft.comm_log() as log:
        moved = weft.transfer_state(state, NamedMapping(server, P("x")))
    torch.testing.assert_close(moved["y"].full_tensor(), x @ w)
    assert log.total_bytes == plan.bytes_received.total


def test_large_tensors_go_through_hosts_where_a_cable_is_spared() -> None:
    devices = [weft.CPU(i) for i in range(6)]
    trainer, server = weft.DeviceMesh(devices[:2], (2,), ("a",)), weft.DeviceMesh(devices[2:], (4,), ("b",))
    state = weft.shard({"large": torch.randn(1024, 1025), "small": torch.randn(64)}, trainer, P("a"))
    replicated = NamedMapping(server, P())

    def steps(**options: object) -> list[str | None]:
        entries = weft.plan_state(state, replicated, **options).entries
        return [entry.plan and entry.plan.steps[0].described for entry in entries]

    assert steps() == [None, None]
    with weft.use_topology(weft.Topology(hosts=(0, 0, 1, 1, 1, 1))):
        assert steps() == ["exchange, host by host", None]
        assert steps(verify=True) == [None, None]  # what is checked goes in messages
        plan = weft.plan_state(state, replicated)
        with weft.comm_log() as log:
            moved = weft.transfer_state(state, replicated)
    assert plan.bytes_received.total == plan.lower_bound.total == log.total_bytes
    for name, x in state.items():
        assert torch.equal(moved[name].full_tensor(), x.full_tensor())


def test_tied_tensors_travel_once_and_stay_tied() -> None:
    trainer, server, _ = meshes()
    x = weft.shard(torch.ones(8, 4), trainer, P("dp"))
    plan = weft.plan_state({"embedding": x, "head": x}, NamedMapping(server, P("x")))
    assert [entry.name for entry in plan.entries] == ["embedding"]
    moved = weft.transfer_state({"embedding": x, "head": x}, NamedMapping(server, P("x")))
    assert moved["embedding"] is moved["head"]


def test_plain_tensors_are_whole_everywhere() -> None:
    _, server, _ = meshes()
    with weft.comm_log() as log:
        moved = weft.transfer_state({"w": torch.arange(6)}, NamedMapping(server, P("x")))
    assert moved["w"].full_tensor().tolist() == [0, 1, 2, 3, 4, 5]
    assert log.total_bytes == 0


def test_what_is_written_to_the_old_state_does_not_show() -> None:
    trainer, _, line = meshes()
    old = weft.shard({"w": torch.zeros(4)}, trainer, P("dp"))
    new = weft.transfer_state(old, NamedMapping(line, P("x")))
    old["w"].add_(1)
    assert new["w"].full_tensor().tolist() == [0, 0, 0, 0]


def test_a_large_state_is_planned_without_memory() -> None:
    trainer, server = weft.make_mesh({"dp": 64, "tp": 8}), weft.make_mesh({"tp": 128})
    words = TensorLayout("bfloat16", (128256, 8192), NamedMapping(trainer, P("dp", "tp")))
    plan = weft.plan_state({"embedding": words, "head": words}, NamedMapping(server, P("tp")))
    assert [entry.name for entry in plan.entries] == ["embedding", "head"]
    assert plan.bytes_received.total == plan.lower_bound.total
    with pytest.raises(TypeError, match="transfer_state moves tensors, but 'embedding' is only the layout of one"):
        weft.transfer_state({"embedding": words}, NamedMapping(server, P("tp")))


def test_a_plan_says_what_it_is() -> None:
    mesh = weft.make_mesh({"tp": 4})
    state = {f"layers.{i}.w": weft.shard(torch.ones(1024, 4), mesh, P("tp")) for i in range(3)}
    plan = weft.plan_state(state, NamedMapping(mesh, P(None, "tp")))
    assert str(plan).splitlines() == [
        "Plan of a state of 3 tensors, 48 KiB",
        "  received  9 KiB on the busiest device, 36 KiB in all (at least 36 KiB)",
        "  memory    24 KiB on the fullest device, before and after together",
        "  messages  of at most 16 MiB",
        "",
        "       such as     shape     from             to               received",
        "  3 ×  layers.0.w  1024 × 4  (tp, –) on tp=4  (–, tp) on tp=4  36 KiB",
    ]
    assert plan.messages == 12
    assert plan.to_dict()["bytes_received"] == {"max": 9216, "total": 36864}
    assert weft.plan_state(state, NamedMapping(mesh, P(None, "tp")), bucket=1024).messages == 12 * 3


def in_inference_mode(x: weft.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


ERRORS = [
    (lambda s, m: weft.plan_state(s), "plan_state needs mappings, or a state to write to"),
    (lambda s, m: weft.transfer_state(s, "tp"), "mappings are one mapping, a dict of name patterns, or a function"),
    (lambda s, m: weft.transfer_state(s, {"*": P("x")}), "give specs, but no mesh: give mesh="),
    (lambda s, m: weft.transfer_state(s, {"z*": m}), "the pattern 'z*' matches no tensor of this state"),
    (lambda s, m: weft.transfer_state(s, m, "bf16"), "takes a torch.dtype, but got 'bf16'"),
    (lambda s, m: weft.transfer_state(s, m, bucket=8), "a bucket has 16 bytes or more, but got 8"),
    (lambda s, m: weft.transfer_state(s, m, names=["a"]), "names are a dict of new names and old ones"),
    (lambda s, m: weft.transfer_state(s, m, names={"c": "z"}), "the name 'z' fits no tensor of the state. The names are: 'a', 'b'"),
    (lambda s, m: weft.transfer_state(s, m, names={"b": "a"}), "two tensors would be called 'b', one from 'a', one from 'b'"),
    (lambda s, m: weft.transfer_state(s, m, names={"ab": ("a", "b")}), "'ab' cannot be put together along dim 0: its parts differ"),
    (lambda s, m: weft.transfer_state({"a": s["a"], "b": s["a"].long()}, m, names={"ab": ("a", "b")}), "'ab' is put together of several dtypes: 'a' torch.float32, 'b' torch.int64"),
    (lambda s, m: weft.transfer_state({"a": s["a"], "b": s["a"].bfloat16()}, m, names={"ab": ("a", "b")}), "one where dtype= or into= says which"),
    (lambda s, m: weft.transfer_state({"a": torch.eye(4).to_sparse()}, m), "only dense tensors are moved, but one of shape (4, 4) is torch.sparse_coo"),
    (lambda s, m: weft.transfer_state({"a": s["a"]}, into={"a": in_inference_mode(s["a"])}), "which was made in inference mode: call it inside"),
    (lambda s, m: weft.transfer_state(s, m, names={Fused(("c", "d")): "b"}), "not 2 equal parts: give Fused(names, sizes=...)"),
    (lambda s, m: weft.transfer_state(s, m, names={Fused(("c", "d"), sizes=(1, 3)): "b"}), "have [1, 3]: they add up to 4"),
    (lambda s, m: weft.transfer_state(s, m, names={("c", "d"): ("a", "b")}), "makes one tensor of several, or several of one"),
    (lambda s, m: weft.transfer_state(s, m, names={"c.*": "a"}), "all names of a row have as many *"),
    (lambda s, m: weft.transfer_state(s, into={"a": s["a"]}), "into has no 'b': rename with names="),
    (lambda s, m: weft.transfer_state({"a": s["a"]}, into=s), "the state has no 'b'"),
    (lambda s, m: weft.transfer_state(s, into={"a": s["b"], "b": s["a"]}), "'a' has the shape (4, 2), but into has (5,) there"),
    (lambda s, m: weft.transfer_state(s, into={"a": torch.ones(4, 2), "b": s["b"]}), "'a' of into is a plain one: weft.shard it"),
    (lambda s, m: weft.transfer_state(s, m, into=s), "another layout was given for 'a' than into has"),
    (lambda s, m: weft.transfer_state(s, NamedMapping(m.mesh, P("x", None, None))), "the mapping of 'a' does not fit its shape (4, 2)"),
    (lambda s, m: weft.transfer_state({"a.b": s["a"], "a": {"b": s["b"]}}, m), "two are called 'a.b': rename one of them"),
    (lambda s, m: weft.transfer_state(s, lambda name: P("x")), "'a' needs a mapping, but got P('x')"),
    (lambda s, m: Fused("qkv"), "Fused takes the names of its parts, but got 'qkv'"),
    (lambda s, m: Fused(("q", "k"), sizes=(1,)), "needs a size for each of its 2 parts, but got (1,)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), ERRORS, ids=[text[:40] for _, text in ERRORS])
def test_mistakes_are_named_before_anything_moves(call: object, text: str) -> None:
    trainer, server, _ = meshes()
    state = {"a": weft.shard(torch.ones(4, 2), trainer, P("dp")), "b": weft.shard(torch.ones(5), trainer, P("dp"))}
    assert callable(call)
    with weft.comm_log() as log, pytest.raises((TypeError, ValueError)) as raised:
        call(state, NamedMapping(server, P("x")))
    assert text in str(raised.value)
    assert not len(log)
