"""What a program yields, written down so that runs can be compared: in JSON, raw elements as base64."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import torch

import weft
from tests.multiprocess.programs import PROGRAMS, own_slots
from weft.devices import Device

Record = dict[str, object]


def raw(x: torch.Tensor) -> str:
    flat = x.detach().resolve_conj().cpu().contiguous().view(-1)
    return base64.b64encode(flat.view(torch.uint8).numpy().tobytes()).decode()


def written(value: object) -> Record:
    if isinstance(value, weft.Tensor):
        # In one memory, other contributions may make up the same pending value; they are compared by what they reduce to.
        pending = bool(value._layout.pending)
        parts = {"the value": raw(value.detach().full_tensor())} if pending else _shards(value)
        return {
            "kind": "tensor",
            "layout": str(value._layout),
            "mesh": str(value.mesh),
            "shape": list(value.shape),
            "dtype": str(value.dtype).removeprefix("torch."),
            "parts": parts,
        }
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return {"kind": "plain", "shape": list(value.shape), "dtype": name, "parts": {"the value": raw(value)}}
    return {"kind": "value", "value": value}


def _shards(x: weft.Tensor) -> dict[str, str]:
    return {
        f"the shard of slot {slot}": raw(shard) for slot, shard in zip(own_slots(x.mesh), x.local_shards, strict=True)
    }


def run_program(name: str, devices: Sequence[Device]) -> dict[str, Record]:
    """All that a program yields, by label."""
    found: dict[str, Record] = {}
    for label, value in PROGRAMS[name](devices):
        assert label not in found, label
        found[label] = written(value)
    return found


def numbers_of(record: Record, text: str) -> torch.Tensor:
    dtype = getattr(torch, str(record["dtype"]))
    data = bytearray(base64.b64decode(text))
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def differences(label: str, found: Record, expected: Record, *, rounded: bool) -> list[str]:
    """What is different from what is expected, in words."""
    wrong = [
        f"{label}: {key} is {found.get(key)!r}, not {expected.get(key)!r}"
        for key in ("kind", "layout", "mesh", "shape", "dtype")
        if found.get(key) != expected.get(key)
    ]
    if wrong:
        return wrong
    if found["kind"] == "value":
        one, other = found["value"], expected["value"]
        close = rounded and isinstance(one, float) and abs(one - float(str(other))) <= 1e-4 * (1 + abs(one))
        same = one == (list(other) if isinstance(other, tuple) else other)
        return [] if close or same else [f"{label}: is {one!r}, not {other!r}"]
    ours, theirs = found["parts"], expected["parts"]
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    for what, one in ours.items():
        other = theirs[what]
        if one == other:
            continue
        a, b = numbers_of(found, str(one)), numbers_of(expected, str(other))
        if a.shape != b.shape:
            wrong.append(f"{label}: {what} has {a.numel()} elements, not {b.numel()}")
        elif not rounded or not torch.allclose(
            a.double(), b.double(), rtol=2e-2 if a.itemsize < 4 else 1e-4, atol=5e-2 if a.itemsize < 4 else 1e-4
        ):
            wrong.append(f"{label}: {what} is {a.tolist()[:8]}, not {b.tolist()[:8]}")
    return wrong
