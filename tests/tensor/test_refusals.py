"""What sharded tensors cannot do in torch is said in one sentence, and what it says to do instead works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import weft
from weft import P
from weft.runtime.machine import residence, use_separate_memory

MESH = weft.make_mesh({"dp": 2, "tp": 2})
HOME = residence(MESH).device


def table(kind: str, sparse: bool) -> nn.Module:
    torch.manual_seed(0)
    return {"Embedding": nn.Embedding, "EmbeddingBag": nn.EmbeddingBag}[kind](8, 4, sparse=sparse).to(HOME)


TOKENS = torch.tensor([[1, 2, 2], [7, 0, 1]], device=HOME)


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
def test_sparse_gradients_of_a_table(kind: str) -> None:
    model = weft.nn.shard_module(table(kind, sparse=True), MESH, {"weight": P("tp")})
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS).full_tensor(), table(kind, sparse=False)(TOKENS))
    for _ in range(2):  # also when the call is known
        with pytest.raises(NotImplementedError, match=r"no sparse (gradient|form): use sparse=False"):
            model(TOKENS).sum().backward()
    model.sparse = False
    model(TOKENS).square().sum().backward()
    expected = table(kind, sparse=True)
    expected(TOKENS).square().sum().backward()
    torch.testing.assert_close(model.weight.grad.full_tensor(), expected.weight.grad.to_dense())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.to_sparse(),
        lambda x: x.to_sparse(1),
        lambda x: x.to_sparse_csr(),
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=HOME), x[:2, 0], (4,)),
    ],
)
def test_sparse_tensors(call: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(NotImplementedError, match=r"sharded tensors have no sparse form: .*x\.full_tensor\(\)"):
        call(weft.shard(torch.eye(4, device=HOME), MESH, P("dp")))


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("form", [torch.Tensor.to_sparse_coo, torch.Tensor.to_sparse_csr], ids=["coo", "csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_plain_sparse_tensors_beside_sharded_ones(form: Callable[[torch.Tensor], torch.Tensor], separate: bool) -> None:
    use_separate_memory(separate)
    sparse, x = form(2 * torch.eye(4, device=HOME)), weft.shard(torch.ones(4, 3, device=HOME), MESH, P("dp"))
    for call in (lambda: sparse @ x, lambda: torch.sparse.mm(sparse, x), lambda: weft.shard(sparse, MESH, P("dp"))):
        with pytest.raises(
            NotImplementedError, match=r"of layout torch.sparse_.* cannot lie on a mesh.*x\.to_dense\(\)"
        ):
            call()
    assert torch.equal((sparse.to_dense() @ x).full_tensor(), torch.full((4, 3), 2.0, device=HOME))
    use_separate_memory(False)


@pytest.mark.parametrize("separate", [True, False], ids=["separate", "unified"])
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(layout: torch.layout, separate: bool) -> None:
    use_separate_memory(separate)
    x = weft.shard(torch.eye(4, device=HOME), MESH, P("dp"))
    with pytest.raises(NotImplementedError, match="sharded tensors have no nested form: pad the sequences"):
        torch.nested.as_nested_tensor([x, x[:2]], layout=layout)
    nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(4, 4)], layout=layout, device=HOME)
    mapping = weft.NamedMapping(MESH, P("dp"))
    calls: list[Callable[[], object]] = [
        lambda: weft.shard(nested, MESH, P("dp")),
        lambda: weft.shard({"a": [nested]}, MESH, P("dp")),
        lambda: weft.tensor(nested, mapping=mapping),
        lambda: weft.from_local([nested] * 4, mapping),
        lambda: weft.to_device(nested, weft.CPU(0)),
        lambda: x + nested,
    ]
    for call in calls:
        with pytest.raises(NotImplementedError, match=r"have no nested form: .*x\.to_padded_tensor\(0\.0\)"):
            call()
    use_separate_memory(False)


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "numbers": lambda x: torch.tensor([x.sum(), x.mean(), 3.0]),
    "nested lists": lambda x: torch.tensor([[x.sum()], [x[1, 1]]]),
    "whole numbers": lambda x: torch.tensor([x.sum().long(), 2]),
    "truths": lambda x: torch.tensor([x.sum() > 3, x.sum() < 3]),
    "complex numbers": lambda x: torch.tensor([x.sum().to(torch.complex64)]),
    "half": lambda x: torch.tensor([x.sum().bfloat16()]),
    "one element": lambda x: torch.tensor([x[0, 0:1]]),
    "as_tensor": lambda x: torch.as_tensor([x.sum(), 2.0]),
    "asarray": lambda x: torch.asarray((x.sum(),)),
    "new_tensor": lambda x: x.new_tensor([x.sum(), 1]),
    "an index": lambda x: torch.tensor([10, 20, 30][x[0, 1].long()]),
}


@pytest.mark.parametrize("spec", [P("dp", "tp"), P()], ids=str)
@pytest.mark.parametrize("name", MADE)
def test_tensors_of_numbers_that_are_sharded_scalars(name: str, spec: P) -> None:
    x = torch.arange(24.0, device=HOME).reshape(4, 6)
    expected, found = MADE[name](x), MADE[name](weft.shard(x, MESH, spec))
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_several_elements_are_no_number() -> None:
    x = weft.shard(torch.eye(4, device=HOME), MESH, P("dp"))
    with pytest.raises(ValueError, match="only one element tensors can be converted to Python scalars"):
        torch.tensor([x[0], x[1]])


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_tensors() -> None:
    x = torch.tensor([0.5, -1.0, 0.25, 2.0])
    quantized = torch.quantize_per_tensor(x, 0.25, 0, torch.qint8)
    with pytest.raises(
        TypeError, match=r"only plain tensors can be sharded, but got one of torch.qint8.*x\.dequantize\(\)"
    ):
        weft.shard(quantized, MESH, P("dp"))
    assert torch.equal(weft.shard(quantized.dequantize(), MESH, P("dp")).full_tensor().cpu(), x)


def test_tensors_with_a_form_of_their_own_inside() -> None:
    """As torchao's are."""
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(TwoTensor(torch.ones(4, 4), torch.zeros(4, 4)))
    with pytest.raises(TypeError, match=r"got a torch\..*TwoTensor.*: shard first and convert then"):
        weft.nn.shard_module(model, MESH, {"weight": P("dp")})
    sharded = weft.nn.shard_module(nn.Linear(4, 4), MESH, {"weight": P("dp")}).weight.detach()
    assert torch.equal((TwoTensor(sharded, sharded) * 2).a.full_tensor(), sharded.full_tensor() * 2)
