"""The search: what it finds is the best there is, or it says how far from it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from weft.autoshard.elimination import solve
from weft.autoshard.limits import solve_within
from weft.autoshard.problem import Assignment, Problem


def random_problem(seed: int, variables: int, choices: int, pairs: float) -> Problem:
    """A problem with prices like those of layouts: many are nothing."""
    numbers = np.random.default_rng(seed)
    problem = Problem()
    for _ in range(variables):
        problem.variable(list(numbers.random(choices)), list(numbers.integers(1, 20, choices)))
    for i in range(variables):
        for j in range(i + 1, variables):
            if j == i + 1 or numbers.random() < pairs:
                free = numbers.random((choices, choices)) < 0.4
                problem.couple(i, j, np.where(free, 0.0, numbers.random((choices, choices))))
    return problem


def brute_force(problem: Problem, limit: float = np.inf) -> tuple[Assignment, float]:
    choices = [range(len(unary)) for unary in problem.unary]
    fitting = (choice for choice in product(*choices) if problem.bytes(choice) <= limit)
    best = min(fitting, key=problem.seconds)
    return best, problem.seconds(best)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_choice_is_found(seed: int) -> None:
    problem = random_problem(seed, variables=7, choices=3, pairs=0.2)
    found = solve(problem)
    _, best = brute_force(problem)
    assert found.seconds == pytest.approx(best)
    assert found.bound == pytest.approx(best)


def test_twelve_variables() -> None:
    problem = random_problem(3, variables=12, choices=2, pairs=0.3)
    assert solve(problem).seconds == pytest.approx(brute_force(problem)[1])


@pytest.mark.parametrize("seed", range(8))
def test_tables_that_are_too_large_leave_a_bound(seed: int) -> None:
    problem = random_problem(seed, variables=7, choices=3, pairs=0.7)
    found = solve(problem, largest=9)
    _, best = brute_force(problem)
    assert found.bound <= best + 1e-12
    assert found.seconds >= best - 1e-12
    assert found.seconds == pytest.approx(problem.seconds(found.choice))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.35, 0.6, 0.9])
def test_a_limit_is_kept_and_the_bound_holds(seed: int, share: float) -> None:
    problem = random_problem(seed, variables=7, choices=3, pairs=0.2)
    least, most = (sum(float(pick(held)) for held in problem.memory) for pick in (np.min, np.max))
    limit = least + share * (most - least)
    found = solve_within(problem, limit)
    assert found is not None
    _, best = brute_force(problem, limit)
    assert found.bytes <= limit
    assert found.bound <= best + 1e-12
    assert found.seconds == pytest.approx(best, rel=0.05)
    assert found.seconds - found.bound <= 0.05 * found.seconds


def test_nothing_fits() -> None:
    problem = random_problem(0, variables=3, choices=2, pairs=0)
    assert solve_within(problem, 1.0) is None


def test_one_variable_beside_itself() -> None:
    problem = Problem()
    x = problem.variable([0.0, 0.0])
    problem.couple(x, x, np.array([[2.0, 9.0], [9.0, 1.0]]))
    assert solve(problem).choice == (1,)
