"""A kernel that is launched below Triton's Python gets what that would have given it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import triton
from triton.backends.nvidia.driver import CudaLauncher

from weft.kernels.launch import _launcher


@pytest.mark.skipif(not triton.__version__.startswith("3.6."), reason="other versions are launched by Triton's Python")
@pytest.mark.parametrize("scratch", [0, 64], ids=["no memory of its own", "memory of its own"])
def test_the_launcher_below_gets_what_the_one_above_gives(scratch: int) -> None:
    given: list[tuple[object, ...]] = []
    launcher = object.__new__(CudaLauncher)
    launcher.launch = lambda *arguments: given.append(arguments)
    launcher.launch_cooperative_grid, launcher.launch_pdl, launcher.num_ctas = "cooperative", "dependent", 1
    launcher.global_scratch_size, launcher.profile_scratch_size = 0, 0
    launcher.global_scratch_align = launcher.profile_scratch_align = 1
    kernel = SimpleNamespace(run=launcher, packed_metadata="packed")
    launcher(16, 1, 1, "stream", "function", "packed", None, None, None, 1, 2, "constant")
    launcher.global_scratch_size = scratch
    begin, between = _launcher(kernel)
    assert (begin is launcher) == bool(scratch)
    launcher.global_scratch_size = 0
    begin(16, 1, 1, "stream", "function", *between, None, None, None, 1, 2, "constant")
    assert given[0] == given[1]
