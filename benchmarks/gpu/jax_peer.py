"""The same results in JAX on the same GPU. JAX has no logical devices on one GPU, so these are jitted functions that read
and write what the collective would; run by `kernels.py` in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

MIB = 1 << 20


def milliseconds(run: Callable[..., object], *inputs: jax.Array) -> float:
    """The median over batches of 10 calls."""
    jax.block_until_ready(run(*inputs))
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(10):
            results = run(*inputs)
        jax.block_until_ready(results)
        taken.append((time.perf_counter() - begin) * 100)
    return statistics.median(taken)


def main() -> None:
    """Print milliseconds as JSON."""
    found: dict[str, object] = {"jax": jax.__version__, "device": str(jax.devices()[0])}
    keys = jax.random.split(jax.random.key(0), 8)
    large = [jax.random.normal(key, (32 * MIB,), jnp.float32) for key in keys]
    small = [x[:4096] for x in large]
    total = jax.jit(lambda *xs: (sum(xs[1:], xs[0]),) * 8)
    found["all-reduce 8 × 128 MiB"] = milliseconds(total, *large)
    found["all-reduce 8 × 16 KiB, host included"] = milliseconds(total, *small)
    found["all-gather 8 × 128 MiB"] = milliseconds(jax.jit(lambda *xs: (jnp.concatenate(xs),) * 8), *large)
    del large
    whole = jax.random.normal(keys[0], (256 * MIB,), jnp.float32)
    found["broadcast 8 × 1 GiB"] = milliseconds(jax.jit(lambda x: tuple(jnp.copy(x) for _ in range(8))), whole)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
