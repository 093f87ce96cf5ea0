"""A counting allocator: the bytes that torch's tensors really hold, looked at after every op that may make it more."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import weft


class Counting(TorchDispatchMode):
    """Counts the memory of all plain tensors that it has seen; copies that share memory until they are written to count once."""

    def __init__(self, given: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.peak = 0
        self._storages: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._most = 0
        """What is held if nothing is shared: while that is below the peak, nobody has to look where memory lies."""
        self._see(given)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if any(issubclass(each, weft.Tensor) for each in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.detach.default:
            return result
        self._see(result if isinstance(result, (list, tuple)) else [result])
        return result

    def _see(self, tensors: Iterable[object]) -> None:
        for x in tensors:
            if isinstance(x, torch.Tensor) and not x.is_meta:
                storage = x.untyped_storage()
                self._forget(storage._cdata)
                self._storages[storage._cdata] = weakref.ref(storage), storage.nbytes()
                self._most += storage.nbytes()
        if self._most > self.peak:
            for key in [key for key, (ref, _) in self._storages.items() if ref() is None]:
                self._forget(key)
        if self._most > self.peak:
            self.peak = max(self.peak, self._held())

    def _forget(self, key: int) -> None:
        if key in self._storages:
            self._most -= self._storages.pop(key)[1]

    def _held(self) -> int:
        """The bytes that are held now."""
        storages = [storage for ref, _ in self._storages.values() if (storage := ref()) is not None]
        return sum({_address(storage): storage.nbytes() for storage in storages if storage.nbytes()}.values())


def _address(storage: torch.UntypedStorage) -> int:
    """Where memory lies, without parting copies that share it."""
    return torch._C._data_address(torch.empty(0, dtype=torch.uint8).set_(storage, 0, (1,)))  # type: ignore[attr-defined]


def pieces_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What sharded tensors hold on all devices."""
    return [piece for x in tensors for piece in (x._value.pieces if isinstance(x, weft.Tensor) else (x,))]
