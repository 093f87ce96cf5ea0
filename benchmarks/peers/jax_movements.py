"""The same movements and collectives by JAX on 8 host devices; nothing where JAX is not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
from contest import Contender

from weft import DeviceMesh
from weft.inspect.transitions import MatrixTransition

HAS_JAX = importlib.util.find_spec("jax") is not None
Calls = dict[str, Callable[[], object] | Contender]

if HAS_JAX:
    import jax
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding


def grid(mesh: DeviceMesh) -> Mesh:
    """The same mesh in JAX's words."""
    return Mesh(np.array(jax.devices()[: mesh.num_devices]).reshape(mesh.mesh_shape), mesh.axis_names)


def computed(shape: tuple[int, int], sharding: NamedSharding) -> jax.Array:
    """An array that a program has computed: one made of NumPy's memory keeps that, and replicas of it copy nothing."""
    made = jax.device_put(np.zeros(shape, np.float32), sharding)
    return jax.jit(lambda a: a + 1, out_shardings=sharding)(made).block_until_ready()


def put(x: jax.Array, into: NamedSharding | SingleDeviceSharding) -> Contender:
    """`device_put` of an array that has not been moved before: JAX keeps on an array what it gathered on the host."""
    fresh = jax.jit(lambda a: a + 1, out_shardings=x.sharding)
    latest = [x]

    def prepare() -> None:
        latest[0] = fresh(latest[0]).block_until_ready()

    return Contender(lambda: jax.device_put(latest[0], into).block_until_ready(), prepare)


def transition(case: MatrixTransition, mesh: DeviceMesh, shape: tuple[int, int]) -> Calls:
    """By `device_put` and by a jitted identity; JAX has no pending sums outside of a jitted program."""
    if not HAS_JAX:
        return {}
    there = grid(mesh)
    into = NamedSharding(there, PartitionSpec(*case.target))
    if case.pending:
        parts = np.ones((case.contributions(mesh), *shape), np.float32)
        stacked = jax.device_put(parts, NamedSharding(there, PartitionSpec(case.pending, *case.source)))
        reduce = jax.jit(lambda a: a.sum(0), out_shardings=into)
        return {"JAX jit": lambda: reduce(stacked).block_until_ready()}
    x = computed(shape, NamedSharding(there, PartitionSpec(*case.source)))
    jitted = jax.jit(lambda a: a, out_shardings=into)
    return {
        "JAX device_put": put(x, into),
        "JAX jit": lambda: jitted(x).block_until_ready(),
    }


def collective(name: str, mesh: DeviceMesh, shape: tuple[int, int]) -> Calls:
    """The collective of the same name in a jitted `shard_map`, or the transfer."""
    if not HAS_JAX:
        return {}
    there, count = grid(mesh), mesh.num_devices
    rows, columns, whole = PartitionSpec("d"), PartitionSpec(None, "d"), PartitionSpec()
    x = computed(shape, NamedSharding(there, rows))
    if name in ("distributed_broadcast", "to_device"):
        gathered = name == "distributed_broadcast"
        into = NamedSharding(there, whole) if gathered else SingleDeviceSharding(jax.devices()[0])
        return {"JAX device_put": put(x, into)}
    ring = [(i, (i + 1) % count) for i in range(count)]
    local, after = {
        "all_gather": (lambda a: lax.all_gather(a, "d", tiled=True), whole),
        "all_reduce sum": (lambda a: lax.psum(a, "d"), whole),
        "all_reduce max": (lambda a: lax.pmax(a, "d"), whole),
        "reduce_scatter": (lambda a: lax.psum_scatter(a, "d", tiled=True), rows),
        "all_to_all": (lambda a: lax.all_to_all(a, "d", 1, 0, tiled=True), columns),
        "ppermute": (lambda a: lax.ppermute(a, "d", ring), rows),
    }[name]
    # What a device returns of a replicated result is trusted: JAX cannot prove it for a gather.
    mapped = jax.jit(jax.shard_map(local, mesh=there, in_specs=rows, out_specs=after, check_vma=False))
    return {"JAX jit": lambda: mapped(x).block_until_ready()}


def op(name: str, mesh: DeviceMesh) -> Calls:
    """A small op, not jitted, as Weft's and DTensor's are not."""
    if not HAS_JAX or name not in OPS:
        return {}
    there = grid(mesh)
    rows, whole = NamedSharding(there, PartitionSpec("d")), NamedSharding(there, PartitionSpec())
    x, y = (np.random.default_rng(i).standard_normal((16, 16)).astype(np.float32) for i in range(2))
    one, other = jax.device_put(x, rows), jax.device_put(y, whole if name == "x @ w" else rows)
    return {"JAX": lambda: OPS[name](one, other).block_until_ready()}


if HAS_JAX:
    OPS: dict[str, Callable[..., jax.Array]] = {
        "x + y": lambda x, y: x + y,
        "relu(x)": lambda x, _: jax.nn.relu(x),
        "x * 2": lambda x, _: x * 2,
        "x @ w": lambda x, y: x @ y,
        "softmax(x)": lambda x, _: jax.nn.softmax(x, -1),
        "x.sum()": lambda x, _: x.sum(),
    }
