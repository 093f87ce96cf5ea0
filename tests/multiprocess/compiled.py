"""A program whose processes compile what communicates: each gets what it gets without, and what moves is logged alike."""

from __future__ import annotations

import copy
import sys

import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

import weft
from examples.models import gpt2
from tests.nn.compiled_programs import PROGRAMS, compare, records
from weft import P

torch.set_default_dtype(torch.float64)

HAS_VALUES = torch.__version__ >= "2.13"
"""Whether torch can have meshes, specs and devices in its programs; where not, graphs break."""


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


class Scored(nn.Module):
    """A model that gives its loss, and the logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(x)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def check_transformer(mesh: weft.DeviceMesh) -> None:
    """Compiled as one graph."""
    tokens, labels = torch.randint(0, 11, (2, 4, 6))
    check_model(gpt2.GPT2(11, 6, 8, 2, 1), gpt2.LAYOUTS["tp"], mesh, tokens, labels, "aot_eager")


class Projected(nn.Module):
    """Projections of one input, which is split over the axis that splits their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.other, self.last = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(x)
        return self.last(self.one(hidden) * self.other(hidden).sigmoid())


def check_brought_once(mesh: weft.DeviceMesh) -> None:
    """What several ops gather is gathered once, compiled or not: the batch is split over the axis of the weights."""
    x, labels = torch.randn(4, 3, 6), torch.randint(0, 5, (4, 3))
    split = P("dp")
    patterns = {"one.*": split, "other.*": split, "last.weight": P(None, "dp")}
    check_model(Projected(), patterns, mesh, x, labels, "aot_eager")


def check_inductor(mesh: weft.DeviceMesh) -> None:
    """Compiled to code for this machine."""
    x, labels = torch.randn(4, 3, 6), torch.randint(0, 5, (4, 3))
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))
    check_model(model, {"0.*": P("tp"), "2.weight": P(None, "tp")}, mesh, x, labels, "inductor")


def check_model(
    plain: nn.Module,
    patterns: dict[str, P],
    mesh: weft.DeviceMesh,
    x: torch.Tensor,
    labels: torch.Tensor,
    backend: str,
) -> None:
    """Forward and backward, with two outputs, and what they move."""
    plain = Scored(plain)
    specs = {f"model.{name}": spec for name, spec in patterns.items()}
    model = weft.nn.shard_module(copy.deepcopy(plain), mesh, specs)
    expected, plain_logits = plain(x, labels)
    expected.backward()
    given = [weft.shard(each, mesh, P("dp")) for each in (x, labels)]
    logs = []
    for run in (model, torch.compile(model, backend=backend, fullgraph=True)):
        model.zero_grad()
        with weft.comm_log() as log:
            loss, logits = run(*given)
            loss.backward()
        logs.append(records(log))
        close(loss.full_tensor(), expected)
        close(logits.full_tensor(), plain_logits)
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            close(other.grad.full_tensor(), one.grad)
            assert other.grad.mapping.layout(other.dim()) is other.mapping.layout(other.dim())
    assert logs[0] == logs[1], [x for x in (*logs[0], *logs[1]) if logs[0].count(x) != logs[1].count(x)]


def check_communication(mesh: weft.DeviceMesh) -> None:
    """The communication ops in compiled code, and ops that rearrange what lies in several processes."""
    across, turned = weft.NamedMapping(mesh, P(None, "dp")), weft.DeviceMesh(mesh.devices[::-1], (4,), ("all",))

    def moving(x: torch.Tensor) -> torch.Tensor:
        y = weft.shard(x * 2, mesh, P("tp")) + weft.shard(torch.arange(6.0), mesh, P("tp"))
        y = weft.all_gather(y.sin()).redistribute(across) * 2
        y = weft.shard(
            y.redistribute(placements=[weft.Replicated(), weft.Sharded(0)], async_op=True) + 1, mesh, P("dp")
        )
        return weft.shard(weft.all_to_all(y, 1, 0) * 3, turned, P(None, "all"))

    def combining(x: torch.Tensor) -> torch.Tensor:
        y = weft.ppermute(x.sin(), [(0, 2), (1, 3), (2, 0), (3, 1)])
        return weft.reduce_scatter(weft.all_reduce(y, "max", "dp") * 2, 0)

    def rearranging(x: torch.Tensor) -> torch.Tensor:
        y = weft.shard(x[:7], mesh, P(("dp", "tp"))).roll(2, 0)
        return torch.cat([y, y[1:2]]).flip(0).full_tensor() * 2

    x = weft.shard(torch.randn(8, 6), mesh, P("dp")).requires_grad_()
    for program in (moving, combining, rearranging):
        results, grads, logs = [], [], []
        for run in (program, torch.compile(program, backend="aot_eager", fullgraph=True)):
            with weft.comm_log() as log:
                y = run(x)
                (grad,) = torch.autograd.grad(y.square().sum(), x)
            logs.append(records(log))
            results.append(y)
            grads.append(grad.full_tensor())
        wholes = [y.full_tensor() if isinstance(y, weft.Tensor) else y for y in results]
        close(*wholes)
        close(*grads)
        assert logs[0] == logs[1], logs
        if isinstance(results[0], weft.Tensor):
            assert results[0].mapping == results[1].mapping


class Repeated(nn.Module):
    """A block that is checkpointed, or is not, and communicates amid what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 8), nn.Linear(8, 6)
        self.is_checkpointed = False

    def block(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + self.down(self.up(self.norm(x)).relu())
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False) if self.is_checkpointed else self.block(x)


def check_checkpointed(mesh: weft.DeviceMesh) -> None:
    """What a checkpointed part computes is computed anew on the way back, and what it communicates is kept."""
    codes: list[str] = []

    def noted(graph: torch.fx.GraphModule, _: object) -> object:
        codes.append(graph.code)
        return make_boxed_func(graph.forward)

    model = weft.nn.shard_module(Repeated(), mesh, {"up.*": P("tp"), "down.weight": P(None, "tp")})
    given, found = torch.randn(4, 3, 6), []
    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=noted), fullgraph=True)
    for run in (model, compiled):
        x = weft.shard(given, mesh, P("dp")).requires_grad_()
        model.zero_grad()
        with weft.comm_log() as log:
            y = run(x)
            y.square().sum().backward()
        values = [each.full_tensor() for each in (y, x.grad, *(p.grad for p in model.parameters()))]
        found.append((values, records(log, in_parts=True)))  # as layers of checkpointed parts come
        model.is_checkpointed = True
    for one, same in zip(found[0][0], found[1][0], strict=True):
        close(one, same)
    assert found[0][1] == found[1][1], found
    _, back = codes
    assert "aten.relu." in back, back
    assert [code.count("weft.communicate") for code in codes] == [1, 2], codes


def check_programs() -> None:
    """Programs that are compared in one process too."""
    mesh = weft.make_mesh({"a": 2, "b": 2})
    for name, program in PROGRAMS.items():
        try:
            compare(program, mesh)
        except Exception as error:
            error.add_note(name)
            raise


def check_contributions(mesh: weft.DeviceMesh) -> None:
    """What is added to a pending sum is made a contribution by plain ops: only the sum itself communicates."""
    programs: list[str] = []

    def noted(graph: torch.fx.GraphModule, _: object) -> object:
        programs.append(graph.code)
        return make_boxed_func(graph.forward)

    x, w = weft.shard(torch.randn(4, 8), mesh, P("tp", "dp")), weft.shard(torch.randn(8, 6), mesh, P("dp"))
    bias = weft.shard(torch.randn(6), mesh, P())
    run = torch.compile(lambda: torch.addmm(bias, x, w).relu(), backend=aot_autograd(fw_compiler=noted), fullgraph=True)
    close(run().full_tensor(), torch.addmm(*(each.full_tensor() for each in (bias, x, w))).relu())
    assert sum(program.count("weft.communicate") for program in programs) == 1, programs


def check_policy(mesh: weft.DeviceMesh) -> None:
    """A compiled program that moves what nobody asked for is refused as it would be without, before it sends anything."""
    x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
    compiled = torch.compile(lambda x: x.softmax(0), backend="aot_eager", fullgraph=True)
    close(compiled(x).full_tensor(), x.full_tensor().softmax(0))
    with weft.reshard_policy("raise"):
        try:
            compiled(x)
        except weft.ReshardError as error:
            assert "compiled.py:" in str(error), error
        else:
            raise AssertionError("it was not refused")
    close(compiled(x).full_tensor(), x.full_tensor().softmax(0))


def check_sizes(mesh: weft.DeviceMesh) -> None:
    """Batches of other sizes are compiled once more, and no more often."""
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5), nn.LayerNorm(5))
    weft.nn.shard_module(model, mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
    counter = CompileCounterWithBackend("aot_eager")

    def run_model(x: torch.Tensor) -> torch.Tensor:
        return model(x)[:, 1:]

    compiled = torch.compile(run_model, backend=counter, fullgraph=True)
    for count in (4, 8, 6, 12, 10):
        x = weft.shard(torch.randn(count, 6), mesh, P("dp"))
        outputs = [run(x) for run in (compiled, run_model)]
        grads = [torch.autograd.grad(y.square().mean(), list(model.parameters())) for y in outputs]
        close(*(y.full_tensor() for y in outputs))
        for found, expected in zip(*grads, strict=True):
            close(found.full_tensor(), expected.full_tensor())
    assert counter.frame_count == 2, counter.frame_count


def check_put_off(mesh: weft.DeviceMesh) -> None:
    """What is exchanged only where it is needed, when a compiler looks at it after its trace; ops that ask for open sizes."""
    programs = {
        "merged dims": lambda x: x.flatten(),
        "merged dims that are used": lambda x: (x * 3).reshape(-1, x.shape[2]).sin(),
        "the best of each part": lambda x: x.topk(2, 0)[0],
    }
    for name, program in programs.items():
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="aot_eager", dynamic=True)
        for size in (5, 6):
            x = weft.shard(torch.randn(size, 3, 2), mesh, P(("dp", "tp")))
            found, expected = compiled(x), program(x)
            assert found.mapping == expected.mapping, name
            close(found.full_tensor(), program(x.full_tensor()))


def check_sizes_of_what_is_exchanged(mesh: weft.DeviceMesh) -> None:
    """What elements of other processes are asked for is found out when a program runs: it holds for all sizes that split alike."""
    programs = {
        "merged dims": (lambda x: x.reshape(-1, x.shape[2]).sin(), P(None, ("dp", "tp"))),
        "halves of a split dim": (lambda x: torch.cat([-x[..., 4:], x[..., :4]], -1), P(None, None, ("dp", "tp"))),
        "rows that go on": (lambda x: x.roll(1, 0) * x, P(("dp", "tp"))),
    }
    for name, (program, spec) in programs.items():
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(program, backend=counter, dynamic=True)
        for size in (12, 20, 28):  # none that another dim has, which is a program of its own
            given, found, logs = torch.randn(size, 4, 8), [], []
            for run in (program, compiled):
                x = weft.shard(given, mesh, spec).requires_grad_()
                with weft.comm_log() as log:
                    result = run(x)
                    result.square().sum().backward()
                found.append((result.full_tensor(), x.grad.full_tensor()))
                logs.append(records(log))
            for one, other in zip(*found, strict=True):
                close(one, other)
            assert logs[0] == logs[1], (name, logs)
        assert counter.frame_count == 1, (name, counter.frame_count)


def check_sizes_of_the_way_back(mesh: weft.DeviceMesh) -> None:
    """Open sizes that only gradients ask for, or settle."""
    programs = {
        "merged dims": lambda x: x.reshape(-1),
        "a product": lambda x: x.prod(0),
        "a running sum": lambda x: x.cumsum(0),
    }
    for name, program in programs.items():
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="aot_eager", dynamic=True)
        for size in (4, 6):
            given, found, logs = torch.randn(size, 3), [], []
            for run in (program, compiled):
                x = weft.shard(given, mesh, P("dp")).requires_grad_()
                with weft.comm_log() as log:
                    result = run(x)
                    result.square().sum().backward()
                found.append((result.full_tensor(), x.grad.full_tensor()))
                logs.append(records(log))
            for one, other in zip(*found, strict=True):
                close(one, other)
            assert logs[0] == logs[1], (name, logs)


def check_slices(mesh: weft.DeviceMesh) -> None:
    """Views along a split dim, which torch makes anew from stand-ins: nothing is sent for these."""
    whole = torch.randn(8, 6)
    x = weft.shard(whole, mesh, P("dp"))
    compiled = torch.compile(lambda part: part.sin().sum(0), backend="aot_eager", fullgraph=True)
    for begin in (0, 4, 3):
        close(compiled(x[begin : begin + 4]).full_tensor(), whole[begin : begin + 4].sin().sum(0))


def check_refusal(mesh: weft.DeviceMesh) -> None:
    """A tensor that only one process has a part of is refused in all of them."""
    x = weft.shard(torch.randn(8, 6), mesh, P("dp"))
    there = weft.to_device(x, mesh.devices[0])
    programs = [(lambda x: x * 2, there), (lambda x: weft.to_device(x, weft.CPU(0)) * 2, x)]
    for program, given in programs if HAS_VALUES else programs[:1]:
        try:
            torch.compile(program, backend="aot_eager", fullgraph=True)(given)
        except (torch._dynamo.exc.TorchDynamoException, NotImplementedError) as error:
            assert "only the processes 0 have a device" in str(error), error
        else:
            raise AssertionError("it was compiled")


def main(backend: str) -> None:
    weft.distributed.init(backend="gloo", devices_per_process=2)
    mesh = weft.make_mesh({"dp": 2, "tp": 2})
    torch.manual_seed(0)
    if backend == "inductor":
        check_inductor(mesh)
        return
    check_transformer(mesh)
    check_brought_once(mesh)
    check_checkpointed(mesh)
    check_programs()
    if HAS_VALUES:
        check_communication(mesh)
    check_contributions(mesh)
    check_policy(mesh)
    check_sizes(mesh)
    check_put_off(mesh)
    check_sizes_of_what_is_exchanged(mesh)
    check_sizes_of_the_way_back(mesh)
    check_slices(mesh)
    check_refusal(mesh)


if __name__ == "__main__":
    main(sys.argv[1])
