"""Training one model plainly and fully sharded, for `test_fully_shard` and for several processes."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable

import torch
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import weft
from examples.models import gpt2, mlp
from weft import P
from weft.watch.comm_log import CommLog

DEPTH = 3


class Recomputed(torch.nn.Module):
    """A model whose layers are computed anew on the way back."""

    def __init__(self, inner: mlp.MLP) -> None:
        super().__init__()
        self.layers, self.head = inner.layers, inner.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


class Aside(torch.nn.Module):
    """A layer that leaves something aside, made with its own weight, with a view of it and with that of a norm."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.scale, self.recomputes = torch.nn.Parameter(torch.ones(8)), recomputes
        self.left: torch.Tensor | None = None

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """What is computed anew, if that is asked for."""
        return self.norm(self.up(x) * self.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream, and something aside."""
        self.left = checkpoint(self.inside, x, use_reentrant=False) if self.recomputes else self.inside(x)
        return x + self.down(self.left)


class Deep(torch.nn.Module):
    """Layers that leave something aside."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Aside(recomputes) for _ in range(DEPTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The stream after all layers."""
        for layer in self.layers:
            x = layer(x)
        return x


class Compiled(torch.nn.Module):
    """A model whose layers are compiled, each into one graph."""

    def __init__(self, inner: mlp.MLP) -> None:
        super().__init__()
        compiled = (torch.compile(layer, backend="aot_eager", fullgraph=True) for layer in inner.layers)
        self.layers, self.head = torch.nn.ModuleList(compiled), inner.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def perceptron() -> torch.nn.Module:
    return mlp.MLP(8, 12, DEPTH, 5)


def transformer() -> torch.nn.Module:
    return gpt2.GPT2(11, 6, 8, 2, DEPTH)


Make = Callable[[], torch.nn.Module]


def twins(make: Make, mesh: weft.DeviceMesh, layouts: dict[str, P] | None, **options: object) -> list[torch.nn.Module]:
    """A plain model, and the same fully sharded, of which as little as possible stays whole unless that is asked for."""
    torch.manual_seed(0)
    plain = make().double()
    model = copy.deepcopy(plain)
    if layouts:
        weft.nn.shard_module(model, mesh, layouts)
    blocks = "*.blocks.*" if isinstance(plain, gpt2.GPT2) else "*.layers.*"
    return [plain, weft.nn.fully_shard(model, mesh, "dp", blocks=blocks, **{"keep_bytes": 0, **options})]


def batch(model: torch.nn.Module, seed: int) -> torch.Tensor:
    """What a model takes."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(model, gpt2.GPT2):
        return torch.randint(11, (8, 6), generator=generator)
    return torch.randn(8, 8, dtype=torch.float64, generator=generator)


def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What is trained for."""
    found = model(x)
    if not x.is_floating_point():
        return functional.cross_entropy(found.flatten(0, 1), x.flatten())
    return found.square().mean()


def laid(x: torch.Tensor, mesh: weft.DeviceMesh) -> torch.Tensor:
    """A batch, split over the axes that split data."""
    return weft.shard(x, mesh, P(tuple(axis for axis in ("rep", "dp") if axis in mesh.axis_names)))


def trained(models: list[torch.nn.Module], mesh: weft.DeviceMesh, steps: int = 3) -> CommLog:
    """Trains both, and gives what moved in the last forward and backward pass of the second."""
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in models]
    logs = [CommLog()]
    for step in range(steps):
        x = batch(models[0], step)
        norms = []
        for model, optimizer, given in zip(models, optimizers, (x, laid(x, mesh)), strict=True):
            optimizer.zero_grad()
            with weft.comm_log() as log:
                loss(model, given).backward()
            logs.append(log)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
        assert abs(norms[0] - norms[1]) < 1e-9
    check_same(models)
    return logs[-1]


def check_same(models: list[torch.nn.Module]) -> None:
    """Both have the same parameters."""
    for (name, x), y in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(
            y.full_tensor().to(x.device), x, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


def gathered_bytes(model: torch.nn.Module, devices: int) -> int:
    """What all devices together receive where each has a part of every parameter and gathers the rest."""
    return sum(p.numel() * p.itemsize for p in model.parameters()) * (devices - 1)


def check_half_precision(mesh: weft.DeviceMesh) -> None:
    """Gathered in half precision and kept in single: half the bytes, and gradients in the dtype that is asked for."""
    torch.manual_seed(0)
    plain = perceptron()
    model = weft.nn.fully_shard(perceptron(), mesh, "dp", param_dtype=torch.bfloat16, keep_bytes=0)
    model.load_state_dict(plain.state_dict())
    x = torch.randn(8, 8)
    with weft.comm_log() as log:
        model(laid(x, mesh)).float().square().mean().backward()
    gathers = [record.total_bytes for record in log if record.kind == "all_gather"]
    assert sum(gathers[: DEPTH + 1]) == gathered_bytes(plain, mesh.num_devices) // 2
    assert all(p.dtype is p.grad.dtype is torch.float32 for p in model.parameters())
    plain(x).square().mean().backward()
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.grad.full_tensor(), p.grad, rtol=0.1, atol=0.02)
    wide = weft.nn.fully_shard(perceptron(), mesh, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with weft.comm_log() as other:
        wide(laid(x, mesh)).float().square().mean().backward()
    scattered = [sum(r.total_bytes for r in each if r.kind == "reduce_scatter") for each in (log, other)]
    assert scattered[1] == 2 * scattered[0]


def check_from_inside(models: list[torch.nn.Module], mesh: weft.DeviceMesh) -> CommLog:
    """Gradients of what layers have left aside are those of the plain model, though they come to no output of a block."""
    logs = []
    for model, x in zip(models, (batch(models[0], 0), laid(batch(models[0], 0), mesh)), strict=True):
        model.zero_grad()
        model(x)
        with weft.comm_log() as log:
            sum(layer.left.square().mean() for layer in model.layers).backward()
        logs.append(log)
    for (name, x), y in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert (x.grad is None) == (y.grad is None), name
        if x.grad is not None:
            torch.testing.assert_close(y.grad.full_tensor(), x.grad)
    return logs[-1]


class Skipping(torch.nn.Module):
    """Layers of which only some run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (self.layers[0], self.layers[2], self.layers[4]):
            x = layer(x)
        return x


def check_skipped(mesh: weft.DeviceMesh) -> None:
    """What is gathered ahead for layers that then do not run is logged where it is gathered, in every form."""
    models = twins(Skipping, mesh, None)
    with weft.comm_log() as log:
        output = models[1](laid(batch(models[0], 0), mesh))
        assert [record.kind for record in log] == ["all_gather"] * 5  # each of the layers, those between ahead
        output.square().mean().backward()
    # On the way back nothing comes ahead but the layers that ran: the last one stays whole.
    assert log.counts() == {"all_gather": 5 + 2, "reduce_scatter": 3}
    output = models[0](batch(models[0], 0))
    output.square().mean().backward()
    for layer in (0, 2, 4):
        plain, ours = (model.layers[layer].weight.grad for model in models)  # type: ignore[union-attr,index]
        torch.testing.assert_close(ours.full_tensor(), plain)  # type: ignore[operator,union-attr]


def check_replaced(mesh: weft.DeviceMesh) -> None:
    """Blocks compute with what stands in their places: what was loaded or assigned there, or given for one call."""
    results = []
    for model in twins(perceptron, mesh, None):
        is_plain = not isinstance(model.head.weight, weft.Tensor)
        x = batch(model, 0) if is_plain else laid(batch(model, 0), mesh)
        given = {name: (3 * p.detach()).requires_grad_() for name, p in model.named_parameters()}
        found = [functional_call(model, given, (x,))]
        found[0].square().sum().backward()
        with torch.no_grad():
            found += [functional_call(model, {name: 2 * p for name, p in given.items()}, (x,)), model(x)]
        model.load_state_dict({name: p / 2 for name, p in model.state_dict().items()}, assign=True)
        model.head.weight = torch.nn.Parameter(4 * model.head.weight.detach())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss(model, x).backward()
            optimizer.step()
        found += [p.grad for p in (*given.values(), *model.parameters())] + list(model.parameters())
        results.append([y if is_plain else y.full_tensor() for y in found])
    torch.testing.assert_close(results[1], results[0])


def check_compiled(mesh: weft.DeviceMesh) -> None:
    """Compiled as a whole, with breaks between blocks, and block by block, it trains as the plain one does."""
    torch._dynamo.reset()
    plain, model = twins(perceptron, mesh, None)
    trained([plain, torch.compile(model, backend="aot_eager")], mesh, 2)
    plain, model = twins(lambda: Compiled(mlp.MLP(8, 12, DEPTH, 5)), mesh, None)
    log = trained([plain, model], mesh, 2)
    assert log.counts() == {"all_gather": 2 * DEPTH, "reduce_scatter": DEPTH + 1}


def check_split_optimizer(mesh: weft.DeviceMesh) -> None:
    """An optimizer that is split takes the steps of one that is not, bit for bit."""
    plain = perceptron()
    models = [weft.nn.shard_module(copy.deepcopy(plain), mesh, {}) for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.05) for model in models]
    weft.nn.shard_optimizer(optimizers[1])
    for step in range(5):
        x = laid(batch(plain, step).float(), mesh)
        totals = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            with weft.comm_log() as log:
                loss(model, x).backward()
                optimizer.step()
            totals.append(log.total_bytes)
        assert totals[1] <= totals[0]
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(p.full_tensor(), q.full_tensor())


def main(folder: str) -> None:
    """What each of several processes does."""
    each = 8 // int(os.environ["WORLD_SIZE"])
    weft.distributed.init(devices_per_process=each)
    devices = [device for device in weft.devices() if device.id % each < each // 2]
    others = [device for device in weft.devices() if device not in devices]
    flat, rest = (weft.make_mesh({"dp": 4}, devices=listed) for listed in (devices, others))
    recomputed, within = lambda: Recomputed(mlp.MLP(8, 12, DEPTH, 5)), lambda: Deep(recomputes=True)
    for make, more in ((perceptron, 1), (transformer, 1), (recomputed, 1), (within, 0)):
        log = trained(twins(make, flat, None), flat, 2)
        assert log.counts()["reduce_scatter"] == DEPTH + more
        assert log.counts()["all_gather"] == 2 * DEPTH - 1 + more
        assert log.overlaps, "nothing was gathered ahead"
    both, hosts = (weft.make_mesh(axes, devices=devices) for axes in ({"dp": 2, "tp": 2}, {"rep": 2, "dp": 2}))
    trained(twins(perceptron, both, mlp.LAYOUTS["tp"]), both, 2)
    trained(twins(perceptron, hosts, None, replicate="rep"), hosts, 2)
    trained(twins(perceptron, flat, None, fewest_bytes=True), flat, 2)
    check_split_optimizer(flat)
    check_half_precision(flat)
    check_from_inside(twins(Deep, flat, None), flat)
    check_replaced(flat)
    check_skipped(flat)
    if each == 4:
        check_compiled(flat)
    away = trained(twins(transformer, flat, None, offload=rest), flat, 2)
    assert away.counts() == {**away.counts(), "all_gather": 2 * DEPTH, "reduce_scatter": DEPTH + 1}
    models = twins(perceptron, flat, None, prefetch=2, keep_bytes=1 << 20)
    assert trained(models, flat, 2).counts() == {"all_gather": DEPTH + 1, "reduce_scatter": DEPTH + 1}
    with torch.inference_mode():
        torch.testing.assert_close(
            models[1](laid(batch(models[0], 0), flat)).full_tensor(), models[0](batch(models[0], 0))
        )
    weft.checkpoint.save(models[1], folder)
    again = twins(perceptron, flat, None)
    weft.checkpoint.load(folder, again[1])
    check_same([models[0], again[1]])
    print("done")
    weft.distributed.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
