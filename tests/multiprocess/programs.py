"""The contract: ordinary programs, which every runtime has to run to the same results.

A program is given the devices and yields what it computes. Nothing in it knows how many processes there are.
Values are small whole numbers unless a program is marked `rounded`, so that every order of summation gives the same.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from torch._higher_order_ops.flex_attention import flex_attention as flex_kernel
from torch.nn.attention.flex_attention import create_block_mask

import weft
from tests.experts.layer import arguments, iterated, layer, loop
from weft import P
from weft.devices import Device
from weft.sharding import DeviceMesh, NamedMapping, ReduceOp
from weft.sharding.geometry import box, box_shape
from weft.sharding.layout import Layout
from weft.sharding.mapping import named_mapping

Yielded = tuple[str, object]
Program = Callable[[Sequence[Device]], Iterator[Yielded]]

PROGRAMS: dict[str, Program] = {}
ROUNDED: set[str] = set()


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def rounded(function: Program) -> Program:
    ROUNDED.add(function.__name__)
    return program(function)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, none of them zero."""
    generator = torch.Generator().manual_seed(1000 * seed + math.prod(shape))
    values = torch.randint(1, 5, shape, generator=generator)
    if dtype is torch.bool:
        return values > 2
    return (values * (1 + 1j)).to(dtype) if dtype.is_complex else values.to(dtype)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mesh_of(devices: Sequence[Device]) -> DeviceMesh:
    """A square of 4 devices, else a line."""
    if len(devices) == 4:
        return DeviceMesh(devices, (2, 2), ("a", "b"))
    return DeviceMesh(devices, (len(devices),), ("a",))


def line_of(devices: Sequence[Device]) -> DeviceMesh:
    return DeviceMesh(devices, (len(devices),), ("a",))


def layouts_of(mesh: DeviceMesh, rank: int = 2, kinds: Sequence[ReduceOp] = (ReduceOp.SUM,)) -> list[Layout]:
    """Every layout: each axis splits a dim, is replicated or pending; axes of one dim in every order."""
    found: dict[Layout, None] = {}
    for kind in kinds:
        for places in product((*range(rank), "whole", "pending"), repeat=mesh.ndim):
            for order in (1, -1):
                splits: list[list[str]] = [[] for _ in range(rank)]
                pending = {}
                for axis, place in list(zip(mesh.axis_names, places, strict=True))[::order]:
                    if isinstance(place, int):
                        splits[place].append(axis)
                    elif place == "pending":
                        pending[axis] = kind
                found[Layout(mesh, splits, pending)] = None
    return list(found)


def own_slots(mesh: DeviceMesh) -> list[int]:
    here = weft.distributed.process_index()
    return [slot for slot, device in enumerate(mesh.devices) if weft.distributed.process_of(device) == here]


def held(layout: Layout, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> weft.Tensor:
    """A tensor in this layout; where something is pending, every contribution is different."""
    mesh = layout.mesh
    shards = []
    for slot in own_slots(mesh):
        seed = sum((1 + i) * mesh.device_coord(slot, axis) for i, axis in enumerate(layout.pending_axes))
        whole = numbers(*shape, seed=seed, dtype=dtype)
        shards.append(whole[tuple(slice(a, b) for a, b in box(layout, shape, slot))])
    return weft.from_local(shards, named_mapping(layout), shape=shape, dtype=dtype)


def _pairs(devices: Sequence[Device], shape: tuple[int, ...], kind: ReduceOp = ReduceOp.SUM) -> Iterator[Yielded]:
    layouts = layouts_of(mesh_of(devices), kinds=(kind,))
    for source in layouts:
        x = held(source, shape, torch.float64)
        for target in layouts:
            if (
                kind is ReduceOp.SUM or source.pending or target.pending
            ):  # what reduces nothing is the same for all kinds
                yield f"{source} -> {target}", x.redistribute(named_mapping(target))


@program
def movements_even(devices: Sequence[Device]) -> Iterator[Yielded]:
    yield from _pairs(devices, (4 * len(devices), 2 * len(devices)))


@program
def movements_uneven(devices: Sequence[Device]) -> Iterator[Yielded]:
    yield from _pairs(devices, (5, 3))


@program
def movements_empty(devices: Sequence[Device]) -> Iterator[Yielded]:
    yield from _pairs(devices, (0, 3))
    mesh = line_of(devices)
    x = weft.shard(numbers(1, 3), mesh, P("a", None))  # all but one shard are empty
    yield "one row", x
    yield "one row, by columns", weft.shard(x, mesh, P(None, "a"))
    yield "one row, reduced", x.sum(0)


@program
def movements_of_a_pending_max(devices: Sequence[Device]) -> Iterator[Yielded]:
    yield from _pairs(devices, (6, 5), ReduceOp.MAX)


DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
)


@program
def movements_of_dtypes(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = line_of(devices)
    for dtype in DTYPES:
        x = weft.shard(numbers(6, 7, dtype=torch.float32).to(dtype), mesh, P("a", None))
        yield f"{dtype} columns", weft.shard(x, mesh, P(None, "a"))
        yield f"{dtype} gathered", weft.all_gather(x)


def _meshes(devices: Sequence[Device]) -> dict[str, DeviceMesh]:
    n = len(devices)
    found = {
        "all": line_of(devices),
        "backwards": line_of(devices[::-1]),
        "first": line_of(devices[:1]),
        "last": line_of(devices[-1:]),
        "all but the first": line_of(devices[1:] or devices),
        "some": line_of(devices[: (n + 1) // 2]),
    }
    if n == 4:
        found["square"] = mesh_of(devices)
        found["turned"] = DeviceMesh([devices[i] for i in (3, 0, 2, 1)], (2, 2), ("a", "b"))
    return found


@program
def movements_between_meshes(devices: Sequence[Device]) -> Iterator[Yielded]:
    meshes = _meshes(devices)
    for (name, first), (other, second) in product(meshes.items(), repeat=2):
        for source in (P("a", None), P(None, None)):
            x = weft.shard(numbers(6, 5), first, source)
            for target in (P(None, "a"), P("a", None), P(None, None)):
                yield f"{name} {source} -> {other} {target}", weft.shard(x, second, target)


@program
def pending_between_meshes(devices: Sequence[Device]) -> Iterator[Yielded]:
    meshes = _meshes(devices)
    for (name, first), (other, second) in product(meshes.items(), repeat=2):
        x = held(Layout(first, ((), ()), {"a": ReduceOp.SUM}), (6, 5))
        yield f"{name} -> {other}", weft.shard(x, second, P(None, "a"))


@program
def values_in_every_process(devices: Sequence[Device]) -> Iterator[Yielded]:
    for name, mesh in _meshes(devices).items():
        x = weft.shard(numbers(6, 5), mesh, P("a", None))
        yield f"{name} full", x.full_tensor()
        yield f"{name} item", x.sum().item()
        yield f"{name} list", x[0].tolist()
        yield f"{name} bool", bool((x > 0).all())
        yield f"{name} equal", torch.equal(x, weft.shard(numbers(6, 5), mesh, P(None, "a")))
        yield f"{name} max", float(x.max())
        yield f"{name} where", int(x.argmax())
        yield f"{name} count", int((x > 2).sum())
        solution = torch.linalg.lstsq(x, x[:, :2] * 2).solution
        yield (
            f"{name} solution",
            [*solution.shape, *solution.stride()],
        )  # in the memory of a right side, which is larger
        steps = 0
        while x.sum() < 1000:  # control flow on a value
            x = x * 2
            steps += 1
        yield f"{name} steps", steps


@program
def text_in_every_process(devices: Sequence[Device]) -> Iterator[Yielded]:
    for name, mesh in _meshes(devices).items():
        x = weft.shard(numbers(6, 5), mesh, P("a", None))
        yield name, str(x).splitlines()[0]
        yield f"{name} format", f"{x.sum():.1f}"


@program
def gathers(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    spec = P(*mesh.axis_names, None) if mesh.ndim == 2 else P("a", None, None)
    for shape in ((8, 8, 2), (5, 3, 1), (0, 3, 2)):
        x = weft.shard(numbers(*shape), mesh, spec)
        yield f"{shape} all", weft.all_gather(x)
        yield f"{shape} dim 0", weft.all_gather(x, axis=0)
        yield f"{shape} dim 1", weft.all_gather(x, axis=1)
        yield f"{shape} broadcast", weft.distributed_broadcast(x)


@program
def reductions(devices: Sequence[Device]) -> Iterator[Yielded]:
    yield from _reductions(devices, ("sum", "max", "min", "prod"))


@rounded
def means(devices: Sequence[Device]) -> Iterator[Yielded]:
    yield from _reductions(devices, ("mean",))


def _reductions(devices: Sequence[Device], kinds: Sequence[str]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    n = len(devices)
    for kind in kinds:
        for spec in (P("a", None), P(None, mesh.axis_names), P(None, None)):
            x = weft.shard(numbers(2 * n, 4 * n, dtype=torch.float64), mesh, spec)
            yield f"all_reduce {kind} {spec}", weft.all_reduce(x, kind)
            for axis in mesh.axis_names:
                yield f"all_reduce {kind} {spec} over {axis}", weft.all_reduce(x, kind, axis)
            if spec != P(None, None):
                dim = 0 if spec == P("a", None) else 1
                yield f"reduce_scatter {kind} {spec}", weft.reduce_scatter(x, dim, kind)
        yield f"reduce_scatter {kind} of replicas", weft.reduce_scatter(x, 0, kind)


@program
def pending_reductions(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    for kind in ReduceOp:
        for layout in layouts_of(mesh, kinds=(kind,)):
            if layout.pending:
                for shape in ((8, 4), (5, 3)):
                    x = held(layout, shape, torch.float64)
                    yield f"{layout} {shape}", weft.all_reduce(x, str(kind))
                    yield f"{layout} {shape} scattered", weft.reduce_scatter(x, 0, str(kind))


@program
def large_reductions(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64):
        for layout in layouts_of(mesh):
            if layout.pending:
                x = held(layout, (61, 67), dtype)
                yield f"{dtype} {layout}", weft.all_reduce(x)


@program
def reduced_dtypes(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = line_of(devices)
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.complex64):
        x = held(Layout(mesh, ((), ()), {"a": ReduceOp.SUM}), (6, 5), dtype)
        yield f"sum {dtype}", weft.all_reduce(x)
        if not dtype.is_complex:
            y = held(Layout(mesh, ((), ()), {"a": ReduceOp.MAX}), (6, 5), dtype)
            yield f"max {dtype}", weft.reduce_scatter(y, 0, "max")
    z = held(Layout(mesh, ((), ()), {"a": ReduceOp.AVG}), (6, 5), torch.bool)
    yield "mean of booleans, which is whether all are true", z.full_tensor()


@rounded
def sums_of_noise(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    for dtype in (torch.float32, torch.bfloat16):
        x = weft.shard(noise(60, 32).to(dtype), mesh, P("a", None))
        yield f"{dtype} total", x.sum()
        yield f"{dtype} all_reduce", weft.all_reduce(x)
        yield f"{dtype} matmul", weft.shard(noise(7, 60).to(dtype), mesh, P(None, "a")) @ x
    first, second = x.sum().item(), x.sum().item()
    yield "the same bits every time", first == second


@program
def exchanges(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = line_of(devices)
    n = len(devices)
    x = weft.shard(numbers(2 * n, 3 * n, n), mesh, P("a", None, None))
    yield "tiled 1 0", weft.all_to_all(x, 1, 0)
    yield "tiled 1 2", weft.all_to_all(x, 1, 2)
    yield "tiled 0 1", weft.all_to_all(weft.shard(x, mesh, P(None, "a", None)), 0, 1)
    yield "not tiled", weft.all_to_all(x, 2, 0, tiled=False)
    y = weft.shard(numbers(5, 7), mesh, P("a", None))
    yield "uneven", weft.all_to_all(y, 1, 0)


@program
def permutations(devices: Sequence[Device]) -> Iterator[Yielded]:
    n = len(devices)
    for name, mesh in {"line": line_of(devices), "backwards": line_of(devices[::-1])}.items():
        x = weft.shard(numbers(2 * n, 3), mesh, P("a", None))
        yield f"{name} ring", weft.ppermute(x, [(i, (i + 1) % n) for i in range(n)])
        yield f"{name} shift", weft.ppermute(x, [(i, i + 1) for i in range(n - 1)])
        yield f"{name} none", weft.ppermute(x, [])
    if n == 4:
        square = weft.shard(numbers(4, 3), mesh_of(devices), P("a", None))
        yield "replicas", weft.ppermute(square, [(0, 2), (1, 3), (2, 0), (3, 1)])


@program
def contributions_of_one_process(devices: Sequence[Device]) -> Iterator[Yielded]:
    """A tensor that fits into a small message, but not several contributions to it that travel together."""
    across = 2 if len(devices) % 2 == 0 else 1
    mesh = weft.make_mesh({"b": across, "a": len(devices) // across}, devices=devices)
    x = held(Layout(mesh, (("b",),), {"a": ReduceOp.SUM}), (6000,))
    gathered = x.redistribute(named_mapping(Layout(mesh, ((),), {"a": ReduceOp.SUM})))
    yield "gathered", gathered
    yield "summed", weft.all_reduce(gathered)


@program
def transfers(devices: Sequence[Device]) -> Iterator[Yielded]:
    x = weft.shard(numbers(6, 5), mesh_of(devices), P("a", None))
    for device in dict.fromkeys((devices[0], devices[-1])):
        y = weft.to_device(x, device)
        yield f"to {device.id}", y
        yield f"to {device.id} and on", y + 1
        yield f"to {device.id} and back", weft.shard(y, x.mesh, P(None, "a"))
    yield "sharding", weft.to_device(x, sharding=NamedMapping(line_of(devices), P(None, "a")))
    yield "one is added to all", x + weft.to_device(numbers(5), devices[-1])


@program
def local_shards(devices: Sequence[Device]) -> Iterator[Yielded]:
    for name, mesh in _meshes(devices).items():
        layout = Layout(mesh, (("a",), ()))
        whole = numbers(7, 3)
        shards = [whole[tuple(slice(a, b) for a, b in box(layout, (7, 3), slot))] for slot in own_slots(mesh)]
        mapping = NamedMapping(mesh, P("a", None))
        yield f"{name} with shape", weft.from_local(shards, mapping, shape=(7, 3), dtype=torch.float32)
        yield f"{name} without", weft.from_local(shards, mapping)


@program
def creation(devices: Sequence[Device]) -> Iterator[Yielded]:
    mapping = NamedMapping(mesh_of(devices), P("a", None))
    torch.manual_seed(7)
    yield "randn", weft.randn(6, 5, mapping=mapping)
    yield "rand on some", weft.rand(6, 5, mapping=NamedMapping(line_of(devices[:1]), P("a", None)))
    yield "randint", weft.randint(0, 9, (6, 5), mapping=mapping)
    yield "after", torch.rand(3)
    x = weft.zeros(6, 5, mapping=mapping)
    yield "like", weft.randn_like(x)
    yield "bernoulli", torch.bernoulli(x + 0.5)
    yield "dropout", torch.nn.functional.dropout(x + 1, 0.5)
    yield "normal in place", x.normal_()
    on_first = weft.zeros(6, 5, mapping=NamedMapping(line_of(devices[:1]), P(None, None)))
    yield "like, elsewhere", weft.randn_like(on_first)
    yield "still the same", torch.rand(3)
    yield "arange", weft.arange(7, mapping=NamedMapping(mesh_of(devices), P("a")))


@rounded
def parts_of_a_model_on_some_devices(devices: Sequence[Device]) -> Iterator[Yielded]:
    """Lists of one tensor that lies elsewhere are lists: norms of gradients, to clip them, are such."""
    first, last = line_of(devices[:1]), line_of(devices[-1:])
    x = weft.shard(numbers(1, 4), last, P("a"))
    yield "lists of one", [len(x.unbind(0)), len(x.split(1)), len(x.chunk(1)), len(torch.where(x[0] > 0))]
    parts = [torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)]
    for part, mesh in zip(parts, (first, last), strict=True):
        for p in part.parameters():
            torch.nn.init.constant_(p, 0.5)
        weft.nn.shard_module(part, mesh, {"weight": P("a")})
    hidden = parts[0](weft.shard(numbers(2, 4), first, P("a")))
    parts[1](weft.shard(hidden, last, P("a"))).square().sum().backward()
    parameters = [p for part in parts for p in part.parameters()]
    yield "norm", torch.nn.utils.clip_grad_norm_(parameters, 0.1).full_tensor()
    torch.optim.AdamW(parameters, lr=0.1).step()
    for number, p in enumerate(parameters):
        yield f"gradient {number}", p.grad
        yield f"parameter {number}", p


@rounded
def compute(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    last = mesh.axis_names[-1]
    for shape in ((8, 8), (5, 7)):
        x = weft.shard(noise(*shape), mesh, P("a", None))
        w = weft.shard(noise(shape[1], 6, seed=1), mesh, P(None, last))
        yield f"{shape} matmul", x @ w
        yield f"{shape} softmax", x.softmax(0)
        yield f"{shape} norm", torch.nn.functional.layer_norm(x, (shape[1],))
        yield f"{shape} mean", x.mean(0)
        yield f"{shape} total mean", x.mean()
        yield f"{shape} std", x.std()
        yield f"{shape} reshape", x.reshape(-1)
        yield f"{shape} transpose", x.t().contiguous()
        yield f"{shape} cat", torch.cat([x, x * 2])
        yield f"{shape} slice", x[1:4]
        yield f"{shape} sort", x.sort(0).values
        yield f"{shape} cumsum", x.cumsum(0)
        yield f"{shape} where", torch.where(x > 0, x, -x)
        yield f"{shape} index", x[torch.tensor([0, 2, 1])]
        yield f"{shape} nonzero", (x > 0).nonzero()
        yield f"{shape} masked", x[x > 0]
        y = x.clone()
        y.add_(1).mul_(2)
        y[0] = 5
        yield f"{shape} in place", y


@rounded
def attention_of_a_split_sequence(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    where = P(None, None, mesh.axis_names)
    for way, causal, length in product(("gather keys", "split heads", "ring"), (False, True), (8, 5)):
        shapes = (1, 4, length, 4), (1, 2 if way == "ring" else 4, length, 4)
        query, key, value = (weft.shard(noise(*shapes[k > 0], seed=k), mesh, where).requires_grad_() for k in range(3))
        with weft.prefer(way), weft.comm_log() as log:
            out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=True)
            out.backward(weft.shard(noise(*shapes[0], seed=3), mesh, where))
        name = f"{way} {causal} {length}"
        yield name, out
        yield f"{name} query", query.grad
        yield f"{name} key", key.grad
        yield f"{name} value", value.grad
        yield f"{name} log", [(record.kind, record.bytes_received, record.total_bytes) for record in log]
    key, value = (weft.shard(noise(1, 2, 9, 4, seed=k), mesh, where).requires_grad_() for k in range(2))
    query = weft.shard(noise(1, 4, 1, 4), mesh, P()).requires_grad_()
    with weft.prefer("merge"):
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        out.sum().backward()
    yield "merge", out
    yield "merge query", query.grad
    yield "merge key", key.grad


@rounded
def attention_with_masks_and_shared_keys(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    where = P(None, None, mesh.axis_names)
    masks = {"boolean": noise(1, 1, 5, 5, seed=4) > -0.5, "float": noise(5, 5, seed=4)}
    for (way, of_keys), mask in product((("gather keys", 1), ("ring", 2), ("split heads", 8)), masks):
        shapes = (1, 8, 5, 4), (1, of_keys, 5, 4), (1, of_keys, 5, 4)
        given = [weft.shard(noise(*shape, seed=k), mesh, where).requires_grad_() for k, shape in enumerate(shapes)]
        with weft.prefer(way):
            out = torch.nn.functional.scaled_dot_product_attention(*given, masks[mask], enable_gqa=True)
            gradients = torch.autograd.grad(out, given, weft.shard(noise(1, 8, 5, 4, seed=3), mesh, where))
        yield f"{way} {mask}", out
        for name, gradient in zip(("query", "key", "value"), gradients, strict=True):
            yield f"{way} {mask} {name}", gradient
    cache, token = (weft.shard(noise(4, 2, n, 4, seed=n), mesh, P("a")) for n in (6, 1))
    place = weft.shard(torch.tensor([2, 5, 0, 3]), mesh, P("a"))
    with weft.comm_log() as log:
        cache.scatter_(2, place.view(4, 1, 1, 1).expand(4, 2, 1, 4), token)
        seen = (torch.arange(6) <= place[:, None])[:, None, None]
        yield "at different places", torch.nn.functional.scaled_dot_product_attention(token, cache, cache, seen)
    yield "at different places, moved", log.total_bytes
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, 12, 12, device="cpu", BLOCK_SIZE=4)
    given = [weft.shard(noise(1, heads, 12, 8, seed=heads), mesh, where).requires_grad_() for heads in (4, 2, 2)]
    out, *_ = flex_kernel(*given, lambda score, *_: score, blocks.as_tuple(), 0.4, {})
    yield "blocks", out
    out.backward(weft.shard(noise(1, 4, 12, 8, seed=3), mesh, where))
    for name, x in zip(("query", "key", "value"), given, strict=True):
        yield f"blocks {name}", x.grad


@rounded
def compute_on_some(devices: Sequence[Device]) -> Iterator[Yielded]:
    for name, mesh in _meshes(devices).items():
        x = weft.shard(noise(6, 5), mesh, P("a", None))
        yield f"{name} matmul", x @ weft.shard(noise(5, 4), mesh, P(None, "a"))
        yield f"{name} softmax", x.softmax(0)
        yield f"{name} mean", x.mean()
        yield f"{name} nonzero", (x > 0).nonzero()
        yield f"{name} unique", torch.unique(x.round())
        yield f"{name} topk", x.topk(2, 0).values
        y = x.clone()
        y.add_(1)
        y[0] = 3
        yield f"{name} in place", y
        z = x.clone().requires_grad_()
        (z * z).sum().backward()
        yield f"{name} gradient", z.grad
        plain = torch.zeros(6, 5)
        plain += x
        yield f"{name} plain", plain


REARRANGED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[1:4],
    "step": lambda x: x[::2, 1:],
    "select": lambda x: x[3],
    "flip": lambda x: x.flip(0, 1),
    "roll": lambda x: x.roll((1, 2), (0, 1)),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2, 0, 3)),
    "cat": lambda x: torch.cat([x, x[:2], x * 2]),
    "view": lambda x: x.view(10, 3),
    "flat": lambda x: x.view(30)[4:20],
    "lookup": lambda x: x[torch.tensor([4, 0, 2])],
    "tril": lambda x: x.tril(1),
}


@program
def rearrangements(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    for layout in layouts_of(mesh):
        x = held(layout, (5, 6), torch.float64)
        for name, op in REARRANGED.items():
            yield f"{layout} {name}", op(x)
        y = x.clone()
        y[1:3] = 7.0
        y[4].add_(1)
        y.view(30)[5:9].mul_(2)
        yield f"{layout} written to", y
        z = x.clone().requires_grad_()
        (z[1:4].sum() + (z.view(30)[3:9] * numbers(6, dtype=torch.float64)).sum()).backward()
        yield f"{layout} gradient", z.grad


@program
def rearrangements_on_some(devices: Sequence[Device]) -> Iterator[Yielded]:
    for label, mesh in _meshes(devices).items():
        x = weft.shard(numbers(5, 6, dtype=torch.float64), mesh, P("a", None))
        for name, op in REARRANGED.items():
            yield f"{label} {name}", op(x)
        torch._foreach_mul_([x], 2.0)
        yield f"{label} lists", torch._foreach_add([x], [x])[0]


WINDOWED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "conv": lambda x, w: torch.nn.functional.conv2d(x, w, None, 1, 1),
    "conv, strided": lambda x, w: torch.nn.functional.conv2d(x, w, None, (2, 1), 0, (1, 2)),
    "conv, transposed": lambda x, w: torch.nn.functional.conv_transpose2d(x, w[:3], None, 2, 1, 1),
    "max": lambda x, w: torch.nn.functional.max_pool2d(x * w.sum(), 3, 2, 1),
    "mean": lambda x, w: torch.nn.functional.avg_pool2d(x * w.sum(), 3, 2, 1, divisor_override=1),
}


@program
def halos(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    for spec in (P(None, None, "a", mesh.axis_names[-1] if len(mesh.axis_names) > 1 else None), P("a")):
        for name, op in WINDOWED.items():
            x = weft.shard(numbers(2, 3, 7, 9, dtype=torch.float64), mesh, spec).requires_grad_()
            w = weft.shard(numbers(4, 3, 3, 3, dtype=torch.float64), mesh, P()).requires_grad_()
            with weft.comm_log() as log:
                y = op(x, w)
                (y * numbers(*y.shape, seed=1, dtype=torch.float64)).sum().backward()
            yield f"{spec} {name}", y.detach()
            yield f"{spec} {name} of x", x.grad
            yield f"{spec} {name} of w", w.grad
            yield f"{spec} {name} moves", (log.counts(), log.bytes_received, log.total_bytes)


@program
def halos_on_some(devices: Sequence[Device]) -> Iterator[Yielded]:
    for label, mesh in _meshes(devices).items():
        x = weft.shard(numbers(2, 3, 7, 9, dtype=torch.float64), mesh, P(None, None, "a"))
        for name, op in WINDOWED.items():
            yield f"{label} {name}", op(x, numbers(4, 3, 3, 3, dtype=torch.float64))


EDGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reflect": lambda x: torch.nn.functional.pad(x, (2, 3), mode="reflect"),
    "replicate": lambda x: torch.nn.functional.pad(x, (2, 1), mode="replicate"),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "halves": lambda x: torch.nn.functional.glu(x * 0, 1),
}


@program
def edges(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    for spec in (P(None, mesh.axis_names), P("a", mesh.axis_names[-1] if len(devices) == 4 else None)):
        for name, op in EDGES.items():
            x = weft.shard(numbers(4, 10, dtype=torch.float64), mesh, spec).requires_grad_()
            with weft.comm_log() as log:
                y = op(x)
                (y * numbers(*y.shape, seed=1, dtype=torch.float64)).sum().backward()
            yield f"{spec} {name}", y.detach()
            yield f"{spec} {name} gradient", x.grad
            yield f"{spec} {name} moves", (log.counts(), log.bytes_received, log.total_bytes)


@rounded
def moves_on_some(devices: Sequence[Device]) -> Iterator[Yielded]:
    """What is logged of a mesh that leaves processes out, which have nothing that could tell two tensors apart."""
    for name, mesh in _meshes(devices).items():
        x, y = (weft.shard(numbers(4, 4, seed=k), mesh, P("a")) for k in range(2))
        with weft.comm_log() as log:
            yield f"{name} two that are alike", torch.linalg.svdvals(x) + torch.linalg.svdvals(y)
            yield f"{name} one, and a view of it", torch.linalg.svdvals(y.t()) + torch.linalg.svdvals(y)
            merged = weft.shard(numbers(2, 6, 4), mesh, P(None, "a")).reshape(12, 4)
            yield f"{name} merged", merged.sin()
        yield f"{name} moves", [[each.kind, each.op, each.total_bytes] for each in log]


@program
def local_code_on_some(devices: Sequence[Device]) -> Iterator[Yielded]:
    """`local_map` is called by the processes that a mesh has, and needs no others."""
    for name, mesh in _meshes(devices).items():
        x = weft.shard(numbers(5, 2), mesh, P("a")).requires_grad_()
        if own_slots(mesh):
            y = weft.local_map(lambda x: x * weft.all_reduce(x.sum()), P("a"), P("a"), mesh=mesh, axes="a")(x)
            top = weft.local_map(lambda x: weft.all_reduce(x.amax(), "max"), P("a"), P(), mesh=mesh, axes="a")(x)
            (y.sum() + top).backward()
            expected = weft.shard(numbers(5, 2) * numbers(5, 2).sum(), mesh, P("a"))
            assert all(map(torch.equal, y.detach().local_shards, expected.local_shards))
            assert all(shard == numbers(5, 2).max() for shard in top.local_shards)
        yield f"{name} afterwards", x.sum().item()


@program
def orders(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    x = torch.randperm(60, generator=torch.Generator().manual_seed(1)).reshape(4, 15).double()
    for spec in (P(None, mesh.axis_names), P("a", mesh.axis_names[-1] if len(devices) == 4 else None)):
        ours = weft.shard(x, mesh, spec).requires_grad_()
        with weft.comm_log() as log:
            found = (*ours.sort(1), *ours.topk(2, 1), *ours.kthvalue(13, 1), *ours.median(1), *ours.topk(9, 1))
        for k, each in enumerate(found):
            yield f"{spec} {k}", each.detach()
        (found[0] * numbers(4, 15, dtype=torch.float64)).sum().backward()
        yield f"{spec} gradient", ours.grad
        yield f"{spec} moves", (log.counts(), log.bytes_received, log.total_bytes)


@program
def gradients_of_movements(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    layouts = [layout for layout in layouts_of(mesh) if not layout.pending]
    for source in layouts:
        x = weft.shard(numbers(5, 3), mesh, named_mapping(source)).requires_grad_()
        for target in layouts:
            (x.redistribute(named_mapping(target)) * numbers(5, 3, seed=1)).sum().backward()
        yield f"from {source}", x.grad


@program
def gradients_of_ops(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh, n = line_of(devices), len(devices)

    def gradient(label: str, op: Callable[[torch.Tensor], torch.Tensor], spec: P = P("a", None)) -> Yielded:
        x = weft.shard(numbers(2 * n, 4 * n, dtype=torch.float64), mesh, spec).requires_grad_()
        y = op(x)
        weights = numbers(*y.shape, seed=2, dtype=torch.float64)
        (y * (weights if isinstance(y, weft.Tensor) else weights.to(y.device))).sum().backward()
        return label, x.grad

    yield gradient("all_gather", weft.all_gather)
    for kind in ("sum", "max", "prod"):
        yield gradient(f"all_reduce {kind}", lambda x, kind=kind: weft.all_reduce(x, kind))
    yield (
        gradient("reduce_scatter", lambda x: weft.reduce_scatter(x, 0), P("a", None))
        if n == 1
        else gradient("reduce_scatter", lambda x: weft.reduce_scatter(x, 1), P(None, "a"))
    )
    yield gradient("all_to_all", lambda x: weft.all_to_all(x, 1, 0))
    yield gradient("ppermute", lambda x: weft.ppermute(x, [(i, (i + 1) % n) for i in range(n)]))
    yield gradient("broadcast", weft.distributed_broadcast)
    yield gradient("to_device", lambda x: weft.to_device(x, devices[-1]))
    yield gradient("full_tensor", lambda x: x.full_tensor())
    plain = numbers(4, 3).requires_grad_()
    (weft.shard(plain, mesh, P("a", None)) * numbers(4, 3, seed=1)).sum().backward()
    yield "of a plain tensor", plain.grad


@program
def asked_for_and_used_later(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh, n = line_of(devices), len(devices)
    x = weft.shard(numbers(2 * n, 3 * n), mesh, P("a", None))
    pending = held(Layout(mesh, ((), ()), {"a": ReduceOp.SUM}), (61, 67))
    on_last = weft.to_device(numbers(40, 50), devices[-1])
    ops: dict[str, Callable[[], torch.Tensor]] = {
        "shard": lambda: weft.shard(x, mesh, P(None, "a"), async_op=True),
        "redistribute": lambda: x.redistribute(NamedMapping(mesh, P(None, "a")), async_op=True),
        "all_gather": lambda: weft.all_gather(x, async_op=True),
        "all_reduce": lambda: weft.all_reduce(pending, async_op=True),
        "all_reduce split": lambda: weft.all_reduce(x, async_op=True),
        "reduce_scatter": lambda: weft.reduce_scatter(pending, 0, async_op=True),
        "all_to_all": lambda: weft.all_to_all(x, 1, 0, async_op=True),
        "all_to_all not tiled": lambda: weft.all_to_all(x[:, :n].contiguous(), 1, 0, tiled=False, async_op=True),
        "ppermute": lambda: weft.ppermute(x, [(i, (i + 1) % n) for i in range(n)], async_op=True),
        "broadcast": lambda: weft.distributed_broadcast(on_last, mesh, async_op=True),
        "to_device": lambda: weft.to_device(x, devices[-1], async_op=True),
        "a plain tensor": lambda: weft.shard(numbers(6, 5), mesh, P("a", None), async_op=True),
    }
    begun = {name: op() for name, op in ops.items()}
    yield "at once, meanwhile", x.sum()
    for name, y in reversed(begun.items()):  # used in another order than asked for
        yield name, y + 1
    again = {name: op() for name, op in ops.items()}
    x.zero_()  # what was asked for is what it was then
    pending.zero_()
    for name, y in again.items():
        assert isinstance(y, weft.Tensor)
        yield f"{name} again", y.wait()
    for _ in range(3):
        weft.all_gather(x, async_op=True)  # nobody ever uses it
    x = weft.shard(numbers(2 * n, 4 * n), mesh, P("a", None)).requires_grad_()
    y, z = weft.all_gather(x, async_op=True), weft.all_to_all(x, 1, 0, async_op=True)
    (y * numbers(2 * n, 4 * n, seed=1) + z).sum().backward()
    yield "gradient", x.grad


@rounded
def training(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    last = mesh.axis_names[-1]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 5))
    specs = {"0.weight": P(last, None), "0.bias": P(last), "2.weight": P(None, last), "2.bias": P(None)}
    for name, parameter in list(model.named_parameters()):
        module = model.get_submodule(name.split(".")[0])
        laid = weft.shard(parameter.detach(), mesh, specs[name])
        setattr(module, name.split(".")[1], torch.nn.Parameter(laid))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(3):
        x = weft.shard(noise(12, 6, seed=step), mesh, P("a", None))
        wanted = weft.shard(noise(12, 5, seed=step + 9), mesh, P("a", None))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield f"loss {step}", loss.item()
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()


@program
def logs(devices: Sequence[Device]) -> Iterator[Yielded]:
    mesh = mesh_of(devices)
    x = weft.shard(numbers(12, 12), mesh, P("a", None))
    with weft.comm_log() as log:
        weft.shard(x, mesh, P(None, "a"))
        weft.all_gather(x)
        weft.all_reduce(x)
        x.softmax(0)
    yield "counts", log.counts()
    yield "bytes", (log.bytes_received, log.total_bytes)


@rounded
def what_models_bring(devices: Sequence[Device]) -> Iterator[Yielded]:
    """Folded dims, recurrence, bags and caches: their values, and what moves for them."""
    mesh = mesh_of(devices)
    last = mesh.axis_names[-1]
    heads = P("a", last) if last != "a" else P("a")
    with weft.comm_log() as log:
        q, k, v = (weft.shard(noise(4, 4, n, 2, seed=n), mesh, heads).requires_grad_() for n in (1, 3, 4))
        scores = (q @ k.mT).softmax(-1)
        yield "attention of one query", scores @ v[:, :, :3]
        (scores @ v[:, :, :3]).sum().backward()
        yield "gradient of one query", q.grad
        layer = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        recurrent, bags = torch.nn.LSTM(6, 4, batch_first=True), torch.nn.EmbeddingBag(6, 4, mode="mean")
        for seed, (module, spec) in enumerate(((layer, P()), (recurrent, P()), (bags, P("a")))):
            for parameter in module.parameters():
                parameter.data = noise(*parameter.shape, seed=seed) / 4
            weft.nn.shard_module(module, mesh, {name: spec for name, p in module.named_parameters() if p.dim() == 2})
        y = layer(weft.shard(noise(4, 3, 8), mesh, P("a")))
        steps, _ = recurrent(weft.shard(noise(5, 3, 6), mesh, P("a")))
        found = bags(torch.tensor([[0, 5, 1], [4, 4, 2]]))
        (y.sum() + steps.square().sum() + found.square().sum()).backward()
        yield from {"layer": y, "steps": steps, "bags": found}.items()
        for name, parameter in (*layer.named_parameters(), *recurrent.named_parameters(), *bags.named_parameters()):
            yield f"gradient of {name}", parameter.grad
        cache = torch.zeros(4, 4, 2)
        cache.index_copy_(2, torch.tensor([1]), weft.shard(noise(4, 4, 1), mesh, heads))
        yield "a plain cache", cache.tolist()
    yield "what moved", sorted({(record.kind, record.op, record.implicit) for record in log if record.total_bytes})


@program
def shapes(devices: Sequence[Device]) -> Iterator[Yielded]:
    """What each device holds has the shape of its box."""
    mesh = mesh_of(devices)
    for layout in layouts_of(mesh):
        x = held(layout, (5, 3))
        expected = [box_shape(box(layout, (5, 3), slot)) for slot in own_slots(mesh)]
        yield f"{layout}", [tuple(shard.shape) for shard in x.local_shards] == expected


@program
def files(devices: Sequence[Device]) -> Iterator[Yielded]:
    """What libraries of models do with files: whole tensors, tied ones once, another dtype."""
    mesh = mesh_of(devices)
    name = f"weft-files-{os.environ.get('MASTER_PORT', os.getpid())}-{len(devices)}"
    folder = Path(tempfile.gettempdir(), name)
    for spec in (P(), P("a"), P(None, "a")):
        model = weft.nn.shard_module(Tied(), mesh, {"table.weight": spec, "matrix.weight": spec})
        whole = weft.checkpoint.full_state_dict(model)
        yield f"{spec} tied", whole["table.weight"] is whole["matrix.weight"]
        yield f"{spec} whole", whole["table.weight"]
        yield f"{spec} address", read_at_address(model.table.weight.data)
        kept = {name: x.bfloat16() for name, x in whole.items() if name != "matrix.weight"}
        weft.checkpoint.save(kept, folder / "model.safetensors")
        with torch.no_grad():
            model.table.weight.zero_()
        weft.checkpoint.load(folder, model, cast=True)
        yield f"{spec} loaded", model.matrix.weight.data
    weft.checkpoint.save({}, folder / "done")  # nobody goes on before all have read
    shutil.rmtree(folder, ignore_errors=True)


@program
def refusals_of_elements_that_some_hold(devices: Sequence[Device]) -> Iterator[Yielded]:
    """What no kernel takes is refused by every process, those included that hold none of it."""
    mesh = line_of(devices)
    few = weft.shard(numbers(1, 2, dtype=torch.bool), mesh, P(mesh.axis_names[0]))
    square = weft.shard(numbers(2, 2, dtype=torch.bool), mesh, P())
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: few @ square,
        "product into another": lambda: torch.matmul(few, square, out=torch.zeros_like(few)),
        "activation": lambda: torch.nn.functional.gelu(few.long()),
        "least of complex numbers": lambda: few.cfloat().scatter_reduce_(1, few.long(), few.cfloat(), "amin"),
        "remainder of nothing": lambda: few.long() % 0,
        "places in nothing": lambda: torch.take_along_dim(few.float()[:, :0], few.long(), 1),
    }
    if few.device.type != "cpu":  # whose kernels find it out later, and end all of the process's work there
        del calls["places in nothing"]
    for name, call in calls.items():
        try:
            call()
        except (NotImplementedError, RuntimeError) as error:
            yield name, str(error)
        else:
            yield name, "accepted"


@program
def refusals_where_some_have_no_device(devices: Sequence[Device]) -> Iterator[Yielded]:
    """What a mesh of one device refuses, for want of a kernel or by what torch says of a dtype, every process refuses."""
    mesh = line_of(devices[:1])
    x, y = (weft.shard(numbers(4, 3, dtype=dtype), mesh, P()) for dtype in (torch.int64, torch.bfloat16))
    truth, whole = x.bool(), y.float()
    calls: dict[str, Callable[[], object]] = {
        "complex numbers of short ones": lambda: torch.complex(y, y),
        "the largest complex number": lambda: x.cfloat().max(1),
        "sorted complex numbers": lambda: x.cfloat().sort(0),
        "the largest truths": lambda: truth.topk(2),
        "the place of the largest truth": lambda: truth.argmax(0),
        "running sums of exponentials": lambda: x.logcumsumexp(0),
        "a solution": lambda: torch.linalg.lu_solve(y[:3].half(), torch.ones_like(x[:3, 0]).int(), y[:3].half()),
        "a norm of groups": lambda: torch.nn.functional.group_norm(x.cfloat()[:, :, None], 3),
        "a pseudo-inverse": lambda: torch.linalg.pinv(x),
        "least squares": lambda: torch.linalg.lstsq(x, x),
        "eigenvalues": lambda: torch.linalg.eigvals(x[:3]),
        "a transform": lambda: torch.fft.fft(y),
        "windows": lambda: float(whole.as_strided((2, 2), (1, 1), 0).sum()),
        "what is read": lambda: float(whole.sum()),
        "sums of short integers": lambda: x.int().cumsum(0).dtype,
    }
    for name, call in calls.items():
        try:
            yield name, str(call())
        except (NotImplementedError, RuntimeError, TypeError) as error:
            yield name, f"{type(error).__name__}: {str(error).splitlines()[0]}"


@rounded
def experts(devices: Sequence[Device]) -> Iterator[Yielded]:
    """Tokens that travel to their experts and back, in the forward pass and in the backward pass; on some devices, too."""
    for where, mesh in {"all": mesh_of(devices), "some": line_of(devices[:1]), "half": mesh_of(devices[:2])}.items():
        last = mesh.axis_names[-1]
        for name, tokens in {"split": P(mesh.axis_names), "everywhere": P(), "over one axis": P("a")}.items():
            given = [
                weft.shard(x, mesh, spec).requires_grad_(x.is_floating_point())
                for x, spec in zip(arguments(10), (tokens, tokens, tokens, P(last), P(last)), strict=True)
            ]
            with weft.comm_log() as log:
                made = layer(*given)
                made.square().sum().backward()
            yield f"{where}, {name}: made", made
            yield from ((f"{where}, {name}: gradient {i}", x.grad) for i, x in enumerate(given) if x.grad is not None)
            yield (
                f"{where}, {name}: log",
                [f"{r.kind} {r.op} {r.bytes_received} {r.total_bytes} {r.rows} {r.groups}" for r in log],
            )


@rounded
def experts_one_by_one(devices: Sequence[Device]) -> Iterator[Yielded]:
    """The same by a loop, over experts or over their matrices; some are not used."""
    mesh = mesh_of(devices)
    where, last = P(mesh.axis_names), P(mesh.axis_names[-1])
    for how in (loop, iterated):
        given = [
            weft.shard(x, mesh, spec).requires_grad_(x.is_floating_point())
            for x, spec in zip(arguments(10), (where, where, where, last, last), strict=True)
        ]
        with weft.comm_log() as log:
            made = how(*given)
            made.square().sum().backward()
        yield f"{how.__name__}: made", made
        yield from ((f"{how.__name__}: gradient {i}", x.grad) for i, x in enumerate(given) if x.grad is not None)
        yield f"{how.__name__}: log", [f"{r.kind} {r.op} {r.bytes_received} {r.total_bytes} {r.rows}" for r in log]


@program
def added_to_what_some_devices_have(devices: Sequence[Device]) -> Iterator[Yielded]:
    """A bias that is added to a product with one of a stack, of which devices have some each."""
    mesh = line_of(devices)
    stack, first, second, bias = numbers(4, 4, 3), numbers(3, 8), numbers(8, 5), numbers(5)
    specs = (P("a"), P(None, "a"), P("a"), P())
    given = [weft.shard(x, mesh, spec) for x, spec in zip((stack, first, second, bias), specs, strict=True)]
    for k in range(4):
        made = torch.addmm(given[3], given[0][k] @ given[1], given[2])
        whole = made.full_tensor()
        torch.testing.assert_close(whole.cpu(), torch.addmm(bias, stack[k] @ first, second), rtol=0, atol=1e-5)
        yield f"of {k}", made


@program
def refusals(devices: Sequence[Device]) -> Iterator[Yielded]:
    """What torch refuses, every process refuses in the same words, and goes on."""
    mesh = line_of(devices)
    x = weft.shard(numbers(6, 5), mesh, P("a", None))
    if x.device.type == "cpu":  # GPUs find out later, and end all of the process's work there
        yield from _out_of_range(x, mesh)
    yield "a mask", _refused(lambda: x[weft.shard(torch.ones(7, dtype=torch.bool), mesh, P("a"))])
    yield "afterwards", x
    nothing = weft.shard(torch.zeros(0, 3), mesh, P("a", None))
    yield (
        "of nothing",
        [str(nothing.median().tolist()), str(nothing.logsumexp(0).tolist()), str(nothing.mean(0).tolist())],
    )
    yield "the largest of nothing", _refused(lambda: nothing.amax(0))


def _out_of_range(x: weft.Tensor, mesh: DeviceMesh) -> Iterator[Yielded]:
    """Places, classes and targets that there are not."""
    for kind, index in {
        "plain": torch.tensor([0, 9]),
        "replicated": weft.shard(torch.tensor([0, 9]), mesh, P()),
    }.items():
        calls: dict[str, Callable[[], object]] = {
            "index": lambda index=index: x[index],
            "index_put": lambda index=index: x.index_put((index,), torch.ones(2, 5)),
            "gather": lambda index=index: x.gather(0, index[:, None]),
            "scatter_add": lambda index=index: x.scatter_add(0, index[:, None], torch.ones(2, 1)),
            "index_add_": lambda index=index: x.clone().index_add_(0, index, torch.ones(2, 5)),
            "index_fill_": lambda index=index: x.clone().index_fill_(0, index, 1.0),
        }
        for name, call in calls.items():
            yield f"{kind} {name}", _refused(call)
    yield "classes", _refused(lambda: torch.nn.functional.one_hot(weft.shard(torch.tensor([0, 9]), mesh, P()), 3))
    # The processes ask each other how many there are.
    yield "classes below 0", _refused(lambda: torch.nn.functional.one_hot(weft.shard(torch.tensor([-1]), mesh, P("a"))))
    targets = [[0, 1, -100, 3, 4, last] for last in (2, 9, -7)]
    for k, target in enumerate(map(torch.tensor, targets)):  # the later calls are known
        for kind, given in {"plain": target, "replicated": weft.shard(target, mesh, P())}.items():
            yield f"{kind} targets {k}", _refused(lambda given=given: torch.nn.functional.cross_entropy(x, given))
            where = given.clamp(min=0)[:, None]
            yield f"{kind} places {k}", _refused(lambda where=where: x.gather(1, where))


def _refused(call: Callable[[], object]) -> str:
    """What a call says that is refused."""
    try:
        call()
    except (IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


class Tied(torch.nn.Module):
    """A table that is also a matrix, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.matrix = torch.nn.Embedding(6, 4), torch.nn.Linear(4, 6)
        self.matrix.weight = self.table.weight
        with torch.no_grad():
            self.table.weight.copy_(numbers(6, 4))
            self.matrix.bias.copy_(numbers(6))


def read_at_address(x: torch.Tensor) -> str:
    """What lies at a tensor's address, or that it says to have none."""
    if not x.is_cpu:
        return "right"  # nobody can read there
    try:
        found = list((ctypes.c_float * x.numel()).from_address(x.data_ptr()))
    except NotImplementedError as error:
        assert "state_dict=weft.checkpoint.full_state_dict(model)" in str(error), error
        return "right"
    return "right" if found == x.full_tensor().flatten().tolist() else f"wrong: {found}"
