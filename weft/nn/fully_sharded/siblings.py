"""`Siblings`: the blocks of one module, in the order in which they run, and what they have under way on the way back."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, final

import torch

from .offloading import settle
from .reducing import Scattered

if TYPE_CHECKING:
    from .block import Block, Call

__all__ = ["Siblings"]


@final
class Siblings:
    """The blocks of one module, what they have under way, and whether gradients are reduced."""

    def __init__(self, prefetch: int) -> None:
        self._blocks: list[Block] = []
        """In the order in which they run; what is in none of them comes first, and last on the way back."""
        self._has_root = False
        self._staying: set[Block] = set()
        self.is_syncing = True
        self.is_holding = False
        """Whether what is whole stays so until `let_go`."""
        self._prefetch = prefetch
        self._passes: weakref.WeakValueDictionary[int, Pass] = weakref.WeakValueDictionary()
        """Backward passes that are under way, by torch's number."""

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_passes"}  # those go on here

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _passes=weakref.WeakValueDictionary())

    def add_block(self, block: Block, *, is_root: bool) -> None:
        """Adds a block; the root is what is in no other block, and is whole while all others run."""
        self._blocks.insert(0 if is_root else len(self._blocks), block)
        self._has_root = self._has_root or is_root

    def let_stay(self, nbytes: float) -> None:
        """Lets blocks stay whole from forward to backward: the root, the last one, and those before it that fit, too."""
        first = 1 if self._has_root else 0
        self._staying.update(self._blocks[:first], self._blocks[-1:])
        for block in reversed(self._blocks[first:]):
            nbytes -= block.whole_bytes
            if nbytes < 0:
                return
            self._staying.add(block)

    def stays_whole(self, block: Block) -> bool:
        """Whether a block stays whole from forward to backward."""
        return block in self._staying

    def ahead(self, block: Block) -> None:
        """Begins to gather the blocks that come next."""
        at = self._blocks.index(block) + 1
        for each in self._blocks[at : at + self._prefetch]:
            each.prefetch()

    def behind(self, block: Block) -> None:
        """Begins to gather the blocks whose turn is next on the way back."""
        first = 1 if self._has_root else 0
        at = self._blocks.index(block)
        at = len(self._blocks) if at < first else at
        for each in reversed(self._blocks[max(first, at - self._prefetch) : at]):
            each.refetch()

    def drop(self) -> None:
        """Lets go of what was gathered ahead and not used."""
        for block in self._blocks:
            block.drop()

    def end(self) -> None:
        """After the module has run: nothing is on its way, and parameters that rest elsewhere may be written to."""
        self.drop()
        settle(mesh for block in self._blocks for mesh in block.fetches_to())

    def let_go(self) -> None:
        """Ends the time in which blocks stay whole."""
        self.is_holding = False
        for block in self._blocks:
            block.let_go()

    def reduce_kept(self) -> list[tuple[Block, Scattered]]:
        """Begins to reduce the gradients that were kept, those of the blocks that ran last first."""
        found = [(block, block.reduce_kept()) for block in reversed(self._blocks)]
        return [(block, scattered) for block, scattered in found if scattered is not None]

    def forget_kept(self) -> None:
        """Forgets the gradients that were kept."""
        for block in self._blocks:
            block.forget_kept()

    def end_passes(self) -> None:
        """Outside of backward passes: what one that has failed left in its places goes, though torch may still keep the pass.

        It is kept by a thread for a device until that comes to let go of it, which may be after the program has seen the error.
        """
        for each in self._passes.values():
            each.restore()

    def current_pass(self) -> Pass:
        """The backward pass that is under way. It lasts as long as torch keeps it: to its end, or until it fails."""
        task = torch._C._current_graph_task_id()
        found = self._passes.get(task)
        if found is None:
            found = self._passes[task] = Pass(self)
            torch.autograd.Variable._execution_engine.queue_callback(found)
        return found


@final
class Pass:
    """What blocks have under way in a backward pass."""

    def __init__(self, siblings: Siblings) -> None:
        self.scattered: deque[tuple[Block, Scattered]] = deque()
        """Gradients that will be there at its end."""
        self.standing: set[Block] = set()
        """Blocks whose whole parameters stand in their places."""
        self.passed: dict[Call, None] = {}
        """Runs through which gradients go that end with it, in the order in which they are met: the same in all processes."""
        self._siblings = siblings

    def __call__(self) -> None:
        """At its end."""
        self.restore()
        while self.passed:
            self.passed.popitem()[0].end()
        while self.scattered:  # what has arrived is let go of when it was taken apart
            block, scattered = self.scattered.popleft()
            block.take(scattered.wait())
        self._siblings.drop()

    def __del__(self) -> None:
        self.restore()  # also where it has failed

    def restore(self) -> None:
        """Lets the split parameters stand in their places again."""
        while self.standing:
            self.standing.pop().restore()
