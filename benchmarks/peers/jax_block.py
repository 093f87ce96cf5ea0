"""The same GPT-2 block in JAX, jitted, on 8 host devices in the same DP × TP layout; nothing where JAX is not installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from .jax_movements import HAS_JAX

if HAS_JAX:
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    SPLIT = {
        **dict.fromkeys(("attention.q", "attention.k", "attention.v", "perceptron.up"), (None, "tp")),
        **dict.fromkeys(("attention.out", "perceptron.down"), ("tp", None)),
    }
    """How the weights, inputs first, lie over the mesh; what splits outputs splits the bias too."""


def step(plain: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, heads: int, rate: float) -> dict[str, Callable]:
    """A training step that starts from the same parameters."""
    if not HAS_JAX:
        return {}
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("dp", "tp"))
    parameters = placed(plain, mesh)
    batch = NamedSharding(mesh, PartitionSpec("dp"))
    inputs, targets = (jax.device_put(value.numpy(), batch) for value in (x, y))
    kept = jax.tree.map(lambda p: p.sharding, parameters)

    @partial(jax.jit, donate_argnums=0, out_shardings=(kept, None))
    def update(parameters: dict, inputs: jax.Array, targets: jax.Array) -> tuple[dict, jax.Array]:
        def loss(p: dict) -> jax.Array:
            return jnp.mean((block(p, inputs, heads) - targets) ** 2)

        value, gradients = jax.value_and_grad(loss)(parameters)
        return jax.tree.map(lambda p, g: p - rate * g, parameters, gradients), value

    state = [parameters]

    def run() -> float:
        state[0], value = update(state[0], inputs, targets)
        return float(value)

    return {"JAX jit": run}


def placed(plain: torch.nn.Module, mesh: Mesh) -> dict[str, jax.Array]:
    """The parameters, weights with inputs first, over the mesh."""
    found = {}
    for name, parameter in plain.named_parameters():
        layer, _, kind = name.rpartition(".")
        value = parameter.detach().numpy()
        spec = SPLIT.get(layer, (None, None))
        if kind == "weight" and value.ndim == 2:
            value, entries = value.T, spec
        else:
            entries = spec[1:]
        found[name] = jax.device_put(value, NamedSharding(mesh, PartitionSpec(*entries)))
    return found


def block(p: dict, x: jax.Array, heads: int) -> jax.Array:
    """Attention and perceptron, each after a norm and added to its input."""

    def linear(name: str, value: jax.Array) -> jax.Array:
        return value @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def norm(name: str, value: jax.Array) -> jax.Array:
        centred = value - value.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def split(value: jax.Array) -> jax.Array:
        return value.reshape(*value.shape[:-1], heads, -1)

    h = norm("norm_1", x)
    q, k, v = (split(linear(f"attention.{name}", h)) for name in "qkv")
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + linear("attention.out", y.reshape(x.shape))
    h = jax.nn.gelu(linear("perceptron.up", norm("norm_2", x)), approximate=True)
    return x + linear("perceptron.down", h)
