"""Making programs: leaves in random layouts, then statements that plain torch mostly accepts."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from math import prod

import torch

from .blanks import Filling, NothingFitsError
from .program import Program, assigned, mentioned
from .running import everything, is_beyond
from .shapes import LAYER_MAKERS
from .vocabulary import TABLES, statements
from .words import Namespace, plain_words

MESHES = ({"x": 2}, {"x": 3}, {"a": 2, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 2})
_SIZES = (0, 1, 2, 2, 3, 3, 4, 5, 6, 8)
"""Some that all axes of every mesh split, some that they do not."""
_MOST = 300
"""How many elements a tensor may have."""
_DTYPES = ("float64",) * 9 + ("complex128", "int64", "bool", "bfloat16") * 2 + ("int8", "uint8", "int32", "float32")
_STATEMENTS = {name: statements(table) for name, (table, _) in TABLES.items()}
_WEIGHTS = [weight for _, weight in TABLES.values()]


def make(seed: int) -> Program:
    """The program of a seed."""
    return _Making(seed).program()


class _Making:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.space: Namespace = plain_words()
        self.lines: list[str] = []

    def program(self) -> Program:
        mesh = self.rng.choice(MESHES)
        torch.manual_seed(0)
        state = torch.get_rng_state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(self.rng.randint(2, 4)):
                self._leaf()
            wanted = len(self.lines) + self.rng.randint(5, 15)
            for _ in range(60):
                if len(self.lines) >= wanted or not self._statement():
                    break
        torch.set_rng_state(state)
        order = self.rng.choice((0, 1, 1, 2))
        return Program(mesh, tuple(self.lines), min(order, 1) if _has_determinant(self.lines) else order)

    def _name(self) -> str:
        return f"v{len(self.lines)}"

    def _leaf(self) -> None:
        rng = self.rng
        shape = tuple(rng.choice(_SIZES) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))))
        while prod(shape) > _MOST // 2:
            shape = tuple(min(size, 4) for size in shape[1:])
        if rng.random() < 0.3 and len(shape) >= 2:
            shape = (*shape[:-1], shape[-2])
        dtype = rng.choice(_DTYPES)
        grad = dtype in ("float64", "complex128") and rng.random() < 0.4
        line = f"{self._name()} = fresh({shape}, {dtype!r}, {rng.randrange(999)}, {rng.randrange(1000)}{', grad=True' * grad})"
        exec(line, self.space)
        self.lines.append(line)

    def _statement(self) -> bool:
        """Adds a line if plain torch takes it, or now and then one that it refuses; False: the program ends here."""
        values = everything(self.space)
        filling = Filling(self.rng, values)
        try:
            table = self.rng.choices(list(_STATEMENTS), _WEIGHTS)[0]
            if table == "layers" and self.rng.random() < 0.6:
                text = self.rng.choice(LAYER_MAKERS)(filling)
            else:
                text = filling.fill(self.rng.choice(_STATEMENTS[table]))
        except (NothingFitsError, IndexError, ValueError, RuntimeError):
            return True
        writes = table == "writes"
        line = text if writes else f"{self._name()} = {text}"
        if writes and not _safe(text, filling.first, values):
            return True
        return self._keep(line, values)

    def _keep(self, line: str, values: dict[str, torch.Tensor]) -> bool:
        before = {name: t.detach().clone() for name, t in values.items()} if assigned(line) is None else {}
        try:
            exec(line, self.space)
        except Exception:  # noqa: BLE001 - what plain torch refuses is kept now and then, for Weft to refuse
            if self.rng.random() < 0.12:
                self.lines.append(line)
                return assigned(line) is not None
            if assigned(line) is None:
                return bool(before) and all(
                    _alike(before[n], t) for n, t in everything(self.space).items() if n in before
                )
            return True
        if any(
            t.requires_grad and not (t.is_floating_point() or t.is_complex()) for t in everything(self.space).values()
        ):
            return (
                False  # written to a view of bools: torch says that they have a gradient, and can no longer view them
            )
        try:
            fine = _fine(self.space, self.rng) and not is_beyond(line, self.space)
        except RuntimeError:  # views of which torch says that they can no longer be used
            return False
        if fine:
            self.lines.append(line)
            return True
        name = assigned(line)
        if name is None:  # what was written cannot be taken back
            self.lines.append(line)
            return False
        self.space.pop(name)
        return True


def _has_determinant(lines: Sequence[str]) -> bool:
    """Whether there are determinants: torch has two formulas for the gradient of their gradient.

    The one for classes of tensors is not a number where singular values are equal, also in torch's own `torch.func.hessian`.
    """
    return any("linalg.det(" in line for line in lines)


def _alike(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.shape == after.shape and torch.equal(torch.nan_to_num(before), torch.nan_to_num(after.detach()))


def _fine(space: Namespace, rng: random.Random) -> bool:
    """Whether the values stay small enough to compare: few, and no huge numbers."""
    found = list(everything(space).values())
    if any(t.numel() > _MOST or t.dim() > 5 for t in found) or len(found) > 60:
        return False
    huge = any(
        t.numel() and bool((torch.nan_to_num(t.detach().abs().double(), 0, 0, 0) > 1e5).any())
        for t in found
        if t.dtype is not torch.bool
    )
    odd = any(not bool(torch.isfinite(t).all()) for t in found[-2:])
    return not huge and (not odd or rng.random() < 0.3)


def _overlaps(t: torch.Tensor) -> bool:
    """Whether two elements may lie in one place, so that what a write leaves there is nobody's promise."""
    reach = 0
    for stride, size in sorted((st, s) for st, s in zip(t.stride(), t.shape, strict=True) if s > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _safe(text: str, target: str, values: dict[str, torch.Tensor]) -> bool:
    """Whether a write means one thing: its target does not overlap itself, nor partly an operand."""
    wrote = values.get(target)
    if wrote is None or _overlaps(wrote):
        return False
    if wrote.numel() == 0:
        return True
    names = set(mentioned(text))
    for name, t in values.items():
        if name == target or name.partition("[")[0] not in names or not t.numel():
            continue
        same = t.untyped_storage().data_ptr() == wrote.untyped_storage().data_ptr()
        if same and (t.stride() != wrote.stride() or t.shape != wrote.shape or t.data_ptr() != wrote.data_ptr()):
            return False
    return True
