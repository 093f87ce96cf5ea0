"""What sharded tensors cannot do in torch, each with one sentence that says what to do instead."""

from __future__ import annotations

from typing import NoReturn

import torch

from ..engine.handlers import handler
from ..rules.call import BoundCall

aten = torch.ops.aten

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
def _sparse(call: BoundCall) -> NoReturn:
    raise NotImplementedError(
        "sharded tensors have no sparse form: use sparse=False for the embeddings (their gradients then lie like the table), "
        "or x.full_tensor() for a sparse tensor of your own"
    )


@handler(aten._nested_tensor_from_tensor_list.default, aten._nested_view_from_jagged.default)
def _nested(call: BoundCall) -> NoReturn:
    raise NotImplementedError(
        "sharded tensors have no nested form: pad the sequences (torch.nn.utils.rnn.pad_sequence) and give a mask"
    )


@handler(
    aten.quantize_per_tensor.default,
    aten.quantize_per_tensor.tensor_qparams,
    aten.quantize_per_tensor.tensors,
    aten.quantize_per_tensor_dynamic.default,
    aten.quantize_per_channel.default,
    aten.to_mkldnn.default,
)
def _refused(call: BoundCall) -> NoReturn:
    raise NotImplementedError(
        f"{call} makes a tensor of another kind of memory, which cannot be sharded: call it on x.full_tensor() or on each of x.local_shards"
    )
