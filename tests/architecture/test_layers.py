"""Imports point only up the table in docs/architecture.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.layers import PAGE, ROOT, Layer, layers_of, modules_of, violations

LAYERS = layers_of(PAGE.read_text())


def layer(module: str) -> Layer:
    return next(layer for layer in LAYERS if module in layer.modules)


def test_every_import_points_up() -> None:
    assert violations(ROOT, LAYERS) == []


def test_the_reader_sees_the_package() -> None:
    assert {"weft", "weft.errors", "weft.frozen", "weft.devices", "weft.sharding", "weft.sharding.mesh"} <= dict(
        modules_of(ROOT)
    ).keys()


def test_the_page_keeps_the_order_of_the_design() -> None:
    order = ["devices", "sharding", "planning", "runtime", "tensor", "graph", "inspect", "cli"]
    places = [LAYERS.index(layer(f"weft.{name}")) for name in order]
    assert places == sorted(set(places))


@pytest.mark.parametrize(
    "module", ["weft.errors", "weft.frozen", "weft.caches", "weft.devices", "weft.sharding", "weft.planning"]
)
def test_words_and_plans_need_only_the_standard_library(module: str) -> None:
    assert {name for name in layer(module).may_import if not name.startswith("weft.")} == set()


def test_rules_know_words_only() -> None:
    assert layer("weft.rules").may_import == {
        "torch",
        "weft.errors",
        "weft.frozen",
        "weft.caches",
        "weft.devices",
        "weft.sharding",
    }


# What the check must catch: the file that is added to a good tree, what it says, and the complaint.
BAD = {
    "downward": ("sharding/mesh.py", "from weft.planning.plan import Plan", "imports weft.planning.plan.Plan, which"),
    "downward, plain": ("devices.py", "import weft.sharding", "imports weft.sharding, which its layer may not"),
    "downward, relative": (
        "planning/plan.py",
        "from ..tensor import x",
        "imports weft.tensor.x, which its layer may not",
    ),
    "downward, for types": (
        "sharding/mesh.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from weft.tensor import Tensor",
        "sharding/mesh.py:3: weft.sharding.mesh imports weft.tensor.Tensor, which its layer may not",
    ),
    "sideways": ("rules/mm.py", "from weft.runtime import copy", "imports weft.runtime.copy, which its layer may not"),
    "through the door": ("tensor/x.py", "from weft import P", "imports weft.P, which its layer may not"),
    "torch in the words": ("sharding/mesh.py", "import torch.nn", "imports torch.nn, which its layer may not"),
    "torch in a plan": (
        "planning/plan.py",
        "def f():\n    import torch",
        "plan.py:2: weft.planning.plan imports torch,",
    ),
    "an unknown package": ("tensor/x.py", "import pandas", "imports pandas, which its layer may not"),
    "inside a function": ("tensor/x.py", "def f():\n    from weft.devices import CPU", "inside a function: move it"),
    "inside a method": (
        "tensor/x.py",
        "class C:\n  def f(self):\n    import weft.devices",
        "inside a function: move it",
    ),
    "by name": (
        "sharding/mesh.py",
        "import importlib\nimportlib.import_module('weft.tensor')",
        "imports weft.tensor, which its layer may not",
    ),
    "no layer": ("shapes.py", "", "weft.shapes is in no layer: give it a row in docs/architecture.md"),
}

GOOD = {
    "__init__.py": "from weft.cli import main\nfrom weft.sharding import P",
    "devices.py": "from weft.errors import WeftError",
    "errors.py": "import dataclasses",
    "sharding/__init__.py": "from weft.sharding.mesh import DeviceMesh\nfrom .mesh import P\nfrom . import mesh",
    "sharding/mesh.py": "from __future__ import annotations\nimport math\nfrom ..devices import CPU",
    "runtime/copy.py": "import torch\nfrom weft.planning import Plan\ndef f():\n    import triton.language",
    "cli.py": "import click\nfrom weft.inspect import explain\nfrom weft.tensor import Tensor",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / "weft" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_good_tree_passes(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    assert violations(tmp_path, LAYERS) == []


@pytest.mark.parametrize("case", BAD)
def test_a_bad_tree_fails(case: str, tmp_path: Path) -> None:
    name, text, complaint = BAD[case]
    write(tmp_path, {**GOOD, name: text})
    (found,) = violations(tmp_path, LAYERS)
    assert complaint in found


def test_a_page_that_points_down_fails() -> None:
    page = "| layer | holds | may import |\n|---|---|---|\n| `weft.a` | | `weft.b` |\n| `weft.b` | | all above |"
    with pytest.raises(AssertionError, match=r"`weft.a` may import \['weft.b'\], which the page lists no higher"):
        layers_of(page)
