"""A Tensor is the whole tensor: reads, prints, copies, pickles and in-place ops mean what they mean in torch."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import weft
from weft import P
from weft.sharding import Partial, PlacementMapping, Replicated, Sharded, make_mesh

MESH = make_mesh({"dp": 2, "tp": 4})


def summed(value: torch.Tensor) -> weft.Tensor:
    """Contributions that add up to the value, no one of which is the value."""
    parts = [torch.full_like(value, float(i)) for i in range(3)]
    parts.append(value - sum(parts))
    return weft.from_local(parts * 2, weft.NamedMapping(MESH, P(), unreduced=["tp"]))


def test_it_says_what_it_is(memory) -> None:
    x = weft.shard(torch.zeros(512, 4096), MESH, P("dp", "tp"))
    assert isinstance(x, torch.Tensor)
    assert (x.shape, x.dtype, x.is_distributed) == ((512, 4096), torch.float32, True)
    assert x.placements == (Sharded(0), Sharded(1))
    assert x.mapping == weft.NamedMapping(MESH, P("dp", "tp"))
    assert [tuple(s.shape) for s in x.local_shards] == [(256, 1024)] * 8
    assert repr(x) == "Tensor(f32[512@dp, 4096@tp] on dp=2 × tp=4)"
    assert not weft.cpu(x).is_distributed


def test_the_mapping_is_the_one_asked_for(memory) -> None:
    mapping = PlacementMapping(MESH, (Sharded(0), Replicated()))
    x = weft.zeros(4, 4, mapping=mapping)
    assert x.mapping == mapping
    assert x.redistribute(placements=[Replicated(), Partial()]).placements == (Replicated(), Partial())


def test_an_order_that_is_not_the_mesh_s_is_kept(memory) -> None:
    x = weft.shard(torch.arange(16), MESH, P(("tp", "dp")))
    assert x.mapping.spec == P(("tp", "dp"))
    with pytest.raises(weft.ConversionError, match="order"):
        _ = x.placements
    assert x.local_shards[1].tolist() == [4, 5]


def test_small_tensors_show_their_values(memory) -> None:
    assert repr(weft.shard(torch.arange(2), MESH, P("dp"))) == "Tensor(i64[2@dp] on dp=2 × tp=4)\n[0, 1]"
    assert "pending sum@tp" in repr(summed(torch.tensor([1.0])))
    assert f"{weft.shard(torch.tensor(2.5), MESH, P()):.1f}" == "2.5"
    with pytest.raises(TypeError, match="unsupported format string"):  # as of a plain tensor
        f"{weft.shard(torch.ones(2), MESH, P()):.1f}"


def test_showing_values_is_no_movement_of_the_program(memory) -> None:
    """Several processes show none that would have to move, and their logs are the same."""
    x = weft.shard(torch.arange(4.0), MESH, P("dp"))
    with weft.comm_log() as log:
        assert "[0., 1., 2., 3.]" in repr(x)
        assert "pending" in repr(summed(torch.tensor([1.0])))
    assert not len(log), log


def test_scalar_reads_reduce_first(memory) -> None:
    x = summed(torch.tensor(4.0))
    assert x.item() == float(x) == 4.0
    assert int(x) == 4
    assert bool(x > 3)
    assert not bool(x < 3)
    assert x == 4
    assert summed(torch.tensor([1.0, 9.0])).max().item() == 9.0
    assert summed(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert [float(v) for v in summed(torch.tensor([1.0, 2.0]))] == [1.0, 2.0]


def test_a_scalar_or_bias_is_added_once(memory) -> None:
    x = summed(torch.tensor([1.0, 2.0]))
    for y in (
        x + 1,
        1 + x,
        x + torch.ones(2),
        torch.ones(2) + x,
        x - (-1),
        x + weft.ones(2, mapping=weft.NamedMapping(MESH, P("dp"))),
    ):
        assert y.tolist() == [2.0, 3.0]
    assert (x * 2).tolist() == [2.0, 4.0]
    assert (1 - x).tolist() == [0.0, -1.0]


def test_mean_over_uneven_shards_is_exact(memory) -> None:
    value = torch.arange(10, dtype=torch.float64)
    x = weft.shard(value, MESH, P("tp"))
    with weft.comm_log() as log:
        mean = x.mean()
        assert mean.item() == 4.5
    assert set(log.counts()) <= {"all_reduce"}
    assert log.bytes_received <= 3 * 8


def test_a_plain_tensor_counts_as_replicated(memory) -> None:
    x = weft.shard(torch.arange(8.0).reshape(4, 2), MESH, P("dp", None))
    assert torch.equal((x @ torch.eye(2)).full_tensor(), x.full_tensor())
    assert torch.equal((torch.ones(4, 2) + x).full_tensor(), x.full_tensor() + 1)


def test_conversion(memory) -> None:
    x = weft.shard(torch.arange(6.0).reshape(2, 3), MESH, P("dp"))
    np.testing.assert_array_equal(x.numpy(), np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(x), x.numpy())
    single = weft.cpu(x)
    assert torch.equal(torch.from_dlpack(single), x.full_tensor().cpu())
    assert x.double().dtype is torch.float64
    assert x.to(torch.int32).mapping.spec == P("dp", None)
    assert x.to(x.device) is x
    for data in (np.ones(4), [1.0, 2.0, 3.0], 3.5, torch.ones(2, device="cpu"), np.float32(2), weft.ones(4)):
        assert weft.tensor(data).shape == torch.as_tensor(np.asarray(data)).shape
    tree = weft.shard({"w": np.ones((2, 2)), "more": [torch.zeros(4), (np.zeros(2),)]}, MESH, P("dp"))
    assert tree["w"].mapping.spec == tree["more"][1][0].mapping.spec == P("dp")


def test_copies_and_pickles(memory) -> None:
    x = weft.shard(torch.arange(8.0), MESH, P(("tp", "dp"))).requires_grad_()
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(y.full_tensor(), x.full_tensor())
        assert y.mapping == x.mapping
        assert y.requires_grad
        with torch.no_grad():
            y.add_(1)
        assert x[0].item() == 0
    parameter = torch.nn.Parameter(x.detach())
    copied = copy.deepcopy(parameter)
    assert isinstance(copied, torch.nn.Parameter)
    assert copied.requires_grad


def test_in_place_changes_only_what_it_should(memory) -> None:
    x = weft.shard(torch.zeros(4, 4), MESH, P("dp", None))
    others = [
        weft.shard(x, MESH, P()),
        weft.shard(x, MESH, P("dp", None)),
        weft.all_gather(x),
        x.clone(),
        x.full_tensor(),
    ]
    alias, view = x.detach(), x[:2]
    x.add_(1)
    assert all(other.sum().item() == 0 for other in others)
    assert alias.sum().item() == 16
    if memory == "unified":
        assert view.sum().item() == 8


def test_autograd_s_in_place_checks_keep_working(memory) -> None:
    x = weft.shard(torch.ones(4), MESH, P("tp")).requires_grad_()
    with pytest.raises(RuntimeError, match="leaf"):
        x.add_(1)
    y = x * 2
    z = y * y
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_random_numbers_do_not_depend_on_the_layout(memory, name) -> None:
    torch.manual_seed(3)
    plain = getattr(torch, name)(5, 6)
    for spec in (P(), P("dp", "tp"), P(None, ("tp", "dp"))):
        torch.manual_seed(3)
        x = getattr(weft, name)(5, 6, mapping=weft.NamedMapping(MESH, spec))
        assert torch.equal(x.full_tensor(), plain)
        torch.manual_seed(4)
        first = getattr(torch, f"{name}_like")(plain)
        torch.manual_seed(4)
        assert torch.equal(getattr(weft, f"{name}_like")(x).full_tensor(), first)


def test_creation(memory) -> None:
    mapping = weft.NamedMapping(MESH, P("dp"))
    for made, expected in (
        (weft.zeros(4, mapping=mapping), torch.zeros(4)),
        (weft.ones(4, dtype=torch.int32, mapping=mapping), torch.ones(4, dtype=torch.int32)),
        (weft.full((4,), 7, mapping=mapping), torch.full((4,), 7)),
        (weft.arange(1, 9, 2, mapping=mapping), torch.arange(1, 9, 2)),
        (weft.eye(4, mapping=mapping), torch.eye(4)),
        (weft.full_like(weft.zeros(4, mapping=mapping), 2), torch.full((4,), 2.0)),
    ):
        assert torch.equal(made.full_tensor(), expected)
        assert made.mapping.spec[0] == "dp"
    assert weft.empty(0, 3, mapping=mapping).shape == (0, 3)
    assert weft.zeros(3, requires_grad=True).requires_grad


def test_an_unknown_op_is_right_and_reported(memory) -> None:
    value = torch.randn(6, 6, dtype=torch.float64)
    x = weft.shard(value @ value.T, MESH, P("dp", "tp"))
    torch.testing.assert_close(torch.linalg.eigvalsh(x).full_tensor(), torch.linalg.eigvalsh(value @ value.T))
    with weft.reshard_policy("raise"), pytest.raises(weft.ReshardError, match=r"linalg.*test_tensor\.py:\d+") as caught:
        torch.linalg.eigvalsh(x)
    assert "weft.shard(x, mesh, P(None, None))" in str(caught.value)


def test_the_policy_warns_with_file_and_line(memory) -> None:
    x = weft.shard(torch.ones(4, 4), MESH, P("dp"))
    with (
        weft.reshard_policy("warn"),
        pytest.warns(UserWarning, match=r"test_tensor\.py:\d+ moves a tensor of shape \(4, 4\)"),
    ):
        x.softmax(0)
    with pytest.raises(ValueError, match="unknown reshard policy 'loud'"):
        weft.reshard_policy("loud")


def test_reshard_warns(memory) -> None:
    with pytest.warns(DeprecationWarning, match=r"use weft\.shard"):
        weft.reshard(torch.ones(4), MESH, P("dp"))


def test_mesh_context_is_the_default(memory) -> None:
    with weft.mesh_context(MESH):
        assert weft.zeros(3).mesh == MESH
        assert weft.distributed_broadcast(torch.ones(2)).mesh == MESH


def test_a_mode_on_the_way_is_not_where_an_op_was_called() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    x = weft.shard(torch.ones(8), weft.make_mesh({"a": 2}), weft.P("a"))
    with weft.comm_log() as log, Mode():
        torch.flip(x, [0])
        line = sys._getframe().f_lineno - 1
    assert {str(record.call_site) for record in log} == {f"{__file__}:{line}"}


def test_calls_in_a_cell_or_at_a_prompt_are_where_they_are() -> None:
    code = "import torch, weft\nx = weft.shard(torch.ones(8), weft.make_mesh({'a': 4}), weft.P('a'))\n\ny = weft.all_gather(x)"
    with weft.comm_log() as log:
        exec(compile(code, "<cell 3>", "exec"), {})
    assert [str(record.call_site) for record in log] == ["<cell 3>:4"]
