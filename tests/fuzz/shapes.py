"""Statements whose operands have to fit each other in more than one dim: products, convolutions, norms, attention."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .blanks import Filling


def _float(filling: Filling, least: int) -> tuple[str, list[int], str]:
    name = filling._pick(lambda t: t.dim() >= least and t.dtype in (torch.float64, torch.complex128), "float64", least)
    if name not in filling.values:
        shape = [filling.rng.randint(1, 4) for _ in range(least)]
        return filling.fresh(shape, "float64"), shape, "float64"
    t = filling.values[name]
    return name, list(t.shape), str(t.dtype).removeprefix("torch.")


def _matmul(f: Filling) -> str:
    name, shape, dtype = _float(f, 1)
    inner, n = shape[-1], f.rng.randint(0, 4)
    lead = [s if f.rng.random() < 0.7 else 1 for s in shape[:-2]][f.rng.randrange(len(shape[:-2]) + 1) :]
    other = f.fresh([inner] if f.rng.random() < 0.15 else [*lead, inner, n], dtype)
    return f"{name} @ {other}"


def _left_matmul(f: Filling) -> str:
    name, shape, dtype = _float(f, 2)
    return f"{f.fresh([*shape[:-2], f.rng.randint(1, 4), shape[-2]], dtype)} @ {name}"


def _linear(f: Filling) -> str:
    name, shape, dtype = _float(f, 1)
    out = f.rng.randint(0, 4)
    bias = f", {f.fresh([out], dtype)}" if f.rng.random() < 0.6 else ""
    return f"F.linear({name}, {f.fresh([out, shape[-1]], dtype)}{bias})"


def _bmm(f: Filling) -> str:
    name, shape, dtype = _float(f, 3)
    if len(shape) != 3:
        name, shape = f"{name}.flatten(0, -3)", [int(torch.tensor(shape[:-2]).prod()), *shape[-2:]]
    b, m, k = shape
    n = f.rng.randint(1, 3)
    other = f.fresh([b, k, n], dtype)
    if f.rng.random() < 0.5:
        return f"torch.bmm({name}, {other})"
    start = f.fresh([f.rng.choice((1, b)), f.rng.choice((1, m)), n], dtype)
    return f"torch.baddbmm({start}, {name}, {other}, beta=0.5, alpha=2)"


def _addmm(f: Filling) -> str:
    name, shape, dtype = _float(f, 2)
    n = f.rng.randint(1, 4)
    start = f.fresh(f.rng.choice(([n], [1, n], [shape[-2], n])), dtype)
    return f"torch.addmm({start}, {name}.flatten(0, -2), {f.fresh([shape[-1], n], dtype)}, beta={f._x()})"


def _einsum(f: Filling) -> str:
    name, shape, dtype = _float(f, 2)
    letters = "abcdefg"[: len(shape)]
    shared = [c for c in letters if f.rng.random() < 0.6] or [letters[0]]
    sizes = dict(zip(letters, shape, strict=True))
    other = [*shared, "z"]
    f.rng.shuffle(other)
    sizes["z"] = f.rng.randint(1, 3)
    out = [c for c in [*letters, "z"] if f.rng.random() < 0.5]
    f.rng.shuffle(out)
    text = f"{letters},{''.join(other)}->{''.join(out)}"
    return f"torch.einsum({text!r}, {name}, {f.fresh([sizes[c] for c in other], dtype)})"


def _conv1d(f: Filling) -> str:
    name, shape, dtype = _float(f, 3)
    if len(shape) != 3:
        name, shape = f"{name}.flatten(2)", [*shape[:2], int(torch.tensor(shape[2:]).prod())]
    groups = f.rng.choice([g for g in (1, 1, 2, 3) if shape[1] % g == 0 and shape[1]] or [1])
    out, kernel = groups * f.rng.randint(1, 2), f.rng.randint(1, 3)
    weight = f.fresh([out, shape[1] // groups, kernel], dtype)
    bias = f.fresh([out], dtype) if f.rng.random() < 0.5 else "None"
    if f.rng.random() < 0.2:
        return f"F.conv_transpose1d({name}, {f.fresh([shape[1], 2, kernel], dtype)}, stride={f._st()})"
    return f"F.conv1d({name}, {weight}, {bias}, stride={f._st()}, padding={f._s()}, dilation={f.rng.choice((1, 1, 2))}, groups={groups})"


def _conv2d(f: Filling) -> str:
    name, shape, dtype = _float(f, 4)
    if len(shape) != 4:
        name, shape = f"{name}.flatten(3)", [*shape[:3], int(torch.tensor(shape[3:]).prod())]
    out = f.rng.randint(1, 3)
    weight = f.fresh([out, shape[1], f.rng.randint(1, 3), f.rng.randint(1, 2)], dtype)
    bias = f.fresh([out], dtype) if f.rng.random() < 0.5 else "None"
    return f"F.conv2d({name}, {weight}, {bias}, stride=({f._st()}, 1), padding=(1, {f._s()}))"


def _batch_norm(f: Filling) -> str:
    name, shape, _ = _float(f, 2)
    channels = [shape[1]]
    weight = f"{f.fresh(channels, 'float64')}, {f.fresh(channels, 'float64')}" if f.rng.random() < 0.5 else "None, None"
    if f.rng.random() < 0.5:
        return f"F.batch_norm({name}, None, None, {weight}, training=True)"
    running = f"{f.fresh(channels, 'float64')}, {f.fresh(channels, 'float64')}.abs() + 1"
    return f"F.batch_norm({name}, {running}, {weight}, training={f._k()})"


def _group_norm(f: Filling) -> str:
    name, shape, _ = _float(f, 2)
    groups = f.rng.choice([g for g in (1, 2, 3) if shape[1] % g == 0] or [1])
    weight = f", {f.fresh([shape[1]], 'float64')}, {f.fresh([shape[1]], 'float64')}" if f.rng.random() < 0.5 else ""
    return f"F.group_norm({name}, {groups}{weight})"


def _layer_norm(f: Filling) -> str:
    name, shape, _ = _float(f, 1)
    norm = shape[-f.rng.randint(1, len(shape)) :]
    weight = f", {f.fresh(norm, 'float64')}" if f.rng.random() < 0.7 else ""
    if f.rng.random() < 0.4:
        return f"F.rms_norm({name}, {norm}{weight})"
    bias = f", {f.fresh(norm, 'float64')}" if weight and f.rng.random() < 0.7 else ""
    return f"F.layer_norm({name}, {norm}{weight}{bias})"


def _attention(f: Filling) -> str:
    rng = f.rng
    batch, heads, length, depth, keys = (rng.randint(1, 3) for _ in range(5))
    how = rng.choice(("", "is_causal=True", "mask", "gqa"))
    kv = heads
    if how == "gqa":
        heads = kv * 2
    query = f.fresh([batch, heads, length, depth], "float64")
    fits = [n for n, t in f.values.items() if t.dim() == 4 and t.dtype is torch.float64 and t.numel()]
    if fits and how != "gqa":
        query = rng.choice(fits)
        batch, heads, length, depth = f.values[query].shape
        kv = heads
    key, value = (f.fresh([batch, kv, keys, depth], "float64") for _ in range(2))
    f.first = f.first or next(iter(f.values))
    more = {
        "mask": f"attn_mask={f.fresh([length, keys], rng.choice(('bool', 'float64')))}",
        "gqa": "enable_gqa=True",
    }.get(how, how)
    return f"F.scaled_dot_product_attention({query}, {key}, {value}{', ' + more if more else ''})"


LAYER_MAKERS: tuple[Callable[[Filling], str], ...] = (
    _matmul, _matmul, _left_matmul, _linear, _bmm, _addmm, _einsum, _einsum, _conv1d, _conv2d, _batch_norm, _group_norm, _layer_norm, _attention,
)  # fmt: skip
