"""Which calls of a training step are looked at every time, instead of being repeated from what is known of them.

    python benchmarks/gpu/looked_at.py [--tiny]

The models of `steps.py` on 8 logical devices, in one memory and with memories apart, after some steps. Each call that is
not repeated costs the host some hundred microseconds; what it is called with is printed once for each op.
"""

from __future__ import annotations

import sys
from collections import Counter

import steps
import torch

from weft.engine import dispatch
from weft.engine.sharded import ShardedTensor
from weft.rules.call import BoundCall
from weft.runtime import machine

WARM = 4


def looked_at(size: steps.Size) -> tuple[Counter[str], dict[str, str]]:
    """How often each op is looked at in one step, and a call of it."""
    x = torch.randn(size.batch, size.length, size.width, device=steps.WHERE)
    model, batch = steps.sharded(steps.plain_model(size), x, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        steps.loss_fn(model, batch).backward()
        optimizer.step()

    for _ in range(WARM):
        step()
    counts: Counter[str] = Counter()
    calls: dict[str, str] = {}
    at_length = dispatch._at_length

    def noted(call: BoundCall, *, is_kept: bool) -> object:
        name = str(call.func)
        counts[name] += 1
        forms = [str(t._form) if isinstance(t, ShardedTensor) else "plain" for t in call.tensors]
        special = [isinstance(t, ShardedTensor) and t._form.is_special for t in call.tensors]
        known = is_kept and call.key in dispatch._repeats
        calls.setdefault(name, f"{forms}, special {special}, {'known, and not repeated' if known else 'not known'}")
        return at_length(call, is_kept=is_kept)

    dispatch._at_length = noted
    try:
        step()
    finally:
        dispatch._at_length = at_length
    return counts, calls


def main() -> None:
    """Prints what is looked at, for each model and memory."""
    for size in steps.TINY if "--tiny" in sys.argv else steps.SIZES:
        for memory in ("one", "apart"):
            machine.use_separate_memory(memory == "apart")
            counts, calls = looked_at(size)
            print(f"{size}, {memory} memory: {dict(counts) or 'nothing'}")
            for name, call in calls.items():
                print(f"  {name}: {call}")
    machine.use_separate_memory(False)


if __name__ == "__main__":
    main()
