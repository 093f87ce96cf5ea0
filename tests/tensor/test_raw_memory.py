"""No call crashes the interpreter: what torch does to memory itself works on the whole value, or is refused."""

from __future__ import annotations

import pytest
import torch

import weft
from weft import P
from weft.sharding import make_mesh

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="torch applies Python functions to host memory only")

MESH = make_mesh({"a": 2, "b": 2})
SPECS = [P(), P("a"), P("b", "a"), P(None, ("a", "b"))]
VALUE = torch.arange(12.0).reshape(6, 2)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_python_functions_are_applied_to_elements(spec: P) -> None:
    x, y = weft.shard(VALUE, MESH, spec), weft.shard(VALUE + 1, MESH, P("a"))
    view = x[1:]
    assert x.apply_(lambda v: 2 * v) is x
    assert torch.equal(x.full_tensor(), VALUE * 2)
    assert torch.equal(view.full_tensor(), VALUE[1:] * 2)
    x.map_(y, lambda v, w: v + w)
    assert torch.equal(x.full_tensor(), VALUE * 3 + 1)
    x.map_(VALUE, lambda v, w: v - w)
    assert torch.equal(x.full_tensor(), VALUE * 2 + 1)
    x.map2_(y, VALUE, lambda v, w, u: v + w + u)
    assert torch.equal(x.full_tensor(), VALUE * 4 + 2)
    assert x.mapping.spec == spec


def test_python_functions_are_not_differentiated() -> None:
    x = weft.shard(VALUE, MESH, P("a")).requires_grad_()
    with pytest.raises(RuntimeError, match=r"apply_ cannot be differentiated: call x\.detach\(\)\.apply_"):
        x.apply_(lambda v: v)
    with torch.no_grad():
        x.apply_(lambda v: v + 1)
    assert torch.equal(x.full_tensor(), VALUE + 1)


def test_memory_of_pieces_is_not_shared_between_processes() -> None:
    x = weft.shard(VALUE, MESH, P("a"))
    with pytest.raises(
        RuntimeError, match=r"share_memory_ cannot share Tensor\(f32\[6@a, 2\].*x\.full_tensor\(\)\.share_memory_\(\)"
    ):
        x.share_memory_()
    assert not x.is_shared()
    module = weft.nn.shard_module(torch.nn.Linear(2, 2), MESH, {})
    with pytest.raises(RuntimeError, match="share_memory_ cannot share"):
        module.share_memory()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", [torch.Tensor.clone, torch.nn.Parameter])
def test_a_plain_tensor_does_not_get_the_memory_of_a_sharded_one(mode: type, kind: type) -> None:
    x = weft.shard(VALUE, MESH, P("a"))
    with mode():
        plain = kind(VALUE.clone())
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            plain.data = x
        assert torch.equal(plain, VALUE)
        x.data = weft.shard(VALUE + 1, MESH, P("b"))  # what could be done still can
        plain.data = VALUE + 1
    assert torch.equal(x.full_tensor(), VALUE + 1)
    assert torch.equal(plain, VALUE + 1)


def test_a_module_that_becomes_sharded_gets_new_parameters() -> None:
    module = torch.nn.Linear(2, 6)
    weight = module.weight.detach().clone()
    module._apply(lambda p: weft.shard(p, MESH, P("a")))
    assert isinstance(module.weight, weft.Tensor)
    assert isinstance(module.weight, torch.nn.Parameter)
    assert torch.equal(module.weight.full_tensor(), weight)


REFUSED = {
    "quantize": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantize dynamically": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
    "quantize channels": lambda x: torch.quantize_per_channel(x, torch.ones(6), torch.zeros(6), 0, torch.qint8),
    "mkldnn": lambda x: x.to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("call", REFUSED)
def test_other_kinds_of_memory_are_refused(call: str) -> None:
    with pytest.raises(NotImplementedError, match=r"cannot be sharded: call it on x\.full_tensor\(\)"):
        REFUSED[call](weft.shard(VALUE, MESH, P("a")))
