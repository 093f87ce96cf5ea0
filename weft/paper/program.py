"""`run_program`: a file of a user's, run as if from the command line, until somebody has seen enough."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

__all__ = ["Enough", "run_program"]


class Enough(BaseException):
    """Ends a program of which enough was seen; no `except Exception` of its own catches it."""


def run_program(program: Path, arguments: tuple[str, ...]) -> None:
    """Runs a file with arguments of the command line; it may end early."""
    before, path = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        with torch.enable_grad():
            runpy.run_path(str(program), run_name="__main__")
    except (Enough, SystemExit):
        pass
    finally:
        sys.argv, sys.path[:] = before, path
