"""One of four processes that read a Llama from several files, each its part; started by `test_saving.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import transformers

import weft
from weft import P

PATTERNS = {
    "*embed_tokens.weight": P("tp"),
    "lm_head.weight": P("tp"),
    "*.[qkv]_proj.weight": P("tp"),
    "*.o_proj.weight": P(None, "tp"),
    "*.gate_proj.weight": P("tp"),
    "*.up_proj.weight": P("tp"),
    "*.down_proj.weight": P(None, "tp"),
}


def main(folder: str) -> None:
    transformers.logging.disable_progress_bar()
    mesh = weft.make_mesh({"tp": 4})
    with torch.device("meta"):  # torch notes which functions take a device while they are its own
        torch.empty(0)
    made: list[int] = []
    real = {name: getattr(torch, name) for name in ("empty", "empty_strided")}

    def watched(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def watching(*arguments: object, **options: object) -> torch.Tensor:
            result = make(*arguments, **options)
            is_tensor = not result.is_meta and result.dtype != torch.uint8  # else bytes that go through a bucket
            made.append(result.numel() * result.itemsize if is_tensor else 0)
            return result

        return watching

    for name, make in real.items():
        setattr(torch, name, watched(make))
    model = weft.checkpoint.from_pretrained(transformers.LlamaForCausalLM, folder, mesh, PATTERNS)
    weft.checkpoint.save_pretrained(model, f"{folder}-again", max_file_bytes=8000)
    for name, make in real.items():
        setattr(torch, name, make)
    split = [x for x in model.parameters() if x.dim() == 2]
    whole = min(x.numel() * x.itemsize for x in split)
    words = torch.arange(6)[None]
    print(all(4 * x.local_shards[0].numel() == x.numel() for x in split), max(made) < whole)
    print(round(model(words).logits.full_tensor().double().sum().item(), 4))


if __name__ == "__main__":
    main(sys.argv[1])
