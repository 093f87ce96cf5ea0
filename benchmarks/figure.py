"""`Figure`: one row of the table, all contenders for the same work."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from contest import Timing

WEFT, SEPARATE = "Weft", "Weft, separate memories"
LIMIT, SEPARATE_LIMIT = "limit", "limit, separate memories"
PLAIN = "plain torch, one op"
NO_PEERS = frozenset({WEFT, SEPARATE, LIMIT, SEPARATE_LIMIT, PLAIN})


@dataclass(frozen=True, slots=True)
class Figure:
    """What was done, on how many bytes, and how long each contender took."""

    section: str
    name: str
    times: dict[str, Timing]
    nbytes: int = 0
    devices: int = 8

    @property
    def peers(self) -> dict[str, Timing]:
        """Whoever is neither Weft nor plain torch."""
        return {name: timing for name, timing in self.times.items() if name not in NO_PEERS}

    @property
    def best_peer(self) -> str | None:
        """The quickest of the peers."""
        return min(self.peers, key=lambda name: self.peers[name].median, default=None)

    def ratio(self, one: str, other: str | None) -> float | None:
        """One contender's time over another's, where both were measured."""
        if one not in self.times or other is None or other not in self.times:
            return None
        return self.times[one].median / self.times[other].median

    def as_dict(self) -> dict[str, object]:
        """What is written down."""
        return asdict(self)

    @classmethod
    def of(cls, written: dict) -> Figure:
        """What was written down."""
        times = {name: Timing(**timing) for name, timing in written["times"].items()}
        return cls(**{**written, "times": times})
