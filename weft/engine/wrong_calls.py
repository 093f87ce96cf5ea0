"""Calls that are wrong: rules and handlers are made for right ones; what is wrong with another, torch says."""

from __future__ import annotations

import torch

from ..rules.call import BoundCall
from .strides.whole_results import whole_results

__all__ = ["STUMBLES", "let_torch_say", "refuse_nested"]

STUMBLES = (ValueError, KeyError, ZeroDivisionError, TypeError)
"""What rules and handlers raise when they meet a call that torch refuses; an `IndexError` is mostly torch's own."""


def let_torch_say(call: BoundCall) -> Exception | None:
    """What torch raises for a call, asked with tensors that have no memory; None where it takes it, or cannot say."""
    try:
        whole_results(call)
    except NotImplementedError:
        return None
    except (RuntimeError, IndexError) as error:
        return error
    return None


def refuse_nested(x: torch.Tensor) -> None:
    """Raises for a nested tensor, whose rows have lengths of their own, and which torch cannot ask for its sizes.

    >>> refuse_nested(torch.ones(2))
    """
    if x.is_nested:
        raise NotImplementedError(
            "sharded tensors have no nested form: pad the sequences (x.to_padded_tensor(0.0), torch.nn.utils.rnn.pad_sequence), and give a mask"
        )
