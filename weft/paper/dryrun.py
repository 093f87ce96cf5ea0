"""`dryrun`: a function run on paper, on devices that nobody need have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..devices import Device
from ..engine.sharded import ShardedTensor
from ..errors import PaperError
from ..planning import Topology
from ..runtime.machine import ownership, use_paper
from ..runtime.on_paper import watching
from ..runtime.processes import world
from ..sharding.mesh import DeviceMesh
from ..watch.comm_log import comm_log
from .attention import FusedAttention
from .findings import StepInput, findings
from .machine import Machine, machine_of
from .memory import memory_use
from .norms import FusedNorms
from .optimizers import watched_optimizers
from .recorder import MovedBytes, Recorder
from .showing.report import StepReport
from .taking import Taken, closed_over, taken
from .timing import timed

__all__ = ["dryrun"]

_RECOMPUTING = "_recomputation_hook"
"""What torch is in while it computes anew what a checkpoint did not keep."""


def dryrun(
    fn: Callable[..., object], *args: object, topology: Machine | Topology | str | None = None, **kwargs: object
) -> StepReport:
    """What calling `fn` would hold, move and take, without doing it: it runs on tensors that have no values.

    Modules, optimizers, tensors and what else it is given are copied to paper, laid out as they are; they stay as they
    were. `topology` says which machine the devices are: the name of one ('h100', 'h200', 'a100', 'mi300x', 'tpu-v5p',
    'cpu'), a `weft.Machine`, or a `weft.Topology`.

    >>> import torch, weft
    >>> from weft import P
    >>> mesh = weft.make_mesh({"dp": 1280, "tp": 8}, devices=[weft.Accelerator(i) for i in range(10240)])
    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    ...     batch = weft.shard(torch.empty(10240, 512), mesh, P("dp"))
    >>> model = weft.nn.shard_module(model, mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> def step(model, optimizer, batch):
    ...     model(batch).square().mean().backward()
    ...     optimizer.step()
    >>> report = weft.dryrun(step, model, optimizer, batch, topology="h100")
    >>> report.memory.at_peak["parameters"], report.memory.most["gradients"], sorted(report.bytes_by("axis"))
    (1051648, 1051648, ['dp', 'tp', 'tp·dp'])
    """
    if not callable(fn):
        raise TypeError(f"dryrun takes a function and what to call it with, but got {fn!r} to call")
    if world.current().count > 1:
        raise PaperError(
            f"a dry run needs one process, but this program has {world.current().count}: start it without a launcher"
        )
    if ownership.on_paper:
        raise PaperError("a dry run is under way already: call what it runs directly")
    with on_paper(), torch.no_grad():
        given = Taken()
        here = closed_over(fn, given)
        inside = taken((args, kwargs), given)
    with on_paper():
        return recorded(lambda: here(*inside[0], **inside[1]), topology, given)


@contextmanager
def on_paper(devices: tuple[Device, ...] = ()) -> Iterator[None]:
    """Inside, all devices are only thought of."""
    use_paper(True, devices)
    try:
        yield
    finally:
        use_paper(False)


def recorded(
    call: Callable[[], object], topology: Machine | Topology | str | None, given: Taken | None = None
) -> StepReport:
    """What a call does on paper."""
    given = given or Taken()
    machine = machine_of(topology, on_accelerators=_are_accelerators(given.meshes))
    with comm_log() as log:
        recorder = Recorder(log)
        sharded = _marked(given, recorder)
        kernels = FusedAttention(), *([] if machine.is_host else [FusedNorms(recorder.at)])
        with (
            watched_optimizers(recorder, on_accelerators=not machine.is_host),
            watching(recorder),
            _taking(kernels),
            recorder,
        ):
            _called(call)
        recorder.finish()
    for x in given.tensors:
        if x.is_leaf and x.grad is not None:
            recorder.mark(x.grad, "gradients")
    meshes = list(given.meshes)
    for event in recorder.events:
        if isinstance(event, MovedBytes) and event.record.target.mesh not in meshes:
            meshes.append(event.record.target.mesh)
    return _report(recorder, machine, meshes, sharded)


@contextmanager
def _taking(kernels: Sequence[TorchFunctionMode]) -> Iterator[None]:
    """Inside, the kernels of a machine are taken, also by what is computed anew on the way back, for which torch puts them aside."""
    recomputing = getattr(checkpoint, _RECOMPUTING)

    def anew(*args: object) -> ExitStack:
        inside = ExitStack()
        for each in (recomputing(*args), *kernels):
            inside.enter_context(each)
        return inside

    setattr(checkpoint, _RECOMPUTING, anew)
    try:
        with ExitStack() as inside:
            for each in kernels:
                inside.enter_context(each)
            yield
    finally:
        setattr(checkpoint, _RECOMPUTING, recomputing)


def _called(call: Callable[[], object]) -> object:
    try:
        return call()
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, PaperError) or "meta tensor" not in str(error):
            raise
        raise PaperError(
            f"the step reads values where tensors have none ({error}): say what to go on with, weft.assume(x, value), "
            "before they are read"
        ) from error


def _report(recorder: Recorder, machine: Machine, meshes: list[DeviceMesh], given: list[StepInput]) -> StepReport:
    operations, movements, seconds = timed(recorder.events, machine)
    memory = memory_use(recorder.ledger.allocations)
    found = findings(movements, memory, machine, seconds, given)
    return StepReport(machine, tuple(meshes), operations, movements, memory, seconds, found)


def _are_accelerators(meshes: list[DeviceMesh]) -> bool:
    return any(not device.is_host for mesh in meshes for device in mesh.devices[:1])


def _marked(given: Taken, recorder: Recorder) -> list[StepInput]:
    """Says what each tensor that the step is given is for."""
    found = []
    parameters = [x for x in given.tensors if isinstance(x, torch.nn.Parameter) or (x.is_leaf and x.requires_grad)]
    known = {id(x) for x in parameters}
    grads = {id(x.grad) for x in parameters if x.grad is not None}
    for x in given.tensors:
        if id(x) in known:
            recorder.mark(x, "parameters")
        elif id(x) in grads:
            recorder.mark(x, "gradients")
        else:
            recorder.mark(x, "inputs")
        if isinstance(x, ShardedTensor) and id(x) not in grads:
            found.append(StepInput(x._layout, tuple(x.shape), id(x) in known))
    return found
