"""`torch.compile` of a sharded model gives what the model gives."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode

import weft
from examples.models import gpt2, llama
from weft import P
from weft.engine.moves.movement import aligned_meanwhile
from weft.engine.moves.own_whole import own_whole
from weft.runtime.machine import use_separate_memory
from weft.runtime.traced import is_traced
from weft.sharding.layout import Layout
from weft.tensor.leaf_gradient import gradient_in
from weft.tensor.named_pieces import piece_names

MESH = weft.make_mesh({"dp": 2, "tp": 2})
LAYOUTS = {"tensor parallel": ({"0.*": P("tp"), "2.weight": P(None, "tp")}, P("dp")), "data parallel": ({}, P("dp"))}
needs_values = pytest.mark.skipif(
    torch.__version__ < "2.13",
    reason="before torch 2.13 no program can have meshes and specs in it, and graphs break there",
)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_compiled_model_trains_alike(layout: str) -> None:
    patterns, spec = LAYOUTS[layout]
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()
    model = weft.nn.shard_module(copy.deepcopy(plain), MESH, patterns)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, model)]
    for _ in range(2):
        x = torch.randn(4, 6, dtype=torch.float64)
        results = plain(x), compiled(weft.shard(x, MESH, spec))
        torch.testing.assert_close(results[1].full_tensor(), results[0], rtol=1e-9, atol=1e-12)
        for result, optimizer in zip(results, optimizers, strict=True):
            optimizer.zero_grad()
            result.square().sum().backward()
            optimizer.step()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.full_tensor(), one, rtol=1e-9, atol=1e-12)
        assert other.grad.mapping.layout(other.dim()) is other.mapping.layout(other.dim())


MODELS = {
    "gpt2": (lambda: gpt2.GPT2(11, 6, 8, 2, 1), gpt2.LAYOUTS["tp"]),
    "llama": (lambda: llama.Llama(11, 6, 8, 2, 2, 12, 1), llama.LAYOUTS["tp"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_transformer_is_one_graph(name: str) -> None:
    make, patterns = MODELS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    plain = make().double()
    model = weft.nn.shard_module(copy.deepcopy(plain), MESH, patterns)
    tokens = torch.randint(0, 11, (4, 6))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(weft.shard(tokens, MESH, P("dp")))
    expected = plain(tokens)
    torch.testing.assert_close(compiled.full_tensor(), expected, rtol=1e-9, atol=1e-12)
    for result in (compiled, expected):
        result.square().mean().backward()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.skipif(not (shutil.which("g++") or torch.cuda.is_available()), reason="inductor compiles C++ on CPUs")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
def test_inductor_compiles_forward_and_backward() -> None:
    torch._dynamo.reset()
    x, w = torch.randn(4, 6), torch.randn(6, 6)
    ours = weft.shard(x, MESH, P("dp")), weft.shard(w, MESH, P("tp", None)).requires_grad_()
    loss = torch.compile(lambda x, w: (x @ w).relu().sum(), fullgraph=True)(*ours)
    loss.backward()
    plain = w.clone().requires_grad_()
    expected = (x @ plain).relu().sum()
    expected.backward()
    torch.testing.assert_close(loss.full_tensor(), expected)
    torch.testing.assert_close(ours[1].grad.full_tensor(), plain.grad)


def test_what_is_kept_of_a_compilation_depends_on_the_layout() -> None:
    x = torch.randn(4, 6)
    hashes = [
        weft.shard(x, MESH, spec)._stable_hash_for_caching() for spec in (P("dp"), P("tp"), P(None, "dp"), P("dp"))
    ]
    assert len(set(hashes)) == 3
    assert hashes[0] == hashes[3]


ACROSS = weft.NamedMapping(MESH, P(None, "dp"))
COMMUNICATION = {
    "shard": lambda x: weft.shard(x, MESH, P(None, "tp")) + 1,
    "shard a tree": lambda x: weft.shard({"a": [x * 2]}, MESH, P("tp", "dp"))["a"][0] + 1,
    "all_reduce": lambda x: weft.all_reduce(x * 2, "sum", "dp"),
    "all_gather": lambda x: weft.all_gather(x.sin()),
    "reduce_scatter": lambda x: weft.reduce_scatter(x * 2, 0),
    "all_to_all": lambda x: weft.all_to_all(x * 2, 1, 0),
    "ppermute": lambda x: weft.ppermute(x.sin(), [(0, 2), (1, 3), (2, 0), (3, 1)]),
    "distributed_broadcast": lambda x: weft.distributed_broadcast(x * 2),
    "to_device": lambda x: weft.to_device(x * 2, weft.CPU(1)),
    "to_device as a mapping says": lambda x: weft.to_device(x * 2, sharding=ACROSS),
    "redistribute": lambda x: x.redistribute(weft.NamedMapping(MESH, P(("tp", "dp")))) * 2,
    "redistribute by placements": lambda x: x.redistribute(placements=[weft.Sharded(1), weft.Replicated()]) * 2,
    "full_tensor": lambda x: x.full_tensor() * MESH.axis_size("tp"),
}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_a_compiler_that_skips_modules_does_not_look_into_ours(separate: bool) -> None:
    """`module.compile()` of torch's own containers runs them as they are; ops inside of them are not traced, which would warn."""
    use_separate_memory(separate)
    try:
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
        weft.nn.shard_module(model, MESH, LAYOUTS["tensor parallel"][0])
        model.compile(backend="aot_eager")
        x = weft.shard(torch.randn(4, 6), MESH, P("dp"))
        torch.testing.assert_close(model(x).full_tensor(), model.forward(x).full_tensor())
    finally:
        use_separate_memory(False)


@needs_values
def test_tensors_are_made_in_compiled_code() -> None:
    """In a layout that is said there; where that function breaks the graph, the mapping goes on to the rest."""
    torch._dynamo.reset()
    x = weft.shard(torch.randn(4, 6), MESH, P("dp"))
    made = torch.compile(lambda x: x + weft.ones(4, 6, mapping=weft.NamedMapping(MESH, P("dp"))), backend="aot_eager")
    assert torch.equal(made(x).full_tensor(), x.full_tensor() + 1)


@needs_values
@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_communication_is_part_of_the_graph(separate: bool) -> None:
    use_separate_memory(separate)
    try:
        for op, function in COMMUNICATION.items():
            torch._dynamo.reset()
            x = weft.shard(torch.randn(4, 6), MESH, P("dp")).requires_grad_()
            found, expected = torch.compile(function, backend="aot_eager", fullgraph=True)(x), function(x)
            grads = [torch.autograd.grad(y.square().sum(), x)[0].full_tensor() for y in (found, expected)]
            assert torch.allclose(*grads), op
            if isinstance(expected, weft.Tensor):
                assert found.mapping == expected.mapping, op
                found, expected = found.full_tensor(), expected.full_tensor()
            assert torch.equal(found, expected), op
    finally:
        use_separate_memory(False)


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_local_map_breaks_the_graph_and_is_right() -> None:
    x = weft.shard(torch.randn(4, 6), MESH, P("dp"))

    def most(shard: torch.Tensor) -> torch.Tensor:
        return weft.all_reduce(shard, "max")

    made_before = weft.local_map(most, P("dp"), P(), mesh=MESH)
    programs = (
        lambda x: made_before(x * 2) + 1,
        lambda x: weft.local_map(most, P("dp"), P(), mesh=MESH)(x * 2) + 1,
    )
    for program in programs:
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(program, backend="aot_eager", fullgraph=True)(x)
        torch._dynamo.reset()
        assert torch.allclose(torch.compile(program, backend="aot_eager")(x).full_tensor(), program(x).full_tensor())


@needs_values
def test_a_plain_tensor_enters_in_compiled_code() -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 6)
    found = torch.compile(lambda x: weft.shard(x, MESH, P("tp")) * 2, backend="aot_eager", fullgraph=True)(x)
    assert found.mapping.spec == P("tp", None)
    assert torch.equal(found.full_tensor(), x * 2)


@needs_values
@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_what_moves_is_logged_each_time(separate: bool) -> None:
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        x = weft.shard(torch.randn(8, 6), MESH, P("dp")).requires_grad_()
        w = weft.shard(torch.randn(6, 6), MESH, P("tp", None))

        def program(x: torch.Tensor) -> torch.Tensor:
            y = (x @ w).relu().roll(1, 0)
            return weft.ppermute(y, [(0, 2), (1, 3), (2, 0), (3, 1)]).softmax(0).square().sum()

        compiled = torch.compile(program, backend="aot_eager", fullgraph=True)
        compiled(x)  # nobody watches
        logs = []
        for run in (program, compiled, compiled):
            with weft.comm_log() as log:
                run(x).backward()
            logs.append([(r.kind, r.axes, r.source, r.target, r.bytes_received, r.op, r.implicit) for r in log])
            lines = {(r.call_site.file, r.call_site.line) for r in log if not r.op.endswith("backward.default")}
            start = program.__code__.co_firstlineno
            assert {(__file__, start + 1), (__file__, start + 2)} <= lines, lines
        assert logs[0] == logs[1] == logs[2]
        with weft.reshard_policy("raise"), pytest.raises(weft.ReshardError, match=r"test_compile\.py:\d+ "):
            compiled(x)
        with weft.reshard_policy("warn"), pytest.warns(weft.watch.policy.ReshardWarning):
            compiled(x)
    finally:
        use_separate_memory(False)


class Projected(nn.Module):
    """Three projections of one normed input, which is split over the axis that splits their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.several = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        q, k, v = (each(hidden) for each in self.several)
        return x + self.last(q * k.sigmoid() + v)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_what_is_brought_once_is_brought_once_in_compiled_code(separate: bool) -> None:
    """An input that several ops gather, and its gradient, which is their pending sum."""
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        torch.manual_seed(0)
        model = weft.nn.shard_module(Projected().double(), MESH, {"several.*": P("tp"), "last.weight": P(None, "tp")})
        x = weft.shard(torch.randn(4, 6, 8, dtype=torch.float64), MESH, P("tp"))
        logs, grads = [], []
        for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
            model.zero_grad()
            with weft.comm_log() as log:
                run(x).square().sum().backward()
            logs.append(sorted(f"{r.kind} {r.axes} {r.bytes_received}" for r in log))
            grads.append([each.grad.full_tensor() for each in model.parameters()])
        assert logs[0] == logs[1]
        for found, expected in zip(*grads, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_ten_batch_sizes_are_compiled_twice(separate: bool) -> None:
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4)).double()
        weft.nn.shard_module(model, MESH, LAYOUTS["tensor parallel"][0])
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for count in (4, 8, 6, 12, 10, 14, 16, 18, 22, 20):
            x = weft.shard(torch.randn(count, 6, dtype=torch.float64), MESH, P("dp"))
            outputs = [run(x) for run in (compiled, model)]
            grads = [torch.autograd.grad(y.square().mean(), list(model.parameters())) for y in outputs]
            torch.testing.assert_close(outputs[0].full_tensor(), outputs[1].full_tensor(), rtol=1e-9, atol=1e-12)
            for found, expected in zip(*grads, strict=True):
                torch.testing.assert_close(found.full_tensor(), expected.full_tensor(), rtol=1e-9, atol=1e-12)
        assert counter.frame_count == 2
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_open_sizes_of_a_result_with_a_gradient(separate: bool) -> None:
    """Torch detaches what comes from an earlier program, under names of its own for sizes that it left open before."""
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        program = torch.compile(lambda x: x.sin() * x.shape[1], backend="aot_eager")
        for shape in ((4, 6, 8), (1, 4, 2)):
            x = torch.randn(shape, dtype=torch.float64)
            here = weft.shard(x, MESH, P()).requires_grad_()
            x.requires_grad_()
            program(program(here)).sum().backward()
            ((x.sin() * x.shape[1]).sin() * x.shape[1]).sum().backward()
            torch.testing.assert_close(here.grad.full_tensor(), x.grad)
    finally:
        use_separate_memory(False)


@needs_values
@pytest.mark.parametrize(("dynamic", "separate"), [(None, True), (True, False)])
def test_sizes_that_split_unevenly_are_right_too(dynamic: bool | None, separate: bool) -> None:
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:

        def program(x: torch.Tensor) -> torch.Tensor:
            y = weft.shard(x * 2 + x.shape[0], MESH, P("tp"))
            return torch.cat([y, y[1:3]]).softmax(0).roll(1, 0)

        compiled = torch.compile(program, backend="aot_eager", dynamic=dynamic, fullgraph=True)
        for rows in (4, 6, 5):
            x = weft.shard(torch.randn(rows, 6), MESH, P("dp"))
            torch.testing.assert_close(compiled(x).full_tensor(), program(x).full_tensor())
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_numbers_that_a_compiler_leaves_open(separate: bool) -> None:
    """They belong to one program, and say nothing about the next: an argument, and what a batch norm scales a variance by."""
    use_separate_memory(separate)
    torch._dynamo.reset()
    torch.manual_seed(0)
    counter = CompileCounterWithBackend("aot_eager")

    def scale(x: torch.Tensor, y: torch.Tensor, k: float) -> tuple[torch.Tensor, ...]:
        return x * k, (x.t() @ y) * k

    scaled = torch.compile(scale, backend=counter)
    for k in (1.0, 2.0, 2.5, 3.5, 0.0, float("inf")):
        given = torch.randn(4, 6), torch.randn(4, 2)
        here = [weft.shard(x, MESH, P("dp")) for x in given]
        for found, expected, eager in zip(scaled(*here, k), scale(*given, k), scale(*here, k), strict=True):
            torch.testing.assert_close(found.full_tensor(), expected, equal_nan=True)
            assert found.mapping == eager.mapping, "what is pending stays so, unless the number is infinite"
    assert counter.frame_count <= 4, "compiled anew for every number"
    plain = nn.BatchNorm1d(6)
    norm = weft.nn.shard_module(copy.deepcopy(plain), MESH, {})
    compiled = torch.compile(norm, backend="aot_eager")
    for size in (4, 6, 8):
        x = torch.randn(size, 6)
        torch.testing.assert_close(compiled(weft.shard(x, MESH, P("dp"))).full_tensor(), plain(x))
    torch.testing.assert_close(norm.running_var.full_tensor(), plain.running_var)
    use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_slices_along_a_split_dim_are_given_to_programs(separate: bool) -> None:
    """As batches in parts. Between memories such a view is a copy, and a program that wrote to it would not write to the tensor."""
    use_separate_memory(separate)
    torch._dynamo.reset()
    plain = torch.randn(8, 6, dtype=torch.float64)
    x = weft.shard(plain, MESH, P("dp")).requires_grad_()
    twice = torch.compile(lambda x: x.sin() * 2, backend="aot_eager", fullgraph=True)
    for part, expected in zip((*x.chunk(2), x[1:5]), (*plain.chunk(2), plain[1:5]), strict=True):
        found = twice(part)
        torch.testing.assert_close(found.full_tensor(), expected.sin() * 2)
        found.sum().backward()
    count = torch.tensor([1, 2, 2, 2, 2, 1, 1, 1], dtype=torch.float64)[:, None]
    torch.testing.assert_close(x.grad.full_tensor(), plain.cos() * 2 * count)
    written = torch.compile(lambda x: x[:, :2].zero_(), backend="aot_eager")
    x = x.detach()
    if separate:
        with pytest.raises(
            Exception, match=r"writes to an input of shape \[4, 6\] .* the other tensor would not change"
        ):
            written(x[1:5])
    else:
        written(x[1:5])
        assert not x.full_tensor()[1:5, :2].any()
    use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_numbers_that_a_program_finds_itself(separate: bool) -> None:
    """Each is one to torch's compiler, however many devices know it, and may be infinite."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return (x.mT @ x).sum(0) * x.sum().item() + int(x.abs().argmax())

    use_separate_memory(separate)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
        x = torch.randn(4, 6)
        torch.testing.assert_close(compiled(weft.shard(x, MESH, P("dp"))).full_tensor(), run(x))
    use_separate_memory(False)


def test_devices_with_memories_of_their_own_compile_too() -> None:
    torch._dynamo.reset()
    use_separate_memory(True)
    try:
        x = weft.shard(torch.randn(4, 6), MESH, P("dp"))
        weight = weft.shard(torch.randn(6, 6), MESH, P("tp", None)).requires_grad_()
        compiled = torch.compile(lambda x, w: (x @ w).relu().sum(), backend="aot_eager", fullgraph=True)
        compiled(x, weight).backward()
        found, weight.grad = weight.grad, None
        (x @ weight).relu().sum().backward()
        assert torch.allclose(found.full_tensor(), weight.grad.full_tensor())
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_a_compiler_is_given_copies_that_it_can_leave_out(separate: bool) -> None:
    ops: set[object] = set()

    def seen(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        ops.update(node.target for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        model = weft.nn.shard_module(
            nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4)), MESH, {"0.*": P("tp"), "1.weight": P(None, "tp")}
        )
        backend = aot_autograd(fw_compiler=seen, bw_compiler=seen)
        torch.compile(model, backend=backend)(weft.shard(torch.randn(4, 6), MESH, P("dp"))).sum().backward()
        assert torch.ops.aten.mm.default in ops
        assert torch.ops.aten._lazy_clone.default not in ops
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_gradients_come_home_in_the_compiled_program(separate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[Layout] = []

    def noted(grad: weft.Tensor, target: Layout) -> torch.Tensor | None:
        if not is_traced():
            brought.append(target)
        return aligned_meanwhile(grad, target)

    def noted_plain(grad: weft.Tensor, target: Layout) -> torch.Tensor | None:
        whole = own_whole(grad, target)
        if whole is not None and grad._layout is not target:
            brought.append(target)
        return whole

    monkeypatch.setattr("weft.tensor.leaf_gradient.aligned_meanwhile", noted)
    monkeypatch.setattr("weft.tensor.leaf_gradient.own_whole", noted_plain)
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        model = weft.nn.shard_module(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8)), MESH, {"1.*": P("tp")})
        gradient_in(model[0].weight, Layout(MESH, (("dp",),)))
        x = weft.shard(torch.randn(4, 6), MESH, P("dp"))
        model(x).square().sum().backward()
        assert len(brought) == 4
        brought.clear()
        model.zero_grad()
        torch.compile(model, backend="aot_eager", fullgraph=True)(x).square().sum().backward()
        assert not brought
        specs = [p.grad.mapping.spec for p in model.parameters()]
        assert specs == [P("dp"), P(None), P("tp", None), P("tp")]
    finally:
        use_separate_memory(False)


class Scored(nn.Module):
    """Gives a loss and what it was computed from."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.inner(x).tanh()
        logits = self.outer(hidden)
        return {"loss": logits.square().mean(), "logits": logits, "hidden": hidden}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("used", [("loss",), ("logits", "hidden")], ids=str)
def test_outputs_that_the_loss_does_not_use(used: tuple[str, ...], separate: bool) -> None:
    torch._dynamo.reset()
    use_separate_memory(separate)
    try:
        torch.manual_seed(0)
        plain = Scored().double()
        model = weft.nn.shard_module(copy.deepcopy(plain), MESH, {"inner.*": P("tp"), "outer.weight": P(None, "tp")})
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        x = torch.randn(4, 6, dtype=torch.float64)
        expected, found = plain(x), compiled(weft.shard(x, MESH, P("dp")))
        for name, value in expected.items():
            torch.testing.assert_close(found[name].full_tensor(), value, rtol=1e-9, atol=1e-12)
        for results in (expected, found):
            sum(results[name].square().sum() for name in used).backward()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(other.grad.full_tensor(), one.grad, rtol=1e-9, atol=1e-12)
            assert other.grad.mapping.layout(other.dim()) is other.mapping.layout(other.dim())
    finally:
        use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_a_sharded_model_is_exported(separate: bool) -> None:
    use_separate_memory(separate)
    try:
        model = weft.nn.shard_module(nn.Linear(6, 8), MESH, {"*": P("tp")})
        x = weft.shard(torch.randn(4, 6), MESH, P("dp"))
        exported = torch.export.export(model, (x,)).module()
        assert torch.equal(exported(x).full_tensor(), model(x).full_tensor())
    finally:
        use_separate_memory(False)


def test_a_plain_gradient_of_a_compiled_output() -> None:
    torch._dynamo.reset()
    w = weft.shard(torch.randn(6, 4), MESH, P("tp")).requires_grad_()
    torch.compile(lambda w: w * 3, backend="aot_eager", fullgraph=True)(w).backward(torch.ones(6, 4))
    assert torch.equal(w.grad.full_tensor(), torch.full((6, 4), 3.0))


WRITES = {
    "by itself": lambda x: x.mul_(2) * 1,
    "of others": lambda x: x.add_(x * 2) * 3,
    "of numbers": lambda x: x.add_(1) * 2,
    "to a part": lambda x: (x[1:3].mul_(3), x * 1)[1],
    "of all": lambda x: x.copy_(x * 2) * 1,
}


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
def test_pending_tensors_that_programs_write_to(separate: bool) -> None:
    use_separate_memory(separate)
    try:
        x, w = weft.shard(torch.randn(4, 6), MESH, P(None, "tp")), weft.shard(torch.randn(6, 3), MESH, P("tp"))
        for write, function in WRITES.items():
            torch._dynamo.reset()
            results = []
            for run in (function, torch.compile(function, backend="aot_eager", fullgraph=True)):
                for looks in (False, True):
                    y = x @ w
                    assert y._layout.pending
                    assert not looks or y.local_shards
                    given = run(y)
                    assert y._layout.pending
                    total = sum(shard for shard in y.local_shards[:2])  # of the devices that differ along tp
                    results.append((given.full_tensor(), y.full_tensor(), total))
            for other in results[1:]:
                for one, same in zip(results[0], other, strict=True):
                    torch.testing.assert_close(one, same, msg=lambda text, write=write: f"{write}: {text}")
    finally:
        use_separate_memory(False)


def test_in_one_memory_a_pending_tensor_is_handed_on_whole() -> None:
    torch._dynamo.reset()
    x, w = weft.shard(torch.randn(4, 6), MESH, P(None, "tp")), weft.shard(torch.randn(6, 3), MESH, P("tp"))
    y = torch.compile(torch.matmul, backend="aot_eager", fullgraph=True)(x, w)
    assert y._layout is (x @ w)._layout
    assert y.__tensor_flatten__()[0] == ["_total"]
    torch.testing.assert_close(sum(y.local_shards[:2]), y.full_tensor())


def test_what_torch_pickles_of_a_traced_input_tells_who_watches() -> None:
    """Torch before 2.13 looks for compiled code of an earlier run by that, and finds it with inductor."""
    x = weft.shard(torch.randn(4, 6), MESH, P("dp"))
    kept = pickle.dumps(x)
    with FakeTensorMode() as mode:
        faked = mode.from_tensor(x)
        alone = pickle.dumps(faked)
        with weft.comm_log():
            assert pickle.dumps(faked) != alone
        assert pickle.dumps(faked) == alone
    assert torch.equal(pickle.loads(kept).full_tensor(), x.full_tensor())


def test_a_tensor_of_too_many_pieces_is_refused() -> None:
    assert piece_names(512)[-1] == "_piece511"
    with pytest.raises(NotImplementedError, match="at most 512 pieces in a process, but one here has 513"):
        piece_names(513)
