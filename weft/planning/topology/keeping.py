"""Where a topology is kept between programs: in a file, which the environment may name."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from .topology import PRESETS, Topology

__all__ = ["keep_topology", "kept_file", "said_topology"]

VARIABLE = "WEFT_TOPOLOGY"
"""The environment variable that names a preset or a file."""


def kept_file() -> Path:
    """Where `weft bench --links` keeps what it has measured of this host.

    >>> kept_file().suffix
    '.json'
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "weft" / f"topology-{socket.gethostname()}.json"


def keep_topology(topology: Topology, file: Path | None = None) -> Path:
    """Writes a topology down, to be found again; gives the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = keep_topology(Topology(devices_per_host=4), Path(folder) / "links.json")
    ...     said_topology(str(file)).devices_per_host
    4
    """
    file = kept_file() if file is None else file
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps(topology.to_dict(), indent=2))
    beside.replace(file)  # whoever reads it meanwhile finds the old one or the new one
    return file


def said_topology(name: str | None = None) -> Topology | None:
    """The topology of a preset or of a file; without a name, what the environment says, else what was kept; None if nothing.

    >>> said_topology("h100") == Topology.preset("h100")
    True
    """
    said = os.environ.get(VARIABLE) if name is None else name
    if said:
        return Topology.preset(said) if said in PRESETS else _read(Path(said), said)
    return _read(kept_file(), "") if kept_file().exists() else None


def _read(file: Path, said: str) -> Topology:
    try:
        return Topology.from_dict(json.loads(file.read_text()))
    except FileNotFoundError:
        names = ", ".join(map(repr, PRESETS))
        raise ValueError(f"there is no topology {said!r}: use {names}, or a file of `weft bench --links`") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is no topology ({error}): measure it again with `weft bench --links`") from error
