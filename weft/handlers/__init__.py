"""Ops that need more than a rule. Importing the package fills the table of handlers."""

from ..rules import table  # noqa: F401 - the rules that handlers go on from
from . import (  # noqa: F401
    composed_outs,
    creation_like,
    distances,
    embedding,
    indexing,
    linear_algebra,
    loss_scaling,
    metadata_writes,
    overwriting,
    packing,
    quantiles,
    random_numbers,
    recurrent_gradients,
    recurrent_states,
    settled_sizes,
    shared_memory,
    tangents,
    unsupported,
)
from .attention import kernel_choice, split_attention  # noqa: F401
from .labels import label_sequences, one_hot  # noqa: F401
from .lists import elementwise, tensor_by_tensor  # noqa: F401 - tensor by tensor what is not by element
from .products import einsum, folded_products, whole_products  # noqa: F401
from .ragged import grouped_products  # noqa: F401
from .rearranged import edge_padding, gating, joining, padding, shifting  # noqa: F401
from .split_dims import (  # noqa: F401
    batch_norm,
    best_of_parts,
    foreach_norm,
    layer_norm,
    losses,
    reductions,
    scanning,
    split_softmax,
    swap_split,
)
from .views import as_strided, beginnings, reshaping, slicing, unfolding  # noqa: F401
from .windows import convolution, pooling  # noqa: F401
