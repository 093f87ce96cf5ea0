"""`batches`: the global batches of a loader, of which each process loads the rows that its devices hold."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count, islice
from typing import Protocol, cast, final, runtime_checkable

import torch
from torch.utils.data import DataLoader

from ..runtime.processes.agreement.own_faults import of_one_process
from ..runtime.processes.agreement.values import gathered
from ..sharding.geometry import Interval
from ..sharding.mesh import DeviceMesh
from ..sharding.named import P
from .agreeing import compares_values
from .drawing import own_numbers, seed_of, taken
from .layouts import Layouts, Spec
from .order import Order, Rows, has_order

__all__ = ["Batches", "batches"]


@runtime_checkable
class _StatefulLoader(Protocol):
    """A loader that can go on where it was."""

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state: dict[str, object]) -> object: ...


def batches(
    loader: Iterable[object],
    mesh: DeviceMesh,
    spec: Spec = P(),  # noqa: B008 - a frozen value
    *,
    prefetch: int = 2,
    local: bool = False,
    seed: int | None = None,
) -> Batches:
    """The batches of a loader as sharded tensors; each process loads only the rows that its devices hold.

    A `DataLoader` says the global batch: its sampler, dataset, `collate_fn` and workers are used, by each process for its
    own rows. `spec` lays out every tensor of a batch, or is a dict, tuple or list like the batch, with a spec or a mapping
    (on another mesh, say) for each.

    >>> import torch, weft
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> mesh = weft.make_mesh({"dp": 2, "tp": 4})
    >>> loader = DataLoader(TensorDataset(torch.arange(8), torch.ones(8, 3)), batch_size=4, shuffle=True)
    >>> data = weft.data.batches(loader, mesh, weft.P("dp"), seed=0)
    >>> for x, y in data:
    ...     print(x.shape, y.mapping.spec)
    torch.Size([4]) P('dp')
    torch.Size([4]) P('dp')

    Args:
        loader: a `DataLoader`, or any iterable of batches, which are tensors or dicts, tuples, lists and dataclasses of them.
            Of a list with something else for each sample (texts, say) a process has what belongs to its own rows.
        mesh: where the tensors go.
        spec: how they lie there, the batch being their first dim.
        prefetch: how many batches are loaded before they are asked for.
        local: the loader already gives each process its own part of each batch, and not the whole.
        seed: of the order of samples, by epoch; drawn once, the same in all processes, by default.
    """
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"batches takes a mesh after the loader, but got {mesh!r}: use weft.make_mesh({{'dp': 2}})")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"prefetch is a whole number from 0 on, but got {prefetch!r}")
    if not isinstance(loader, Iterable):
        raise TypeError(f"batches takes a DataLoader or another iterable of batches, but got {loader!r}")
    if seed is None:
        seed = gathered(int(torch.randint(2**31, ())), "batches")[0]
    return Batches(loader, Layouts(mesh, spec), prefetch, local, seed)


@final
class Batches:
    """What `batches` gives: iterating over it is one epoch, and its state goes into a checkpoint.

    >>> import torch, weft
    >>> data = weft.data.batches([torch.ones(4), torch.zeros(4)], weft.make_mesh({"dp": 2}), weft.P("dp"), seed=0)
    >>> first = next(iter(data))
    >>> data.state_dict()
    {'epoch': 0, 'batch': 1, 'seed': 0, 'loader': None}
    """

    def __init__(self, loader: Iterable[object], layouts: Layouts, prefetch: int, local: bool, seed: int) -> None:
        self._loader, self._layouts, self._prefetch, self._local = loader, layouts, prefetch, local
        self._order = Order(loader, seed) if not local and has_order(loader) else None
        self._seed = seed
        self.epoch = 0
        """How many epochs are done."""
        self.batch = 0
        """How many batches of this epoch were given."""
        self._loaders_state: dict[str, object] | None = None
        self._given = 0
        """How many batches were given, of any epoch."""

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[object]:
        """The batches of this epoch that were not given yet."""
        # What one process cannot load, all raise. Nothing is loaded any more when this is closed.
        with of_one_process(), closing(self._parts(self.batch)) as parts:
            for part, size in parts:
                whole = self._layouts.whole(part, size, is_local=self._local, compares=compares_values(self._given))
                self.batch, self._given = self.batch + 1, self._given + 1
                if isinstance(self._loader, _StatefulLoader) and not self._prefetch:
                    self._loaders_state = self._loader.state_dict()
                yield whole
        self.epoch, self.batch = self.epoch + 1, 0
        self._loaders_state = None

    def _parts(self, start: int) -> Generator[tuple[object, tuple[int, Interval] | None], None, None]:
        """What this process loads of each batch, and of how many rows which it is."""
        if self._order is None:
            loader = self._loader
            if isinstance(loader, _StatefulLoader) and self._loaders_state is not None:
                loader.load_state_dict(self._loaders_state)
                start = 0
            place = self._place() if self._local else 0
            begun = self._begun(loader, place, is_new=self.batch == 0)
            seeds = (seed_of(self._seed, self.epoch, place, at) for at in count(self.batch - start))
            with closing(taken(begun, seeds, self._prefetch)) as loaded:
                for part in islice(loaded, start, None):
                    yield part, None
            return
        listed = self._order.batches(self.epoch)[start:]
        rows = [self._layouts.rows(len(batch)) for batch in listed]
        wanted = [batch[low:high] for batch, (low, high) in zip(listed, rows, strict=True)]
        # A process without a row of a batch loads nothing: it is told by the others what the batch is like.
        begun = self._begun(self._own_loader([batch for batch in wanted if batch]), self._place(), is_new=start == 0)
        parts = zip(rows, wanted, strict=True)
        seeds = (seed_of(self._seed, self.epoch, low, at) for at, ((low, _), own) in enumerate(parts, start) if own)
        with closing(taken(begun, seeds, self._prefetch)) as loaded:
            for batch, held, own in zip(listed, rows, wanted, strict=True):
                yield (next(loaded) if own else None), (len(batch), held)

    def _place(self) -> int:
        """Where the rows of this process are: the same number where processes load the same rows."""
        return self._layouts.rows(1 << 20)[0]

    def _begun(self, loader: Iterable[object], place: int, *, is_new: bool) -> Iterator[object]:
        """The loader, begun. It may draw a number then, for its workers: one that this part of this epoch always has.

        Torch's loaders take it from the program's numbers. One is taken here too, but not when an epoch is gone on with, which
        has taken it already: what the program draws afterwards is what it would have been.
        """
        if is_new and isinstance(loader, DataLoader) and loader.generator is None:
            torch.empty((), dtype=torch.int64).random_()
        with own_numbers(seed_of(self._seed, self.epoch, place)):
            return iter(loader)

    def _own_loader(self, wanted: Sequence[list[int]]) -> DataLoader[object]:
        """The user's loader, for the rows of this process."""
        given = self._loader
        assert isinstance(given, DataLoader)
        return DataLoader(
            given.dataset,
            batch_sampler=Rows(wanted),
            num_workers=given.num_workers,
            collate_fn=given.collate_fn,
            pin_memory=given.pin_memory,
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            generator=given.generator,
            prefetch_factor=given.prefetch_factor,
        )

    def state_dict(self) -> dict[str, object]:
        """Where it is: after which epochs and batches, by which seed. A batch that was loaded ahead does not count."""
        return {"epoch": self.epoch, "batch": self.batch, "seed": self._seed, "loader": self._loaders_state}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes on where another has been: the next epoch that is begun leaves out what was given."""
        missing = {"epoch", "batch", "seed"} - state.keys()
        if missing:
            raise ValueError(
                f"the state of batches has epoch, batch and seed, but this one lacks {', '.join(sorted(missing))}"
            )
        self.epoch, self.batch = int(cast(int, state["epoch"])), int(cast(int, state["batch"]))
        self._seed = int(cast(int, state["seed"]))
        self._loaders_state = cast("dict[str, object] | None", state.get("loader"))
        if self._order is not None:
            self._order.seed = self._seed
