"""CUDA graphs on the host: what torch runs inside a capture is written down by address, and done again by a replay."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from weft.engine.sharded import ShardedTensor
from weft.graph.running import cuda_capture
from weft.runtime.memory import lazy_copy


def by_address(x: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor has now, whatever becomes of the tensor."""
    storage = x.untyped_storage()
    if not storage.nbytes() or x.is_meta:
        return x
    memory = (ctypes.c_byte * storage.nbytes()).from_address(torch._C._data_address(x))
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride(), x.storage_offset())


class Launch:
    """Stands for `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.kept: list[torch.UntypedStorage] = []
        self.is_done = True

    def replay(self) -> None:
        # A GPU only records; here the operations have run, once, with the same inputs.
        calls = [] if self.is_done else self.calls
        self.is_done = False
        for func, args, kwargs, results in calls:
            again = func(*args, **kwargs)
            for old, new in zip(pytree.tree_leaves(results), pytree.tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.numel() and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class Capture(TorchDispatchMode):
    """Stands for `torch.cuda.graph`: writes down every operation."""

    def __init__(self, launch: Launch, stream: object, capture_error_mode: str, pool: object = None) -> None:
        super().__init__()
        assert capture_error_mode == "thread_local"
        self.launch = launch

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, ShardedTensor) for kind in types):
            return NotImplemented  # what it does with its pieces comes here too
        if func is torch.ops.aten.nonzero.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        given = pytree.tree_map_only(torch.Tensor, by_address, (args, kwargs or {}))
        results = func(*args, **(kwargs or {}))
        leaves = pytree.tree_leaves((args, kwargs, results))
        if any(isinstance(x, torch.Tensor) and x.is_meta for x in leaves):
            return results  # what torch is asked about tensors without memory runs nowhere
        made = pytree.tree_map_only(torch.Tensor, by_address, results)
        self.launch.calls.append((func, *given, made))
        # What it reads is there as long as the capture, too, even if a tensor gets other memory (`.data = …`): memory of
        # the host that is freed may be gone, a GPU's is not.
        self.launch.kept += [x.untyped_storage() for x in leaves if isinstance(x, torch.Tensor)]
        return results


class Stream(SimpleNamespace):
    """Stands for `torch.cuda.Stream`."""

    def wait_stream(self, other: object) -> None: ...

    def record_event(self) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def synchronize(self) -> None: ...


def copied_at_once(x: torch.Tensor) -> torch.Tensor:
    """Copies that wait for a write are made in the middle of an operation, where nobody could write that down."""
    raise RuntimeError("no copy-on-write here")


@pytest.fixture
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """The host takes the part of a GPU that records CUDA graphs."""
    monkeypatch.setattr(cuda_capture, "RECORDED_ON", "cpu")
    monkeypatch.setattr(lazy_copy, "_clone", copied_at_once)
    here = Stream()
    for name, stand_in in {
        "CUDAGraph": Launch,
        "graph": Capture,
        "Stream": Stream,
        "current_stream": lambda: here,
        "is_current_stream_capturing": lambda: False,
        "device": lambda _: nullcontext(),
        "stream": lambda _: nullcontext(),
        "set_stream": lambda _: None,
        "graph_pool_handle": lambda: (0, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return "cpu"
