"""Pages that benchmarks write to: a table between two marks of its name."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_between"]


def write_between(page: Path, name: str, shown: str) -> None:
    """Puts text between the marks of a name, in place of what is there."""
    first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    before, begun, rest = page.read_text().partition(first)
    _, ended, after = rest.partition(last)
    if not begun or not ended:
        raise ValueError(f"{page} has no marks {first.strip()} and {last}: put them where the table goes")
    page.write_text(f"{before}{first}{shown}\n{last}{after}")
