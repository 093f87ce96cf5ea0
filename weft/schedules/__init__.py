"""Schedules of pipelines, as values: which place does what, in which order. Nothing here runs anything, or needs torch.

>>> from weft.schedules import Schedule, zb_h1
>>> print(zb_h1(stages=2, microbatches=3))
zb-h1: 2 stages in 2 places, 3 microbatches; bubble 10.0%, live 2 2
0: F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2
1: F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2
"""

from .entry import Entry, Work
from .named import NAMES, schedule
from .orders import gpipe, interleaved, one_f_one_b
from .schedule import Schedule
from .timeline import Span, Timeline
from .zero_bubble import dualpipe_v, zb_h1, zb_v

__all__ = [
    "NAMES",
    "Entry",
    "Schedule",
    "Span",
    "Timeline",
    "Work",
    "dualpipe_v",
    "gpipe",
    "interleaved",
    "one_f_one_b",
    "schedule",
    "zb_h1",
    "zb_v",
]
