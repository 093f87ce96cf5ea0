"""What differs between two outcomes of one program, and whether rounding explains it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial

import torch

import weft

from .class_formulas import run_plain_as_classes
from .program import Program, assigned, written
from .running import After, Outcome, run_plain, tensors_in
from .words import Namespace, strides

_EPSILON = {
    torch.float64: 2e-16,
    torch.complex128: 2e-16,
    torch.float32: 1e-7,
    torch.complex64: 1e-7,
    torch.bfloat16: 8e-3,
}
_INCIDENTAL = {"strides", "contiguous", "requires_grad", "conjugated"}
"""What torch promises of values, and not of gradients."""


def whole(outcome: Outcome, name: str) -> torch.Tensor:
    """A tensor of an outcome as a plain one; brought once, so that processes that see different things make the same calls."""
    if name not in outcome.wholes:
        value = outcome.names[name]
        assert isinstance(value, torch.Tensor)
        value = value.detach()
        outcome.wholes[name] = value.full_tensor() if isinstance(value, weft.Tensor) else value
    return outcome.wholes[name]


def _facts(value: torch.Tensor) -> dict[str, object]:
    """What torch says of a tensor besides its numbers."""
    return {
        "dtype": value.dtype,
        "shape": tuple(value.shape),
        "strides": strides(value),
        "contiguous": value.is_contiguous(),
        "requires_grad": value.requires_grad,
        "conjugated": value.is_conj(),
    }


def _distance(found: torch.Tensor, expected: torch.Tensor, *, gradient: bool = False) -> float:
    """The largest difference, relative to the largest number; infinite where nan and inf stand elsewhere.

    An infinite element of a gradient may have become nan: where it was multiplied by contributions of either sign.
    """
    if found.shape != expected.shape:
        return math.inf
    if not found.numel():
        return 0.0
    wide = torch.complex128 if found.is_complex() else torch.float64
    a, b = found.resolve_conj().to(wide), expected.resolve_conj().to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    if gradient:
        same |= a.isnan() & b.isinf()
    if found.is_complex():
        # Half of an infinite complex number is not a number, nor is once of it: torch's own arithmetic.
        same |= (a.isnan() | a.isinf()) & (b.isnan() | b.isinf())
    if bool(same.all()):
        return 0.0
    finite = b[~same].abs()
    if not bool(torch.isfinite(a[~same]).all() and torch.isfinite(finite).all()):
        return math.inf
    every = b.abs()[torch.isfinite(b.abs())]
    # Short numbers lose digits where larger ones cancel.
    least = 1e-3 if expected.dtype in (torch.float64, torch.complex128) else 1.0
    scale = max(float(every.max()) if every.numel() else 0.0, least)
    return float((a[~same] - b[~same]).abs().max()) / scale


def _tolerance(dtype: torch.dtype) -> float:
    return {
        torch.float64: 1e-9,
        torch.complex128: 1e-9,
        torch.float32: 1e-4,
        torch.complex64: 1e-4,
        torch.bfloat16: 5e-2,
    }.get(dtype, 0.0)


def _digits(parts: torch.Tensor) -> torch.Tensor:
    """Whole numbers where they are so short that sums of them are exact in any order."""
    if parts.dtype is torch.bfloat16:  # has eight digits, wherever they stand
        return torch.frexp(parts.double()).mantissa * 2.0**4
    return parts.double() * 2.0**14


Change = Callable[[torch.Tensor], torch.Tensor]
Changing = Callable[[str, torch.dtype], Change]
"""(the line, the dtype of what it gave) -> what is done to that."""


def _changing(change: Changing, gradients: Callable[[torch.dtype], Change]) -> After:
    """Changes the numbers of what a line gave, and later those of its gradient."""

    def after(space: Namespace, line: str) -> None:
        name = written(line) or ""
        for t in tensors_in(name, space.get(name)).values():
            if t.dtype not in _EPSILON or not t.numel():
                continue
            held = t.data  # torch is not told: what it has saved for gradients is to have other digits too
            try:
                held.copy_(_by_parts(change(line, t.dtype), held))
            except RuntimeError:
                continue  # elements that lie in one place: what they were made of was moved already
            if t.requires_grad and not t._is_view() and t._backward_hooks is None:
                t.register_hook(partial(_by_parts, gradients(t.dtype)))

    return after


def _by_parts(change: Change, x: torch.Tensor) -> torch.Tensor:
    if not x.is_complex():
        return change(x)
    return torch.view_as_complex(change(torch.view_as_real(x.resolve_conj())))


def _moving_digits(generator: torch.Generator, step: float) -> Change:
    """Moves the last digits of numbers that have many, as another order of summation would."""

    def moved(parts: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(parts.shape, generator=generator, dtype=torch.float64)
        return torch.where(
            _digits(parts.detach()).frac() == 0, parts, (parts.double() * (1 + 4 * step * noise)).to(parts.dtype)
        )

    return moved


_INEXACT = re.compile(r"mean\(|_norm\(|fft\.|linalg\.|corrcoef\(|cov\(")
"""Lines that round on their way, also where numbers are short: a zero or a -1 of theirs may be what others cancel to."""


def _moving_all(generator: torch.Generator, step: float) -> Change:
    """Moves numbers that were rounded on the way to them, zeros as well, by last digits of the largest."""

    def moved(parts: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(parts.shape, generator=generator, dtype=torch.float64)
        sizes = parts.double().abs()
        scale = sizes[sizes.isfinite()].amax().clamp(min=1) if bool(sizes.isfinite().any()) else 1.0
        return (parts.double() + 4 * step * scale * noise).to(parts.dtype)

    return moved


def _flushing(_: torch.Generator, step: float) -> Change:
    """Makes zeros of what may be noise."""
    return lambda parts: torch.where(parts.double().abs() < 64 * step, torch.zeros_like(parts), parts)


def shaken(program: Program, seed: int) -> Outcome:
    """The program on plain torch with other last digits."""
    made = torch.Generator().manual_seed(seed)
    loosest = 2e-3 if "bfloat16" in repr(program) else 3e-8 if "float32" in repr(program) else 0.0

    def digits(line: str, dtype: torch.dtype) -> Change:
        moving = (_moving_digits, _moving_all, _moving_digits, _flushing)[seed % 4 if _INEXACT.search(line) else 0]
        return moving(made, max(_EPSILON[dtype], loosest))

    return run_plain(program, _changing(digits, lambda dtype: _moving_digits(made, _EPSILON[dtype])))


def _with_other_zeros(program: Program) -> Iterator[Outcome]:
    """The program on plain torch where zeros have no sign, as sums of several zeros have none; and where some have one."""
    signless: Callable[..., Change] = lambda *_: lambda parts: parts + 0.0  # noqa: E731
    yield run_plain(program, _changing(signless, signless))
    if any("softshrink" in line for line in program.lines):
        # Of a number below zero its kernel gives a negative zero, or another where it takes several at once.
        negative: Change = lambda parts: torch.where(parts == 0, -torch.zeros_like(parts), parts)  # noqa: E731
        keep: Change = lambda parts: parts  # noqa: E731
        yield run_plain(program, _changing(lambda line, _: negative if "softshrink" in line else keep, lambda _: keep))


def _value_differs(name: str, outcome: Outcome, other: Outcome) -> str | None:
    """How a value differs from that of another outcome."""
    found, expected, gradient = outcome.names[name], other.names[name], ".grad" in name
    if isinstance(expected, list) and isinstance(found, list):
        found, expected = (torch.tensor(numbers, dtype=torch.complex128) for numbers in (found, expected))
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        facts, wanted = _facts(found), _facts(expected)
        asked = facts.keys() - (_INCIDENTAL if gradient else set())
        wrong = [f"{key} {facts[key]} for {wanted[key]}" for key in facts if key in asked and facts[key] != wanted[key]]
        if wrong:
            return "; ".join(wrong)
        plain = whole(outcome, name) if isinstance(outcome.names[name], torch.Tensor) else found
        distance = _distance(plain, expected.detach(), gradient=gradient)
        return (
            f"off by {distance:.2g}: {plain.tolist()} for {expected.tolist()}"
            if not distance <= _tolerance(expected.dtype)
            else None
        )
    if isinstance(expected, float) and isinstance(found, float):
        close = math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9) or (
            math.isnan(found) and math.isnan(expected)
        )
        return None if close else f"{found} for {expected}"
    return None if repr(found) == repr(expected) else f"{found!r} for {expected!r}"


def _name_differs(name: str, found: Outcome, expected: Outcome) -> str | None:
    try:
        return _value_differs(name, found, expected)
    except RuntimeError as error:
        return f"unreadable: {error}"


def _related(found: Exception, expected: Exception) -> bool:
    return isinstance(found, type(expected)) or isinstance(expected, type(found))


def _errors_differ(found: Outcome, expected: Outcome, program: Program) -> tuple[str, str] | None:
    for index in range(len(program.lines) + 1):
        mine, theirs = found.errors.get(index), expected.errors.get(index)
        line = program.lines[index] if index < len(program.lines) else "gradients"
        if mine is None and theirs is not None:
            return "accepted", f"{line}: plain torch raises {type(theirs).__name__}: {str(theirs)[:200]}"
        if mine is not None and theirs is None:
            return "refused", f"{line}: {type(mine).__name__}: {str(mine)[:600]}"
        if mine is not None and theirs is not None and not _related(mine, theirs):
            return (
                "error kind",
                f"{line}: {type(mine).__name__} ({str(mine)[:200]}) for {type(theirs).__name__} ({str(theirs)[:200]})",
            )
    return None


def difference_without_memory(
    found: Outcome, expected: Outcome, real: Outcome, program: Program
) -> tuple[str, str] | None:
    """What differs of a program whose tensors have no values: what torch says of them besides their numbers.

    Torch's accounts of some ops without memory say other strides than its kernels give, `real`: those are as good.
    """
    if refuses_turned(found):
        return None
    for index, error in found.errors.items():
        return "refused, meta", f"{program.lines[index]}: {type(error).__name__}: {str(error)[:600]}"
    for name, value in expected.names.items():
        given = found.names.get(name)
        if not isinstance(value, torch.Tensor):
            continue
        if not isinstance(given, torch.Tensor) or given.device.type != value.device.type:
            return "device, meta", f"{name}: {getattr(given, 'device', given)} for {value.device}"
        facts, wanted, there = _facts(given), _facts(value), real.names.get(name)
        if facts != wanted and (not isinstance(there, torch.Tensor) or facts != _facts(there)):
            return "facts, meta", f"{name}: {facts} for {wanted}"
    return None


def refuses_turned(found: Outcome) -> bool:
    """Whether something was turned in place below a view that is in use: docs/gradients.md says that it is refused."""
    return any("would be lost" in str(error) for error in found.errors.values())


_NO_PAIRS = "Tensor must have a stride divisible by 2"
"""What torch says of pairs that are to be complex numbers; of no pairs too, as in some gradients, where nobody says how they lie."""


def may_go_either_way(found: Outcome) -> bool:
    """Whether something was refused that another form may take: whether a view is in use may hang on what the engine holds."""
    return refuses_turned(found) or any(_NO_PAIRS in str(error) for error in found.errors.values())


def _add_zeros(to: Outcome, other: Outcome) -> None:
    """Where one side has no gradient and the other has zeros, they agree."""
    for name in [name for name in other.names.keys() - to.names.keys() if ".grad" in name]:
        value = other.names[name]
        if not isinstance(value, torch.Tensor):
            continue
        zeros = torch.zeros(value.shape, dtype=value.dtype)
        if _distance(whole(other, name), zeros) <= _tolerance(
            value.dtype
        ):  # for subclasses torch leaves some out that cancel
            del other.names[name]


def difference(found: Outcome, expected: Outcome, program: Program) -> tuple[str, str] | None:
    """The kind of difference and its description; None where there is none that rounding does not explain."""
    if refuses_turned(found):
        return None
    if _NO_PAIRS in str(expected.errors.get(len(program.lines))):
        return None
    wrong = _errors_differ(found, expected, program)
    if wrong is not None and any("view(torch.int64)" in line for line in program.lines):
        expected = next(_with_other_zeros(program))  # whose bits are seen there
        wrong = _errors_differ(found, expected, program)
    if wrong is not None:
        return wrong
    if any(index < len(program.lines) and assigned(program.lines[index]) is None for index in expected.errors):
        return None  # what a write that was refused midway has left is nobody's promise
    _add_zeros(found, expected)
    _add_zeros(expected, found)
    if found.names.keys() != expected.names.keys():
        return "names", f"{sorted(found.names)} for {sorted(expected.names)}"
    bad = {name: text for name in expected.names if (text := _name_differs(name, found, expected))}
    if not bad:
        return None
    if any(".grad" in name for name in bad):
        other = run_plain_as_classes(program)
        bad = {name: text for name, text in bad.items() if not _is_of_other_formula(name, found, other)}
    others = [*_with_other_zeros(program), *(shaken(program, seed) for seed in range(12))] if bad else []
    for name, text in bad.items():
        if text.startswith("unreadable") or not _explained(name, found, expected, others):
            kind = "value" if "off by" in text else text.split()[0]
            return f"gradient {kind}" if ".grad" in name else kind, f"{name}: {text}"
    return None


def _is_of_other_formula(name: str, found: Outcome, other: Outcome) -> bool:
    """Whether a gradient is what torch has for classes of tensors."""
    return ".grad" in name and name in other.names and _name_differs(name, found, other) is None


def _explained(name: str, found: Outcome, expected: Outcome, others: list[Outcome]) -> bool:
    """Whether plain torch itself gives something else when last digits change."""
    value, mine = expected.names[name], found.names[name]
    for other in others:
        theirs = other.names.get(name)
        if (
            not isinstance(value, torch.Tensor)
            or not isinstance(mine, torch.Tensor)
            or not isinstance(theirs, torch.Tensor)
        ):
            if repr(theirs) != repr(value):
                return True
            continue
        if theirs.shape != value.shape or theirs.dtype != value.dtype:
            return True
        shape_alike = mine.shape == value.shape
        moved = _distance(theirs.detach(), value.detach())
        facts_alike = ".grad" in name or _facts(mine) == _facts(value)
        if shape_alike and facts_alike and moved > 0 and _distance(whole(found, name), value.detach()) <= 50 * moved:
            return True
    return False
