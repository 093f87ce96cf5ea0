"""What links there are within this machine: copies within its memory, and messages through its sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from .links import Link

__all__ = ["measured_memory", "measured_socket"]


def measured_memory(size: int) -> Link:
    """Copies of so many bytes within this machine's memory."""
    source, target = bytearray(size), bytearray(size)
    view = memoryview(target)
    seconds = min(_timed(lambda: view.__setitem__(slice(None), source)) for _ in range(5))
    start = min(_timed(lambda: view[:8].__setitem__(slice(None), source[:8])) for _ in range(50))
    return Link(start, size / max(seconds, 1e-9))


def measured_socket(size: int) -> Link:
    """Messages of so many bytes through a socket of this machine."""
    payload, answer = bytes(size), bytearray(1)
    received = bytearray(size)
    near, far = socket.socketpair()

    def echo() -> None:
        for length in (1, size):
            _receive(far, memoryview(received)[:length])
            far.sendall(b"x")

    with near, far:
        thread = threading.Thread(target=echo, daemon=True)
        thread.start()
        latency = _timed(lambda: _asked(near, b"x", answer)) / 2
        seconds = _timed(lambda: _asked(near, payload, answer))
        thread.join()
    return Link(latency, size / max(seconds - latency, 1e-9))


def _asked(end: socket.socket, payload: bytes, answer: bytearray) -> None:
    end.sendall(payload)
    _receive(end, memoryview(answer)[:1])


def _receive(end: socket.socket, view: memoryview) -> None:
    while len(view):
        view = view[end.recv_into(view) :]


def _timed(action: Callable[[], None]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start
