"""In which order messages are posted."""

from __future__ import annotations

from unittest import mock

import torch

from weft.planning import Topology
from weft.runtime.processes.group import Group
from weft.runtime.processes.transport import exchange
from weft.runtime.processes.world import World


class Posting:
    """Notes what is posted; nothing has to be waited for."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, int]] = []

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Posting:
        self.posted.append(("send", to))
        return self

    def recv(self, tensors: list[torch.Tensor], from_: int, tag: int) -> Posting:
        self.posted.append(("receive", from_))
        return self

    def wait(self) -> None:
        """It is done."""


def test_what_comes_over_a_cable_is_asked_for_before_anything_is_sent() -> None:
    """Else the other side hears of it behind all that was sent, and a cable carries one direction after the other."""
    here = World(process=1, count=4, backends=(("cpu", "gloo"),), topology=Topology(hosts=(0, 0, 1, 1)))
    group, posting = Group((0, 1, 2), here), Posting()
    assert group.elsewhere == {2}
    given = {0: torch.ones(4), 2: torch.ones(4)}
    with mock.patch.object(exchange, "backend_of", return_value=posting):
        exchange.swap(group, given, {k: torch.empty(4) for k in given}, torch.device("cpu"))
    assert posting.posted == [("receive", 2), ("send", 0), ("send", 2), ("receive", 0)]
