"""The machine, the date and the versions that figures belong to."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

PACKAGES = ("torch", "jax", "jaxlib", "numpy")
MAX_ENVIRONMENT = Path(__file__).parents[1] / ".venv-max"
"""MAX has an environment of its own, which `make bench` makes where MAX can be installed."""


def environment() -> dict[str, object]:
    """What a reader needs to know to believe a figure."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory() / (1 << 30)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := installed(name))} | max_version(),
        "weft": revision(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    """The processor's name, as it says itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def memory() -> int:
    """Bytes of memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def installed(name: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def max_version() -> dict[str, str]:
    """The version of MAX, if it is installed."""
    if not any(MAX_ENVIRONMENT.glob(".ready-*")):
        return {}
    folders = [str(folder) for folder in MAX_ENVIRONMENT.glob("lib/python*/site-packages")]
    found = next(iter(distributions(name="max", path=folders)), None)
    return {} if found is None else {"MAX": found.version}


def about_max(quick: bool) -> str:
    """Whether MAX takes part, in a line; if not, why."""
    if quick:
        return "MAX is left out of quick runs: its programs take minutes to compile."
    if found := max_version():
        return f"MAX {found['MAX']} takes part in the transitions and collectives; compiling them takes minutes the first time."
    noted = MAX_ENVIRONMENT / "why-not"
    said = [line for line in noted.read_text().splitlines() if "ERROR" in line] if noted.exists() else []
    return f"MAX is left out: {said[-1] if said else 'it has not been installed (make bench does that)'}"


def revision() -> str:
    """The commit that was measured."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"
