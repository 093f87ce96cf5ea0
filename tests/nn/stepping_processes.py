"""What each of two processes with one device runs for `test_several_processes`: steps of parameters whose pieces are of several processes."""

from __future__ import annotations

import torch
from torch import optim

import weft
from tests.nn.optimizers import OPTIMIZERS
from weft import P


def parameters(mesh: weft.Mesh, x: torch.Tensor) -> list[torch.Tensor]:
    """A plain one, and the same by rows, by columns and on each device."""
    placed = [weft.shard(x, mesh, spec) for spec in (P("t"), P(None, "t"), P())]
    return [torch.nn.Parameter(each) for each in (x.clone(), *placed)]


def check(name: str, mesh: weft.Mesh) -> None:
    """Steps of each layout, and of gradients in another layout, are the plain one's; views show them."""
    kind, options = OPTIMIZERS[name]
    torch.manual_seed(0)
    plain, *own = parameters(mesh, torch.randn(3, 5, dtype=torch.float64))
    views = [x.detach().mT for x in own]
    optimizer = kind([plain, *own], **options)
    for _ in range(3):
        gradient = torch.randn_like(plain)
        plain.grad = gradient
        for x, spec in zip(own, (P("t"), P("t"), P()), strict=True):
            x.grad = weft.shard(gradient, mesh, spec)
        optimizer.step()
        for x, view in zip(own, views, strict=True):
            torch.testing.assert_close(x.full_tensor(), plain.detach(), rtol=1e-12, atol=1e-12)
            assert torch.equal(view.full_tensor(), x.full_tensor().mT)


def check_norm(mesh: weft.Mesh) -> None:
    """Gradients are clipped by the norm of the whole, and what takes part in the step is what was clipped."""
    plain, *own = parameters(mesh, torch.arange(15, dtype=torch.float64).reshape(3, 5))
    for x in own:
        twin = plain.detach().clone().requires_grad_()
        for each in (twin, x):
            (each * each).sum().backward()
        norms = [torch.nn.utils.clip_grad_norm_([each], 1.0) for each in (twin, x)]
        torch.testing.assert_close(norms[1].full_tensor(), norms[0])
        for each in (twin, x):
            optim.SGD([each], lr=0.1).step()
        torch.testing.assert_close(x.full_tensor(), twin.detach())


def main() -> None:
    """All optimizers."""
    weft.distributed.init(devices_per_process=1)
    mesh = weft.make_mesh({"t": 2})
    for name in OPTIMIZERS:
        check(name, mesh)
    check_norm(mesh)
    weft.distributed.shutdown()


if __name__ == "__main__":
    main()
