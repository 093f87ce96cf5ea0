"""`schedule`: the schedules that have names, for a model cut into stages on so many places."""

from __future__ import annotations

from .orders import gpipe, interleaved, one_f_one_b
from .schedule import Schedule
from .zero_bubble import dualpipe_v, zb_h1, zb_v

__all__ = ["NAMES", "schedule"]

_ONE_STAGE_EACH = {"gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1}
_TWO_STAGES_EACH = {"zb-v": zb_v, "dualpipe-v": dualpipe_v}
NAMES = (*_ONE_STAGE_EACH, "interleaved", *_TWO_STAGES_EACH)
"""The names that `schedule` knows."""


def schedule(name: str, stages: int, places: int, microbatches: int) -> Schedule:
    """The schedule of this name for so many stages in so many places.

    >>> schedule("interleaved", stages=4, places=2, microbatches=4).stage_places
    (0, 1, 0, 1)
    >>> schedule("zb-v", stages=4, places=2, microbatches=4).stage_places
    (0, 1, 1, 0)
    """
    if name not in NAMES:
        raise ValueError(
            f"there is no schedule {name!r}: the known ones are {', '.join(map(repr, NAMES))}, or give a Schedule"
        )
    if name in _ONE_STAGE_EACH:
        if stages != places:
            raise ValueError(
                f"a schedule {name!r} has one stage in each place, but got {stages} stages and {places} places: "
                "use 'interleaved', 'zb-v' or 'dualpipe-v' for several, or as many meshes as stages"
            )
        return _ONE_STAGE_EACH[name](stages, microbatches)
    if name in _TWO_STAGES_EACH:
        if stages != 2 * places:
            raise ValueError(
                f"a schedule {name!r} has two stages in each place, but got {stages} stages and {places} places: "
                f"cut the model into {2 * places} stages"
            )
        return _TWO_STAGES_EACH[name](places, microbatches)
    if not places or stages % places:
        raise ValueError(
            f"a schedule {name!r} has equally many stages in each place, but got {stages} stages and {places} places"
        )
    return interleaved(places, microbatches, stages // places)
