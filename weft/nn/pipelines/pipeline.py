"""`pipeline`: a model in stages on meshes of their own, trained microbatch by microbatch as a schedule says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from typing import final

import torch

from ...engine.held_gradient import keep_gradient
from ...engine.moves.movement import layout_of
from ...engine.sharded import ShardedTensor
from ...errors import MismatchError
from ...runtime import run
from ...runtime.processes import world
from ...runtime.processes.agreement.own_faults import of_one_process
from ...runtime.processes.agreement.values import gathered
from ...schedules import Schedule, Work
from ...schedules import schedule as named_schedule
from ...sharding.layout import Layout
from ...sharding.mapping import NamedMapping
from ...sharding.mesh import DeviceMesh
from ...sharding.named import P
from ...tensor.movements import redistribute
from ...tensor.tensor import Tensor, public
from ..shard_module import shard_module
from .activation import absent, settled
from .known import KnownActivations
from .microbatches import check_rows, cut, joined, parts_of
from .once import reduced_once
from .ownership import is_here
from .running import BACKWARD, FORWARD, Microbatch, StepRun
from .stage import Stage
from .tied import untie

__all__ = ["Pipeline", "pipeline"]

_numbers = count()
_REDUCTIONS = ("mean", "sum")


def pipeline(
    stages: Sequence[torch.nn.Module],
    meshes: Sequence[DeviceMesh],
    schedule: str | Schedule = "1f1b",
    microbatches: int | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    reduction: str = "mean",
    batch: P | str = P(),  # noqa: B008 - a frozen value
    most_live: int | None = None,
) -> Pipeline:
    """A model cut into stages, each on a mesh of its own: `step` trains it as the schedule says.

    Stages are modules; what one gives, a tensor or a tuple of them, the next takes. Shard them by `shard_module` on their
    meshes first; a plain one is replicated on its mesh. A parameter that several stages share stays one parameter.

    >>> import torch, weft
    >>> devices = weft.local_devices()
    >>> meshes = [weft.DeviceMesh(devices[:4], (4,), ("tp",)), weft.DeviceMesh(devices[4:8], (4,), ("tp",))]
    >>> stages = [weft.nn.shard_module(torch.nn.Linear(8, 8), mesh, {"*": weft.P("tp")}) for mesh in meshes]
    >>> pipe = weft.nn.pipeline(stages, meshes, "1f1b", microbatches=4, loss=torch.nn.functional.mse_loss)
    >>> optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    >>> first, second = (pipe.step(torch.ones(8, 8), torch.zeros(8, 8)) for _ in range(2) if optimizer.step() is None)
    >>> pipe(torch.ones(8, 8)).mesh == meshes[1], pipe.schedule.live
    (True, (2, 1))

    Args:
        stages: the parts of the model, in order.
        meshes: one for each place of the schedule.
        schedule: a name ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"), or a table of one's own.
        microbatches: into how many equal parts a batch is cut; by default the schedule's, or two for each place.
        loss: called with the last stage's output and the targets of a microbatch; gives one number.
        reduction: "mean" or "sum": what becomes of the losses of the microbatches.
        batch: how plain inputs and targets lie on the first and the last mesh.
        most_live: how many microbatches a place may keep, counted for each of its stages; more are refused at once.
    """
    table = _table(schedule, len(stages), len(meshes), microbatches, most_live)
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction is 'mean' or 'sum', but got {reduction!r}")
    for number, stage in enumerate(stages):
        if not isinstance(stage, torch.nn.Module):
            raise TypeError(f"the stages of a pipeline are modules, but stage {number} is a {type(stage).__name__}")
    for number, mesh in enumerate(meshes):
        if not isinstance(mesh, DeviceMesh):
            raise TypeError(f"the meshes of a pipeline are DeviceMeshes, but number {number} is {mesh!r}")
    return Pipeline(stages, meshes, table, loss, reduction, P(batch) if isinstance(batch, str) else batch)


@final
class Pipeline(torch.nn.Module):
    """A model in stages, made by `pipeline`. Its parameters are those of its stages, `stages.0.weight` and so on.

    >>> import torch, weft
    >>> meshes = [weft.DeviceMesh([device], (1,), ("tp",)) for device in weft.local_devices()[:2]]
    >>> pipe = weft.nn.pipeline([torch.nn.Linear(2, 2), torch.nn.Tanh()], meshes, "gpipe", microbatches=2)
    >>> [name for name, _ in pipe.named_parameters()]
    ['stages.0.weight', 'stages.0.bias']
    """

    def __init__(
        self,
        stages: Sequence[torch.nn.Module],
        meshes: Sequence[DeviceMesh],
        schedule: Schedule,
        loss: Callable[..., torch.Tensor] | None,
        reduction: str,
        batch: P,
    ) -> None:
        super().__init__()
        self.schedule = schedule
        """The table that `step` goes by."""
        self._loss, self._reduction, self._batch = loss, reduction, batch
        where = [meshes[place] for place in schedule.stage_places]
        self._tied = untie(stages, where)
        for number, (stage, mesh) in enumerate(zip(stages, where, strict=True)):
            _place(number, stage, mesh)
        self.stages = torch.nn.ModuleList(stages)
        self._parts = [Stage(number, *each) for number, each in enumerate(zip(stages, where, strict=True))]
        self._order = tuple(span.entry for span in schedule.timeline().spans)
        self._number = next(_numbers)
        self._known: dict[tuple[object, ...], KnownActivations] = {}
        self._has_failed = False

    def step(
        self,
        inputs: torch.Tensor | Sequence[torch.Tensor],
        targets: torch.Tensor | Sequence[torch.Tensor] | None = None,
    ) -> Tensor:
        """The loss of a batch; gradients are added to what the parameters have, as by `backward()`.

        >>> import torch, weft
        >>> meshes = [weft.DeviceMesh([device], (1,), ("tp",)) for device in weft.local_devices()[:2]]
        >>> stages = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)]
        >>> pipe = weft.nn.pipeline(stages, meshes, "zb-h1", microbatches=2, loss=torch.nn.functional.mse_loss)
        >>> loss = pipe.step(torch.ones(4, 2), torch.ones(4, 1))
        >>> loss.shape, pipe.stages[0].weight.grad.shape
        (torch.Size([]), torch.Size([2, 2]))
        """
        if self._loss is None:
            raise ValueError(
                "this pipeline has no loss to train by: give one, pipeline(..., loss=torch.nn.functional.mse_loss)"
            )
        scale = 1 / self.schedule.microbatches if self._reduction == "mean" else 1.0
        mine = [x for part in self._parts if is_here(part.mesh) for x in part.module.parameters()]
        with torch.enable_grad(), reduced_once(mine):
            begun, known = self._begun(_several(inputs), _several(targets), self._loss, scale)
            with self._failing_together():
                begun.do(self._order)
        with self._failing_together():
            for tied in self._tied:
                tied.collect()
            self._complete(known)
            last = self._parts[-1]
            if not is_here(last.mesh):
                (each,) = known.awaited(last).tensors
                return absent(Layout.replicated(last.mesh, 0), (), each.dtype)
            losses = torch.stack([begun.results[each][0] for each in range(self.schedule.microbatches)])
            return settled(losses.sum() * scale, last.mesh, "pipeline")

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What the last stage gives for a batch, on its mesh; gradients are not recorded: `step` trains."""
        order = tuple(entry for entry in self._order if entry.work is Work.FORWARD)
        with torch.no_grad():
            begun, known = self._begun(inputs, (), None, 1.0)
            with self._failing_together():
                begun.do(order)
                last = self._parts[-1]
                passed = known.awaited(last)
            results = [
                begun.results.get(each) or tuple(x.absent(last.mesh) for x in passed.tensors)
                for each in range(self.schedule.microbatches)
            ]
            parts = parts_of(self._laid(inputs, self._parts[0].mesh))
            whole = tuple(joined(each, parts) for each in zip(*results, strict=True))
        return whole if passed.is_tuple else whole[0]

    def _begun(
        self,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        loss: Callable[..., torch.Tensor] | None,
        scale: float,
    ) -> tuple[StepRun, KnownActivations]:
        """One batch that is to go through the stages."""
        if self._has_failed:
            with of_one_process():  # others may not know yet
                raise RuntimeError(
                    "a step of this pipeline has failed, and what it had sent is still on its way: make the pipeline anew"
                )
        microbatches = self.schedule.microbatches
        check_rows((*inputs, *targets), microbatches, 1)
        laid = self._laid(inputs, self._parts[0].mesh), self._laid(targets, self._parts[-1].mesh)
        parts = parts_of([*laid[0], *laid[1]])
        check_rows((*inputs, *targets), microbatches, parts)
        known = self._known_for(*laid, training=loss is not None)
        for tied in self._tied:
            tied.bring(with_gradient=loss is not None)
        given, wanted = (_cut(each, microbatches, parts) for each in laid)
        seed = int(torch.randint(2**48, ()))
        return StepRun(
            self._parts, known, microbatches, seed, inputs=given, targets=wanted, loss=loss, scale=scale
        ), known

    @contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Surrounds what each process does for its own stages: what is raised there, the others raise, too."""
        try:
            with of_one_process():
                yield
        except BaseException:
            self._has_failed = world.current().count > 1
            raise

    def _laid(self, tensors: Sequence[torch.Tensor], mesh: DeviceMesh) -> list[Tensor]:
        """Inputs or targets on the mesh of the stage that takes them; a plain one as `batch` says."""
        found = []
        for x in tensors:
            if isinstance(x, ShardedTensor):
                mapping = public(x.detach()).mapping.to_mesh(mesh)
            else:
                mapping = NamedMapping(mesh, self._batch)
            same = layout_of(x) is mapping.layout(x.dim())
            found.append(public(x.detach() if same else redistribute(x.detach(), mapping, op="pipeline")))
        return found

    def _known_for(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], *, training: bool) -> KnownActivations:
        """What is known for such inputs. The first time, processes agree that they do the same; they have met."""
        signature = (training, *((tuple(x.shape), x.dtype, x._layout) for x in (*inputs, *targets)))
        if signature not in self._known:
            self._agree([training, *([list(x.shape), str(x.dtype), str(x._layout)] for x in (*inputs, *targets))])
            self._known[signature] = KnownActivations(f"pipeline {self._number}/{len(self._known)}")
        meshes = [part.mesh for part in self._parts]
        run.connect(pairwise(meshes), (FORWARD, BACKWARD))  # which a refusal since has parted, too
        return self._known[signature]

    def _agree(self, inputs: object) -> None:
        if world.current().count == 1:
            return
        mine = {"pipeline": self._number, "schedule": repr(self.schedule), "inputs": inputs}
        for process, theirs in enumerate(gathered(mine, "pipeline")):
            if theirs != mine:
                differs = next(name for name in mine if theirs.get(name) != mine[name])
                raise MismatchError(
                    f"process {world.current().process} and process {process} run different pipelines: here {differs} is "
                    f"{mine[differs]}, there {theirs.get(differs)}. Every process makes the same pipelines in the same order, "
                    "and gives them batches of the same kind"
                )

    def _complete(self, known: KnownActivations) -> None:
        """Gives parameters of other processes' stages the gradients that they have there."""
        for part in self._parts:
            if is_here(part.mesh):
                known.learn_gradients(part)
        for part in self._parts:
            if not is_here(part.mesh):
                parameters = dict(part.module.named_parameters())
                for name in known.with_gradient(part):
                    x = public(parameters[name])
                    if x.grad is None:
                        keep_gradient(x, absent(x._layout, tuple(x.shape), x.dtype))

    def extra_repr(self) -> str:
        """What torch shows of it beside its stages."""
        return str(self.schedule).partition("\n")[0]


def _table(
    schedule: str | Schedule, stages: int, places: int, microbatches: int | None, most_live: int | None
) -> Schedule:
    """The schedule that is meant, checked against the stages and meshes that there are."""
    if isinstance(schedule, str):
        table = named_schedule(schedule, stages, places, 2 * places if microbatches is None else microbatches)
    elif isinstance(schedule, Schedule):
        table = schedule
        if (table.stages, table.places) != (stages, places):
            raise ValueError(
                f"the schedule {table.name!r} is for {table.stages} stages in {table.places} places, but there are {stages} stages "
                f"and {places} meshes"
            )
        if microbatches not in (None, table.microbatches):
            raise ValueError(
                f"the schedule {table.name!r} is for {table.microbatches} microbatches, but microbatches={microbatches}: "
                "leave it out"
            )
    else:
        raise TypeError(f"schedule is a name or a weft.schedules.Schedule, but got {schedule!r}")
    return table if most_live is None else Schedule(table.rows, table.name, most_live)


def _place(number: int, stage: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Puts what is plain of a stage on its mesh; raises for what lies on another."""
    tensors = dict((*stage.named_parameters(), *stage.named_buffers()))
    for name, x in tensors.items():
        if isinstance(x, ShardedTensor) and x.mesh != mesh:
            raise ValueError(
                f"{name!r} of stage {number} lies on {x.mesh} ({', '.join(map(str, x.mesh.devices))}), but the schedule has "
                f"its stage on {mesh} ({', '.join(map(str, mesh.devices))}): shard the stage on that mesh"
            )
    laid = {name: public(x).mapping for name, x in tensors.items() if isinstance(x, ShardedTensor)}
    if len(laid) < len(tensors):
        shard_module(stage, mesh, laid)


def _several(tensors: torch.Tensor | Sequence[torch.Tensor] | None) -> tuple[torch.Tensor, ...]:
    if tensors is None:
        return ()
    return (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)


def _cut(tensors: Sequence[Tensor], microbatches: int, parts: int) -> list[Microbatch]:
    """The tensors of each microbatch."""
    if not tensors:
        return []
    return list(zip(*(cut(x, microbatches, parts) for x in tensors), strict=True))
