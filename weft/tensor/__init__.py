"""What users hold: `Tensor`, creation, communication, transfer.

The package itself can be called: `weft.tensor(data, mapping=...)` makes a tensor, as `torch.tensor` does.
"""

import sys
from types import ModuleType

from .. import handlers  # noqa: F401 - fills the tables of rules and handlers
from ..runtime.memory.host_memory import keep_freed_memory
from . import announcing  # noqa: F401 - tells torch of the class
from .creation import tensor as _make
from .tensor import Tensor

__all__ = ["Tensor"]

keep_freed_memory()


class _CallablePackage(ModuleType):
    __call__ = staticmethod(_make)


sys.modules[__name__].__class__ = _CallablePackage
