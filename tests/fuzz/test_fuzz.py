"""Programs made at random do what plain torch does, in both memories and in two processes."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
import torch

import weft
from tests.fuzz import processes
from tests.fuzz.checking import check, check_all
from tests.fuzz.comparing import _distance, _name_differs, shaken
from tests.fuzz.generator import make
from tests.fuzz.known import KNOWN
from tests.fuzz.other_numbers import with_other_numbers
from tests.fuzz.program import Program
from tests.fuzz.running import is_beyond, run_plain, run_weft
from tests.fuzz.shrinking import shrunk
from tests.fuzz.templates import MESHES, expanded, findings, tables, templates
from tests.multiprocess.launching import Processes
from weft.runtime import machine


@pytest.fixture(autouse=True)
def _one_memory_again() -> Iterator[None]:
    yield
    machine.use_separate_memory(False)


def test_programs_do_what_plain_torch_does() -> None:
    checked = list(check_all([make(seed) for seed in range(25)]))
    assert {each.form for each in checked} == {"apart", "one"}
    found = [f"{each.form}, {each.finding}" for each in checked if each.finding]
    assert not found, "\n".join(found)


SOME = 12
"""One in so many calls with unusual arguments is tried here, and all by `python -m tests.fuzz.templates`."""


@pytest.mark.parametrize("table", tables())
def test_calls_with_unusual_arguments_do_what_plain_torch_does(table: str) -> None:
    some = [expanded(each, MESHES[at % 2], seed=at) for at, each in enumerate(templates(table)[::SOME])]
    assert some
    assert [str(finding) for program in some for finding in findings(program)] == []


def test_a_template_stands_for_programs() -> None:
    program = expanded("!T[2,3]#1.add_(1);;w = G[3] * 2;;T[2,3]#1 + w", {"x": 3}, seed=0)
    made, other = (line.split(" = fresh")[0] for line in program.lines[:2])
    assert program.lines[2:] == (f"{made}.add_(1)", f"v9 = {other} * 2", f"v2 = {made} + v9")
    assert "grad=True" in program.lines[1]
    assert expanded("G[3]", {"x": 3}, seed=0) != expanded("G[3]", {"x": 3}, seed=1)


def test_a_call_that_does_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.Tensor, "__add__", lambda x, y: x * y)
    assert [*findings(expanded("T[5] + T[5]", {"x": 3}, seed=0))]


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "one"])
@pytest.mark.parametrize("what", KNOWN)
def test_what_once_went_wrong(what: str, apart: bool) -> None:
    assert check(KNOWN[what], apart=apart) is None


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "one"])
@pytest.mark.parametrize(
    "lines",
    [
        (
            "v0 = fresh((5,), 'float64', 314, 9)",  # whose sum is 0
            "v1 = torch.var_mean(v0, (0,), correction=0)",
            "v2 = torch.heaviside(v1[1], put(0.5, 68).double())",
        ),
        (
            "v0 = fresh((4, 6, 4), 'float64', 358, 290)",  # of which one column has the sum 0
            "v1 = torch.var_mean(v0, 1, correction=0)",
            "v2 = v1[1] / torch.tanh(v1[1])",
        ),
        ("v0 = fresh((5,), 'float64', 4, 9, grad=True)", "v1 = v0.median()", "v2 = v1 * inf"),
        ("v0 = fresh((4, 2, 2), 'float64', 431, 9, grad=True)", "v1 = v0.cumprod(-1)", "v2 = v1 * inf"),
        ("v0 = fresh((2, 2), 'float64', 431, 9, grad=True)", "v1 = v0 * 0", "v2 = v1.prod()", "v3 = v2.var()"),
        (
            "v0 = fresh((4,), 'float64', 4, 9, grad=True)",
            "v1 = (v0 + put([0.0, 0.0, 0.0, inf], 0)).cumprod(0)",
        ),
    ],
    ids=[
        "noise",
        "zeros of noise",
        "two formulas",
        "two formulas of cumprod",
        "two formulas of prod",
        "two formulas of cumprod, finite in one",
    ],
)
def test_what_torch_leaves_open_is_not_found(lines: tuple[str, ...], apart: bool) -> None:
    program = Program({"x": 3 if "(4, 6, 4)" in lines[0] else 2}, lines, order=2 if "cumprod" in lines[1] else 1)
    assert check(program, apart=apart) is None
    machine.use_separate_memory(apart)
    found, expected = run_weft(program), run_plain(program)
    assert any(_name_differs(name, found, expected) for name in expected.names), "nothing is left open"


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "one"])
def test_infinite_gradients_times_contributions_of_either_sign_are_not_found(apart: bool) -> None:
    lines = (
        "v0 = fresh((6,), 'float64', 835, 371, grad=True)",
        "v4 = torch.addcmul(v0, v0, fresh((6,), 'float64', 241, 259), value=2)",
        "v7 = v4 * inf",
    )
    assert check(Program({"a": 4, "b": 2}, lines), apart=apart) is None
    finite, infinite, nan = (torch.tensor([number]) for number in (1.0, inf, torch.nan))
    assert _distance(nan, infinite, gradient=True) == 0
    assert (
        inf
        == _distance(nan, infinite)
        == _distance(infinite, nan, gradient=True)
        == _distance(nan, finite, gradient=True)
    )


@pytest.mark.parametrize(
    "lines",
    [
        (
            "v0 = fresh((2, 4), 'float64', 5, 68)",
            "v1 = torch.corrcoef(torch.stack([v0[0], -v0[0]]))",
            "v2 = v1 != -1",
        ),
        ("v0 = fresh((5, 4), 'float64', 902, 68)", "v1 = torch.cov(v0)", "v2 = v1 == -0.03125"),
        ("v0 = fresh((3,), 'float64', 5, 68)", "v1 = (v0 - v0).mean()", "v2 = torch.frexp(v1)[0]"),
    ],
    ids=["correlations", "covariances", "means"],
)
def test_last_digits_explain_what_they_are_compared_with(lines: tuple[str, ...]) -> None:
    program = Program({"x": 2}, lines, order=0)
    plain = run_plain(program).names["v2"]
    assert isinstance(plain, torch.Tensor)
    assert any(not torch.equal(plain, shaken(program, seed).names["v2"]) for seed in range(4))  # type: ignore[arg-type]


def test_means_of_infinite_numbers_beside_a_variance_are_not_made() -> None:
    line = "v1 = torch.var_mean(v0, (0,))"
    for numbers, beyond in (([1.0, inf], True), ([1.0, 2.0], False)):
        given = torch.var_mean(torch.tensor(numbers), (0,))
        assert is_beyond(line, {"v1": given}) is beyond
        assert is_beyond(line, {"v1[0]": given[0], "v1[1]": given[1]}) is beyond


def test_singular_values_of_infinite_matrices_are_not_made() -> None:
    for number in (inf, 1.0):
        matrix = torch.eye(2) * number
        space = {"v0": matrix, "v1": torch.linalg.svdvals(torch.eye(2))}
        assert is_beyond("v1 = torch.linalg.svdvals(v0)", space) is not bool(matrix.isfinite().all())


def test_gradients_that_torch_has_in_two_ways_are_not_made() -> None:
    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    space = {"v0": x, "v1": x[1], "v2": torch.std_mean(x, ()), "v3": x[1].as_strided((2,), (1,), 1)}
    assert is_beyond("v2 = torch.std_mean(v0, ())", space)
    assert not is_beyond("v2 = torch.std_mean(v0, (0,))", space)
    assert is_beyond("v3 = v1.as_strided((2,), (1,), 1)", space)
    assert not is_beyond("v3 = v0.as_strided((2,), (1,), 1)", space)


def test_gradients_of_factors_of_singular_matrices_are_not_made() -> None:
    for numbers, beyond in (([[1.0, 1.0], [2.0, 2.0]], True), ([[1.0, 1.0], [2.0, 3.0]], False)):
        x = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
        line = "v1 = (lambda q, r: q @ r)(*torch.linalg.qr(v0))"
        assert is_beyond(line, {"v0": x, "v1": x * 1}) is beyond
        assert not is_beyond(line, {"v0": x.detach(), "v1": x.detach() * 1})


def test_logarithms_of_determinants_of_singular_matrices_are_not_made() -> None:
    for numbers, beyond in (([[1.0, 1.0], [1.0, 1.0]], True), ([[1.0, 1.0], [2.0, 3.0]], False)):
        x = torch.tensor(numbers, dtype=torch.float64)
        line = "v1 = torch.logdet(v0 @ v0.mT + 1)"
        assert is_beyond(line, {"v0": x, "v1": torch.logdet(x @ x.mT + 1)}) is beyond


@pytest.mark.multiprocess
@pytest.mark.parametrize("spread", [2, 1])
def test_processes_do_what_plain_torch_does(spread: int) -> None:
    text, findings = processes.hunt(2, 0, 1, spread)
    assert not findings, text
    assert "op checks" in text


@pytest.mark.multiprocess
@pytest.mark.parametrize("spread", [2, 1])
def test_what_once_went_wrong_in_processes(spread: int) -> None:
    expected = sum(processes.is_for(program, spread) for program in KNOWN.values())
    with Processes([processes.__file__, "known", str(spread)], processes.COUNT) as started:
        for ended in started.wait(120):
            assert ended.status == 0, ended.err[-3000:]
            assert ended.out.strip() == f"{expected} programs"


def test_a_program_is_the_same_in_every_run() -> None:
    assert make(7) == make(7)
    assert make(7) != make(8)


def test_a_fault_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relu that forgets its sign is found among other statements, and is what is left of them."""
    plain = torch.relu
    monkeypatch.setattr(torch, "relu", lambda x: x.abs() if isinstance(x, weft.Tensor) else plain(x))
    lines = (
        *make(3).lines[:6],
        "v90 = fresh((3, 4), 'float64', 5, 9)",
        "v91 = v90 + 1",
        "v92 = torch.relu(v91)",
        "v93 = v92 * 2",
    )
    program = Program({"a": 2, "b": 2}, lines)
    assert (found := check(program, apart=True)) is not None
    assert found.kind == "value"

    def fails(smaller: Program) -> bool:
        again = check(smaller, apart=True)
        return again is not None and again.kind == "value"

    smallest = shrunk(program, fails)
    assert len(smallest.lines) == 2
    assert "relu" in smallest.lines[-1]


def test_a_number_that_is_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is filled with the number of an earlier call is found by running the program with other numbers."""
    plain, kept = torch.full_like, {}
    monkeypatch.setattr(
        torch,
        "full_like",
        lambda x, number: plain(x, kept.setdefault(x.shape, number) if isinstance(x, weft.Tensor) else number),
    )
    program = Program({"x": 2}, ("v0 = fresh((3,), 'float64', 5, 9)", "v1 = torch.full_like(v0, 0.25)"))
    assert (found := check(program, apart=True)) is not None
    assert found.kind == "value, other numbers"


def test_other_numbers_are_other_ones() -> None:
    program = Program({"x": 2}, ("v0 = fresh((2,), 'float64', 5, 68)", "v1 = v0.renorm(2, 0, 1.5) * -0.25"))
    assert with_other_numbers(program).lines == (
        "v0 = fresh((2,), 'float64', 8, 68)",
        "v1 = v0.renorm(2, 0, 2.0) * -0.375",
    )
