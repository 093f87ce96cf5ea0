"""Random numbers do not depend on the layout, and tensors made like others read nothing of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as nn

from .harness import MESHES, assert_sound, laid, layouts, memory, moved_bytes

Draw = Callable[[torch.Tensor], torch.Tensor]

DRAWS: dict[str, Draw] = {
    "normal_": lambda x: x.normal_(2, 3),
    "uniform_": lambda x: x.uniform_(-1, 1),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "exponential_": lambda x: x.exponential_(),
    "random_": lambda x: x.random_(0, 9),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 9),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "dropout": nn.dropout,
    "alpha dropout": nn.alpha_dropout,
    "dropout of channels": nn.dropout1d,
    "native dropout": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "rrelu": lambda x: nn.rrelu(x, training=True),
    "multinomial": lambda x: torch.multinomial(x[0].softmax(-1), 3),
    "gumbel": lambda x: nn.gumbel_softmax(x, hard=True),
    "kaiming": torch.nn.init.kaiming_uniform_,
    "truncated": torch.nn.init.trunc_normal_,
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("separate", [False, True])
def test_the_numbers_of_one_device(name: str, separate: bool) -> None:
    x = torch.randn(3, 5, 4)
    torch.manual_seed(5)
    expected = DRAWS[name](x.clone())
    with memory(separate):
        for mesh in MESHES:
            for layout in layouts(mesh, 3)[::3]:
                given = laid(x, layout)
                torch.manual_seed(5)
                actual = DRAWS[name](given)
                assert_sound(actual)
                torch.testing.assert_close(actual.full_tensor(), expected, msg=f"{layout}")


@pytest.mark.parametrize("name", ["uniform_", "bernoulli_", "random_", "dropout", "native dropout"])
@pytest.mark.parametrize("separate", [True, False])
def test_a_repeated_draw_goes_on_in_the_numbers_of_one_device(name: str, separate: bool) -> None:
    draw, x = DRAWS[name], torch.randn(3, 5, 4)
    plain = [x.clone() for _ in range(3)]
    torch.manual_seed(5)
    expected = [draw(each) for each in plain]
    with memory(separate):
        for layout in layouts(MESHES[1], 3, pending=False)[::3]:
            given = [laid(x, layout) for _ in range(3)]
            shown, before = [each[:, 1:] for each in given], [each.clone() for each in given]
            torch.manual_seed(5)
            for k, each in enumerate(given):
                torch.testing.assert_close(draw(each).full_tensor(), expected[k], msg=f"{layout}")
                torch.testing.assert_close(shown[k].full_tensor(), plain[k][:, 1:])
                torch.testing.assert_close(before[k].full_tensor(), x)


@pytest.mark.parametrize("separate", [False, True])
def test_the_gradient_of_dropout_uses_the_same_mask(separate: bool) -> None:
    x = torch.randn(6, 4)
    with memory(separate):
        for mesh in MESHES:
            for layout in layouts(mesh, 2):
                given = laid(x, layout).requires_grad_()
                out = nn.dropout(given, 0.5)
                out.sum().backward()
                kept = out.detach().full_tensor() != 0
                torch.testing.assert_close(given.grad.full_tensor(), kept.float() * 2)


LIKES: dict[str, Draw] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda x: torch.full_like(x, 3.5),
    "another dtype": lambda x: torch.zeros_like(x, dtype=torch.int32),
    "empty_like": lambda x: torch.empty_like(x).fill_(2),
    "new_zeros": lambda x: x.new_zeros(x.shape),
    "new_ones": lambda x: x.new_ones(2, 3),
    "new_full": lambda x: x.new_full((3,), 2.0),
    "new_empty": lambda x: x.new_empty(x.shape).fill_(1),
    "new_tensor": lambda x: x.new_zeros(()),
}


@pytest.mark.parametrize("name", LIKES)
@pytest.mark.parametrize("separate", [False, True])
def test_likes_move_nothing(name: str, separate: bool) -> None:
    x = torch.randn(3, 5)
    expected = LIKES[name](x)
    with memory(separate):
        for mesh in MESHES:
            for layout in layouts(mesh, 2):
                given = laid(x, layout)
                actual = LIKES[name](given)
                assert_sound(actual)
                assert moved_bytes(lambda given=given: LIKES[name](given)) == 0
                assert actual.dtype == expected.dtype
                assert torch.equal(actual.full_tensor(), expected)
                if actual.shape == x.shape:
                    assert actual._layout is layout.resolved
