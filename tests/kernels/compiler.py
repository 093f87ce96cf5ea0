"""Compiles the collectives for a Hopper GPU and prints their PTX and SASS as JSON; run with TRITON_INTERPRET=0."""

from __future__ import annotations

import json

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from weft.kernels.collective import collective
from weft.kernels.collectives.shots import shots
from weft.kernels.element import element
from weft.kernels.group import GpuGroup
from weft.kernels.launch import Launch, launches
from weft.kernels.work import KernelWork

MIB = 1 << 20
SOURCES = tuple(MIB * i for i in range(1, 9))
TARGETS = tuple(MIB * i for i in range(11, 19))
PARTS = tuple(MIB // 8 * i for i in range(9))
EVERYONE = tuple(range(8))
ONE = [GpuGroup(EVERYONE, torch.device("cuda", 0), None, 0)]


def compiled(launch: Launch) -> dict[str, str]:
    options = dict(launch.options)
    tuning = {name: options.pop(name) for name in ("num_warps", "num_stages")}
    wide = {"blocks": "i32", "me": "i32"}
    signature = {name: "constexpr" if name in options else wide.get(name, "i64") for name in collective.arg_names}
    source = ASTSource(collective, signature, constexprs=options)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=tuning)
    return {"ptx": made.asm["ptx"], "sass": made.asm["sass"]}


def main() -> None:
    sums = ("sum", element("compiler", torch.float32, "sum"))
    halves = ("mean", element("compiler", torch.bfloat16, "mean"))
    everyone_apart = [GpuGroup((i,), torch.device("cuda", i), None, i) for i in EVERYONE]
    cases = {
        "broadcast": (shots("multicast", ONE, SOURCES[:1], TARGETS, MIB, in_place=False), ONE, None),
        "all_gather": ([KernelWork("multicast", SOURCES, TARGETS, PARTS, EVERYONE)], ONE, None),
        "all_to_all": ([KernelWork("exchange", SOURCES, TARGETS, PARTS, EVERYONE)], ONE, None),
        "all_reduce": (shots("combine", ONE, SOURCES, TARGETS, MIB, in_place=False), ONE, sums),
        "all_reduce_bf16": (shots("combine", ONE, SOURCES, TARGETS, MIB, in_place=False), ONE, halves),
        "reduce_scatter": ([KernelWork("scatter", SOURCES, TARGETS, PARTS, EVERYONE)], ONE, sums),
        "unaligned": ([KernelWork("combine", (MIB + 4,), (2 * MIB,), (0, MIB))], ONE, sums),
        "meeting": (shots("combine", everyone_apart, SOURCES, TARGETS, MIB, in_place=True), everyone_apart, sums),
    }
    found = {}
    for name, (works, groups, reducing) in cases.items():
        made = launches(works, groups, SOURCES[: len(groups)], reducing, programs_at_once=132)
        found[name] = compiled(made[0])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
