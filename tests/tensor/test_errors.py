"""Bad input: what, with the values, the rule and the fix, before anything moves."""

import re

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import weft
from weft import P
from weft.sharding import make_mesh

MESH = make_mesh({"a": 4, "b": 2})


def x(*shape: int, spec: P = P("a")) -> weft.Tensor:
    return weft.shard(torch.zeros(*shape or (8, 4)), MESH, spec)


def summed() -> weft.Tensor:
    return weft.shard(torch.zeros(8, 4), MESH, weft.NamedMapping(MESH, P(), unreduced=["a"]))


CASES = {
    "unequal local shapes": (
        lambda: weft.all_reduce(x(10)),
        ValueError,
        "all_reduce needs equal local shapes, but dim 0 (size 10) over mesh axis 'a' (size 4) gives 3, 3, 2, 2.\n"
        "  Reduce along another axis, or pad dim 0 to 12.",
    ),
    "another kind is pending": (
        lambda: weft.all_reduce(summed(), "max"),
        ValueError,
        "asked for the max, but a sum is pending over mesh axis 'a'",
    ),
    "unknown kind": (
        lambda: weft.all_reduce(x(), "median"),
        ValueError,
        "unknown reduction 'median': use one of 'sum', 'mean' (or 'avg'), 'max', 'min', 'prod'",
    ),
    "unknown axis": (
        lambda: weft.all_reduce(x(), "sum", "tp"),
        ValueError,
        "unknown mesh axis 'tp': this mesh has 'a', 'b'",
    ),
    "unknown axis in a spec": (lambda: x(spec=P("tp")), ValueError, "unknown mesh axis 'tp': this mesh has 'a', 'b'"),
    "dim out of range": (
        lambda: weft.all_gather(x(), 2),
        ValueError,
        "all_gather: dim 2 is out of range for a tensor of shape (8, 4)",
    ),
    "spec too long": (lambda: x(spec=P(None, None, "a")), ValueError, "has 3 entries, but the tensor has rank 2"),
    "repeated destination": (
        lambda: weft.ppermute(x(spec=P(("a", "b"))), [(0, 1), (2, 1)]),
        ValueError,
        "destination 1 stands twice",
    ),
    "no pairs": (
        lambda: weft.ppermute(x(spec=P(("a", "b"))), [0, 1]),
        TypeError,
        "ppermute takes pairs (source, destination) of device indices, but got 0",
    ),
    "a rule with too few terms": (
        lambda: weft.register_rule(torch.ops.aten.mm, "m k -> m"),
        ValueError,
        "the rule 'm k -> m' does not fit aten.mm: it needs one term for each tensor",
    ),
    "a rule for the name of an op": (
        lambda: weft.register_rule("demo::op", "m -> m"),
        TypeError,
        "register_rule takes what torch.library.custom_op gives, or a torch op such as torch.ops.aten.mm, but got 'demo::op'",
    ),
    "one tensor where shards belong": (
        lambda: weft.from_local(torch.zeros(1, 4), weft.NamedMapping(MESH, P("a"))),
        TypeError,
        r"but got one tensor of shape (1, 4): use weft.from_local([shard], mapping), or weft.from_process_local(part, mapping)",
    ),
    "placements where a mapping belongs": (
        lambda: x().redistribute([weft.Replicated(), weft.Replicated()]),
        TypeError,
        "use NamedMapping(mesh, P(...)), or placements=[...] with one placement for each mesh axis",
    ),
    "a mapping and placements": (
        lambda: x().redistribute(x().mapping, [weft.Replicated(), weft.Replicated()]),
        TypeError,
        "redistribute takes either a mapping, or placements=[...] and maybe a mesh before them",
    ),
    "a name that DTensor has": (
        lambda: weft.Shard(0),
        AttributeError,
        "module 'weft' has no attribute 'Shard': here it is weft.Sharded",
    ),
    "a method that DTensor has": (
        lambda: x().to_local(),
        AttributeError,
        "'Tensor' object has no attribute 'to_local': here it is x.local_shards",
    ),
    "a method that DTensor's meshes have": (
        lambda: MESH.size(1),
        AttributeError,
        "'DeviceMesh' object has no attribute 'size': here it is mesh.num_devices, or mesh.axis_size(axis)",
    ),
    "repeated source": (
        lambda: weft.ppermute(x(spec=P(("a", "b"))), [(0, 1), (0, 2)]),
        ValueError,
        "source 0 stands twice",
    ),
    "device outside the mesh": (
        lambda: weft.ppermute(x(), [(0, 8)]),
        ValueError,
        "destination 8 is outside the mesh: it has devices 0 to 7",
    ),
    "replicas that would differ": (
        lambda: weft.ppermute(x(), [(0, 2)]),
        ValueError,
        "devices 2 and 3 hold replicas of one shard",
    ),
    "device and sharding": (
        lambda: weft.to_device(x(), weft.CPU(), sharding=x().mapping),
        ValueError,
        "takes a device or a sharding, but got both",
    ),
    "not a tensor": (
        lambda: weft.all_reduce(object()),
        TypeError,
        "all_reduce must be a tensor, an array or numbers, but got object",
    ),
    "a spec where the mesh belongs": (
        lambda: weft.shard(torch.zeros(2), P("a")),
        TypeError,
        "shard takes the mesh before the spec, but got P('a') there: use weft.shard(x, mesh, P('a'))",
    ),
    "the spec before the mesh": (
        lambda: weft.shard(torch.zeros(2), P("a"), MESH),
        TypeError,
        "shard takes the mesh before the spec, but got P('a') there: use weft.shard(x, mesh, P('a'))",
    ),
    "a mapping where the mesh belongs": (
        lambda: weft.shard(torch.zeros(2), weft.NamedMapping(MESH, P())),
        TypeError,
        "shard takes the mesh before the mapping: use weft.shard(x, mapping.mesh, mapping)",
    ),
    "no spec": (
        lambda: weft.shard(torch.zeros(2), MESH),
        TypeError,
        "shard takes a spec after the mesh: use weft.shard(x, mesh, P('dp'))",
    ),
    "a placement for a spec": (
        lambda: weft.shard(torch.zeros(2), MESH, weft.Sharded(0)),
        TypeError,
        "a spec names mesh axes, one entry per tensor dim, but got the placement Sharded(0): use P('dp', None)",
    ),
    "placements for a spec": (
        lambda: weft.shard(torch.zeros(2), MESH, [weft.Sharded(0)]),
        TypeError,
        "P names mesh axes, one entry per tensor dim, but dim 0 has the placement Sharded(0): use P('dp', None)",
    ),
    "not a mesh": (
        lambda: weft.shard(torch.zeros(2), "mesh", P("a")),
        TypeError,
        "shard needs a DeviceMesh, but got 'mesh'",
    ),
    "mean of integers": (
        lambda: weft.all_reduce(weft.shard(torch.arange(8), MESH, P("a")), "mean"),
        TypeError,
        "cannot take the mean of torch.int64 values: convert to a floating dtype first",
    ),
    "max of complex": (
        lambda: weft.all_reduce(weft.shard(torch.zeros(8, dtype=torch.complex64), MESH, P("a")), "max"),
        TypeError,
        "cannot take the max of torch.complex64 values",
    ),
    "no such accelerator": (
        lambda: weft.accelerator(torch.zeros(2), 99),
        ValueError,
        "Accelerator(99) does not exist: this machine has",
    ),
    "a mesh of accelerators that do not exist": (
        lambda: weft.shard(
            torch.zeros(2), make_mesh({"z": 2}, devices=[weft.Accelerator(98), weft.Accelerator(99)]), P("z")
        ),
        ValueError,
        "Accelerator(98) does not exist: this machine has",
    ),
    "all_to_all that cannot be cut": (
        lambda: weft.all_to_all(x(8, 3), 1, 1),
        ValueError,
        "cannot cut dim 1 (size 3 on each device) into 4 equal parts",
    ),
    "replicated axis that splits": (
        lambda: weft.shard(torch.zeros(8), MESH, P("a"), {"a"}),
        ValueError,
        "mesh axis 'a' is in replicated_axes, but splits dim 0",
    ),
    "too few shards": (
        lambda: weft.from_local([torch.zeros(2)], x().mapping),
        ValueError,
        "needs one shard per device of this process, 8 on the mesh a=4 × b=2, but got 1",
    ),
    "shards of several dtypes": (
        lambda: weft.from_local([torch.zeros(2)] * 7 + [torch.zeros(2).double()], weft.NamedMapping(MESH, P("a"))),
        TypeError,
        "needs shards of one dtype, but got torch.float32, torch.float64",
    ),
    "replicas that differ": (
        lambda: weft.from_local([torch.zeros(2)] * 7 + [torch.ones(2)], weft.NamedMapping(MESH, P("a"))),
        weft.MismatchError,
        "device 6 (a=3, b=0) and device 7 (a=3, b=1) bring shards of shape (2,) with different values, but in the layout (a) they "
        "hold one replica over 'b'. Bring the same shard on both",
    ),
    "a shard of the wrong shape": (
        lambda: weft.from_local([torch.zeros(2)] * 7 + [torch.zeros(3)], weft.NamedMapping(MESH, P("a"))),
        ValueError,
        "the shard of device 7 has shape (3,), but a tensor of shape (8,)",
    ),
    "creation on a device": (lambda: weft.zeros(3, device="cpu"), TypeError, "takes its devices from mapping="),
    "a mapping that is none": (
        lambda: weft.zeros(3, mapping=P("a")),
        TypeError,
        "mapping= takes a mapping, but got P('a')",
    ),
    "made directly": (lambda: weft.Tensor([1.0]), TypeError, "weft.Tensor is not made directly: use weft.tensor"),
    "kinds that do not mix": (
        lambda: weft.shard(summed(), MESH, weft.NamedMapping(MESH, P(), unreduced={"a": weft.ReduceOp.MAX})),
        ValueError,
        "max",
    ),
    "DLPack of many shards": (
        lambda: torch.from_dlpack(x()),
        BufferError,
        "DLPack hands over one array, but this tensor lies on 8 devices",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input(memory, name) -> None:
    call, kind, text = CASES[name]
    with weft.comm_log() as log, pytest.raises(kind, match=re.escape(text)):
        call()
    assert log.total_bytes == 0


def given(dtype: torch.dtype, spec: P | weft.NamedMapping) -> weft.Tensor:
    return weft.shard(torch.ones(8, 4, dtype=dtype), MESH, spec)


ROWS = torch.tensor([0, 1])
REFUSED = {
    "a largest complex number": (torch.complex64, lambda x: x.argmax(0)),
    "a sum of complex numbers": (torch.complex64, lambda x: x.nansum()),
    "a variance of whole numbers": (torch.int64, lambda x: x.var(0)),
    "singular values of halves": (torch.float16, torch.linalg.svdvals),
    "indices that are no row": (torch.float32, lambda x: x.index_reduce(0, torch.zeros(2, 2, dtype=ROWS.dtype), torch.ones(2, 4), "prod")),
    "rows of another dtype": (torch.float32, lambda x: x.index_reduce(0, ROWS, torch.ones(2, 4).double(), "amax")),
    "copied rows of another dtype": (torch.float32, lambda x: x.index_copy_(0, ROWS, torch.ones(2, 4).double())),
    "scattered elements of another dtype": (torch.float32, lambda x: x.scatter_reduce_(0, ROWS[None], torch.ones(1, 2).double(), "amax")),
    "a slice of another size": (torch.float32, lambda x: x.slice_scatter(torch.ones(3, 4), 0, 0, 2)),
    "elements that fit nowhere": (torch.float32, lambda x: x.index_put_((ROWS,), torch.ones(3, 5))),
    "unique complex numbers": (torch.complex64, torch.unique),
    "the largest truths": (torch.bool, lambda x: x.topk(2, 0)),
    "a trace of truths": (torch.bool, lambda x: x.trace()),
    "running sums of truths in place": (torch.bool, lambda x: x.cumsum_(0)),
    "margins of halves": (torch.float16, lambda x: torch.nn.functional.multi_margin_loss(x, torch.zeros(8, dtype=ROWS.dtype))),
    "results of another dtype": (torch.float32, lambda x: torch.nan_to_num(x, out=torch.zeros(8, 4).double())),
    "sorted elements of another dtype": (torch.float32, lambda x: torch.sort(x, 0, out=(torch.zeros(8, 4).double(), torch.zeros(8, 4, dtype=ROWS.dtype)))),
    "a sum in whole numbers that are plain": (torch.float32, lambda x: torch.ones(8, 4, dtype=ROWS.dtype).add_(x)),
    "copies to fewer elements that are plain": (torch.float32, lambda x: torch.ones(4, 8).copy_(x)),
    "elements that are one": (torch.float32, lambda x: x.expand(2, 8, 4).sin_()),
    "memory outside": (torch.float32, lambda x: x.as_strided((8, 5), (4, 1))),
    "bounds of no complex numbers": (torch.complex64, lambda x: torch.clamp(x[:0], 0, 1)),
}  # fmt: skip
"""Calls that torch refuses, some of them only in its kernels."""


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("spec", [P("a"), P(("b", "a")), P("a", "b"), weft.NamedMapping(MESH, P(), unreduced=["a"])])
def test_what_kernels_refuse_is_refused_before_anything_moves(name: str, spec: P | weft.NamedMapping) -> None:
    dtype, call = REFUSED[name]
    if dtype is torch.bool and not isinstance(spec, P):
        return
    with pytest.raises((RuntimeError, IndexError, TypeError)) as refused:
        call(torch.ones(8, 4, dtype=dtype))
    x = given(dtype, spec)
    for _ in range(2):
        with weft.comm_log() as log, pytest.raises(refused.type) as found:
            call(x)
        assert type(found.value) is refused.type
        assert log.total_bytes == 0
    assert torch.equal(x.full_tensor(), torch.ones(8, 4, dtype=dtype))


def test_tensors_that_have_a_form_of_their_own_are_sharded_before_they_get_it() -> None:
    two = TwoTensor(torch.ones(4, 4), torch.ones(4, 4))
    mesh = weft.make_mesh({"a": 2})
    layer = torch.nn.Linear(4, 4, bias=False)
    layer.weight = torch.nn.Parameter(two)
    for call in (lambda: weft.shard(two, mesh, P("a")), lambda: weft.nn.shard_module(layer, mesh, {"weight": P("a")})):
        with pytest.raises(TypeError, match=r"got a .*two_tensor.TwoTensor.*: shard first and convert then"):
            call()
