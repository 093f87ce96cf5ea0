"""What sharded tensors cannot do in torch, each with one sentence that says what to do instead."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward

from .handling import handler
from .tensor import Tensor

aten = torch.ops.aten
Op = torch._ops.OpOverload
Args = tuple[object, ...]
Kwargs = dict[str, object]

_SPARSE = (
    aten._sparse_coo_tensor_with_dims_and_tensors.default,
    aten._to_sparse.default,
    aten._to_sparse.sparse_dim,
    aten._to_sparse_csr.default,
    aten._to_sparse_csc.default,
    aten._to_sparse_bsr.default,
    aten._to_sparse_bsc.default,
)


@handler(*_SPARSE)
def _sparse(_func: Op, _args: Args, _kwargs: Kwargs) -> NoReturn:
    raise NotImplementedError(
        "sharded tensors have no sparse form: use sparse=False for the embeddings (their gradients then lie like the table), "
        "or x.full_tensor() for a sparse tensor of your own"
    )


@handler(aten._nested_tensor_from_tensor_list.default)
def _nested(_func: Op, _args: Args, _kwargs: Kwargs) -> NoReturn:
    raise NotImplementedError(
        "sharded tensors have no nested form: pad the sequences (torch.nn.utils.rnn.pad_sequence) and give a mask"
    )


def _flex(*_args: object, **_kwargs: object) -> NoReturn:
    raise NotImplementedError(
        "flex_attention does not take sharded tensors: use torch.nn.functional.scaled_dot_product_attention with a mask, or "
        "weft.local_map(flex_attention, ...), which runs it on the batches and heads of each device"
    )


flex_attention.py_impl(Tensor)(_flex)
flex_attention_backward.py_impl(Tensor)(_flex)
