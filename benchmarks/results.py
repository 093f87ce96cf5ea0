"""`Results`: the figures of a run, or of several, as they are written down."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from figure import Figure


@dataclass
class Results:
    """All figures, and what they were measured on."""

    environment: dict = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)
    bytes: dict = field(default_factory=dict)
    """Who receives how many times the fewest bytes, over many transitions."""
    memory: dict = field(default_factory=dict)
    """What replicating a large tensor adds to the process."""
    taken: dict[str, str] = field(default_factory=dict)
    """For each section when, at which commit and on how busy a machine it was measured: `--only` keeps older ones."""
    missing: dict[str, str] = field(default_factory=dict)
    """Sections that did not come to their end, and why."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """What earlier runs wrote, if any did."""
        if not path.exists():
            return cls()
        said = json.loads(path.read_text())
        return cls(**{**said, "figures": [Figure.of(figure) for figure in said["figures"]]})

    def save(self, path: Path) -> None:
        """Writes it all down."""
        path.parent.mkdir(parents=True, exist_ok=True)
        said = {**vars(self), "figures": [figure.as_dict() for figure in self.figures]}
        path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")

    def replace(self, section: str, figures: Iterable[Figure], missing: str | None) -> None:
        """Puts the new figures of a section in the place of the old ones."""
        self.figures = [figure for figure in self.figures if figure.section != section] + list(figures)
        self.missing.pop(section, None)
        if missing is not None:
            self.missing[section] = missing

    def of(self, section: str) -> list[Figure]:
        """The figures of a section, in the order they were measured in."""
        return [figure for figure in self.figures if figure.section == section]

    def find(self, section: str, name: str, nbytes: int | None = None, devices: int | None = None) -> Figure | None:
        """One figure, if it was measured."""
        for figure in self.of(section):
            fits = nbytes in (None, figure.nbytes) and devices in (None, figure.devices)
            if figure.name.startswith(name) and fits:
                return figure
        return None
