"""`autoshard`: layouts for all of a model at once, chosen by what a step takes, within what a device holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType

import numpy as np
import torch

from ..autoshard.limits import Limited, least_bytes, solve_within
from ..autoshard.modelling import LayoutModel
from ..autoshard.naming import general_name, patterns_of
from ..autoshard.prices import Prices
from ..autoshard.program import RecordedProgram
from ..autoshard.reading import Pin, Reading
from ..autoshard.recording import Batch, record
from ..errors import PlanError
from ..paper.machine import Machine, machine_of
from ..planning import Topology, current_topology
from ..planning.text import bytes_said, bytes_text
from ..runtime.processes import world
from ..runtime.processes.agreement.notes import notes_about
from ..runtime.processes.mesh_processes import owners_of, spans
from ..sharding.layout import Layout
from ..sharding.mapping import named_mapping
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from ..sharding.spec import Spec
from .autoshard_choice import AutoshardChoice, ChosenLayout
from .patterns import Patterns

__all__ = ["autoshard"]

_LOOKED_AT = 8
"""For how many parameters, the largest first, the next best layout is looked for."""
_ROUNDS = 6
"""How often it is tried to leave enough for what ops need for a moment."""


def autoshard(
    model: torch.nn.Module,
    mesh: DeviceMesh,
    example_batch: Batch,
    *,
    memory_limit: float | str | None = None,
    topology: Machine | Topology | str | None = None,
    fixed: Mapping[str, Spec] | None = None,
    loss: Callable[[object], torch.Tensor] | None = None,
    optimizer_states: int = 2,
) -> AutoshardChoice:
    """Chooses layouts for a model's parameters, its batch and its activations: those in which a training step takes least.

    `example_batch` is a tensor, a tuple of arguments or a dict of them; like the model it may be on `meta`, and nothing is
    computed. `memory_limit` is what a device may hold ('60GB', or bytes; default: what the machine has). `fixed` maps patterns of
    parameter names to specs that stay. `loss` takes what the model gives, where that is not the loss. `optimizer_states` says how
    many tensors like itself an optimizer keeps for each parameter.

    >>> import torch, weft
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 4}, devices=[weft.Accelerator(i) for i in range(8)])
    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(torch.nn.Linear(4096, 16384), torch.nn.GELU(), torch.nn.Linear(16384, 4096))
    ...     batch = torch.empty(256, 4096)
    >>> choice = weft.nn.autoshard(model, mesh, batch, topology="h100")
    >>> choice.gap < 0.05, choice.memory < choice.memory_limit
    (True, True)
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"autoshard takes a torch.nn.Module, but got {type(model).__name__}")
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"autoshard needs a DeviceMesh, but got {mesh!r}: use weft.make_mesh({{'dp': 2, 'tp': 4}})")
    if isinstance(optimizer_states, bool) or not isinstance(optimizer_states, int) or optimizer_states < 0:
        raise ValueError(f"optimizer_states is a whole number, 2 for Adam, but got {optimizer_states!r}")
    machine = _machine(topology, mesh)
    limit = machine.memory if memory_limit is None else bytes_said(memory_limit)
    stays = Patterns(mesh, fixed or {})
    stays.check_used([name for name, _ in model.named_parameters(remove_duplicate=False)], "parameter of this module")
    program, inputs = record(model, example_batch, loss)
    chooser = LayoutModel(program, mesh, Prices(program, machine, optimizer_states), _fixed(program, stays))
    found = _solved(chooser, limit)
    return _choice(model, chooser, found, limit, inputs)


def _machine(topology: Machine | Topology | str | None, mesh: DeviceMesh) -> Machine:
    """The machine that a user means; the processes of a mesh on hosts, which are measured, go by what the first one says."""
    machine = machine_of(topology, on_accelerators=not mesh.devices[0].is_host)
    if not machine.is_host:
        return machine
    if topology is None:
        machine = replace(machine, topology=current_topology())
    here = world.current()
    processes = owners_of(mesh) if spans(mesh) else ()
    if here.is_fake or len(processes) < 2 or here.process not in processes:
        return machine
    mine = json.dumps([list(machine.flops.items()), machine.bandwidth, machine.launch])
    said = notes_about("machine", processes).exchanged(mine)
    flops, bandwidth, launch = json.loads(said.get(processes[0], mine))
    return replace(machine, flops=dict(flops), bandwidth=bandwidth, launch=launch)


def _fixed(program: RecordedProgram, stays: Patterns) -> dict[int, Layout]:
    """The layouts that the user has said, by value."""
    found: dict[int, Layout] = {}
    for name, number in program.names.items():
        pattern = stays.match(name)
        if pattern is None:
            continue
        value = program.values[number]
        try:
            layout = stays.mapping(name).layout(len(value.shape))
        except ValueError as error:
            raise ValueError(
                f"fixed: the pattern {pattern!r} does not fit {name!r} of shape {value.shape}: {error}"
            ) from error
        if found.setdefault(number, layout) is not layout:
            raise ValueError(
                f"fixed: {name!r} is tied to another name that is laid out as {found[number]}, not {layout}"
            )
    return found


def _solved(chooser: LayoutModel, limit: int) -> Limited:
    """The best choice that fits together with what its ops need for a moment, which only the choice tells."""
    working, bound = 0, 0.0
    for _ in range(_ROUNDS):
        found = solve_within(chooser.problem, limit - working)
        if found is None:
            raise PlanError(_too_small(chooser, limit, working))
        bound = max(bound, found.bound) if working == 0 else bound
        needed = chooser.working(found.choice)
        if found.bytes + needed <= limit:
            return replace(found, bound=min(bound, found.seconds), bytes=found.bytes + needed)
        working = max(needed, working + 1)
    raise PlanError(_too_small(chooser, limit, working))


def _too_small(chooser: LayoutModel, limit: int, working: int) -> str:
    least = int(least_bytes(chooser.problem)) + working
    needed = -(-least // limit)
    return (
        f"no layout on {chooser.mesh} fits into {bytes_text(limit)} a device: parameters, gradients, optimizer states and "
        f"activations take {bytes_text(least)} at least. Give it {bytes_text(least)}, about {needed} times as many devices, "
        "a smaller batch, or fewer optimizer states"
    )


def _choice(
    model: torch.nn.Module, chooser: LayoutModel, found: Limited, limit: int, inputs: object
) -> AutoshardChoice:
    reading = Reading(chooser, found.choice)
    pins = reading.pins()
    modules = [name for name, _ in model.named_modules() if name]
    layers = set(chooser.program.layers)
    patterns = _specs(patterns_of(reading.parameters(), layers))
    activations = {
        side: _specs(patterns_of({name: _where(pinned, name) for name in modules}, layers, keep_replicated=True))
        for side, pinned in (("inputs", pins.inputs), ("outputs", pins.outputs))
    }
    rows = (
        *_parameter_rows(chooser, found, limit),
        *_activation_rows("input", activations["inputs"], pins.inputs),
        *_activation_rows("result", activations["outputs"], pins.outputs),
    )
    return AutoshardChoice(
        chooser.mesh,
        MappingProxyType(patterns),
        MappingProxyType({side: MappingProxyType(specs) for side, specs in activations.items()}),
        _batch(inputs, reading),
        found.seconds,
        found.bound,
        int(found.bytes),
        limit,
        "memory" if found.binds else None,
        rows,
        model,
    )


def _where(pinned: Mapping[str, Pin], name: str) -> Layout | None:
    return pinned[name].layout if name in pinned else None


def _activation_rows(what: str, specs: Mapping[str, P], pinned: Mapping[str, Pin]) -> Iterator[ChosenLayout]:
    for pattern, spec in specs.items():
        pins = [pin for name, pin in pinned.items() if fnmatchcase(name, pattern)]
        seconds, nbytes = sum(pin.seconds for pin in pins), sum(pin.nbytes for pin in pins)
        yield ChosenLayout(f"{what} of {pattern}", "activation", spec, pins[0].shape, seconds, nbytes)


def _specs(layouts: Mapping[str, Layout]) -> dict[str, P]:
    return {name: _spec(layout) for name, layout in layouts.items()}


def _spec(layout: Layout) -> P:
    return named_mapping(layout).spec


def _batch(inputs: object, reading: Reading) -> object:
    if isinstance(inputs, bool) or inputs is None:
        return None
    if isinstance(inputs, int):
        return _spec(reading.layout(inputs))
    if isinstance(inputs, Mapping):
        return {name: _batch(each, reading) for name, each in inputs.items()}
    assert isinstance(inputs, tuple)
    return tuple(_batch(each, reading) for each in inputs)


def _parameter_rows(chooser: LayoutModel, found: Limited, limit: int) -> Iterator[ChosenLayout]:
    program, problem = chooser.program, chooser.problem
    first: dict[int, str] = {}
    for name, number in program.names.items():
        first.setdefault(chooser.repeats.values[number], name)
    count = Counter(chooser.repeats.values[number] for number in set(program.names.values()))
    held = {number: chooser.problem.memory[chooser.layout_variables[number]] for number in first}
    limit -= chooser.working(found.choice)
    base = solve_within(problem, limit, cuts=0)
    assert base is not None
    by_size = sorted(first, key=lambda number: -float(held[number].max()))
    for number in by_size[:_LOOKED_AT]:
        variable, value = chooser.layout_variables[number], program.values[number]
        at, layouts = found.choice[variable], chooser.layouts[number]
        otherwise, more = None, 0.0
        if len(layouts) > 1:
            others = problem.restricted(variable, np.arange(len(layouts)) != at)
            other = solve_within(others, max(limit, least_bytes(others)), cuts=0)
            assert other is not None
            otherwise, more = _spec(layouts[other.choice[variable]]), max(0.0, other.seconds - base.seconds)
        yield ChosenLayout(
            general_name(first[number], program.layers) if count[number] > 1 else first[number],
            "parameter",
            _spec(layouts[at]),
            value.shape,
            chooser.moved(variable, found.choice),
            int(held[number][at]),
            otherwise,
            more,
        )
