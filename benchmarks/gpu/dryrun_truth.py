"""What a dry run says of one GPU, beside what happens there: the peak of memory and the time of a training step.

Four models, which the figures of the machine were not taken from: those are of single products, copies and the smallest op.

    python benchmarks/gpu/dryrun_truth.py                                        about a minute
    python benchmarks/gpu/dryrun_truth.py --model "llama, 2.6 B" --times 5       one model, timed less often
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as torch's users call it

import weft

Program = tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]
WITHIN = {"peak": 0.03, "seconds": 0.15}


class Block(nn.Module):
    """Attention and a gated product, as in Llama."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mixed, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next state of the tokens."""
        batch, length, width = x.shape
        parts = self.mixed(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):
    """A language model, and its loss."""

    def __init__(self, width: int, heads: int, hidden: int, blocks: int, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads, hidden) for _ in range(blocks)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return F.cross_entropy(self.head(self.blocks(self.embedding(ids))).flatten(0, 1), ids.flatten())


class Squared(nn.Module):
    """Any model of features, with a loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.inner(x).float().square().mean()


def _mlp() -> Program:
    layers = [layer for _ in range(8) for layer in (nn.Linear(8192, 8192), nn.GELU())]
    model = Squared(nn.Sequential(*layers)).to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters()), torch.randn(8192, 8192, dtype=torch.bfloat16)


def _images() -> Program:
    layers = []
    for before, after in ((3, 64), (64, 128), (128, 256), (256, 512)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = Squared(nn.Sequential(*layers))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.randn(64, 3, 224, 224)


def _language(width: int, heads: int, hidden: int, blocks: int, batch: int) -> Callable[[], Program]:
    def made() -> Program:
        model = Language(width, heads, hidden, blocks).to(torch.bfloat16)
        ids = torch.randint(0, 32000, (batch, 2048))
        return model, torch.optim.AdamW(model.parameters()), ids

    return made


MODELS: dict[str, Callable[[], Program]] = {
    "mlp, 0.5 B": _mlp,
    "images": _images,
    "llama, 0.6 B": _language(2048, 16, 5632, 10, 8),
    "llama, 2.6 B": _language(4096, 32, 11008, 12, 4),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step of training."""
    model(batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def measured(program: Program, times: int) -> dict[str, float]:
    """The peak of a step, and the median of the time of several."""
    for _ in range(5):
        step(*program)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step(*program)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        step(*program)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {"peak": peak, "seconds": statistics.median(seconds)}


def main() -> None:
    """Prints a row for each model, and what is beyond the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this one; may be given again")
    parser.add_argument("--times", type=int, default=15, help="how many steps are timed")
    options = parser.parse_args()
    machine = weft.Machine.measure("cuda")
    rows = {}
    for name in options.model or MODELS:
        torch.manual_seed(0)
        with torch.device("cuda"):  # where the first values of large models are drawn in no time
            program = MODELS[name]()
        real = measured(program, options.times)
        start = time.perf_counter()
        report = weft.dryrun(step, *program, topology=machine)
        took = time.perf_counter() - start
        said = {"peak": float(report.memory.peak), "seconds": report.seconds}
        rows[name] = {
            what: {"said": said[what], "measured": real[what], "off": said[what] / real[what] - 1} for what in said
        }
        rows[name]["dry run"] = {"seconds": took}
        print(f"{name:14} " + "  ".join(f"{what} {rows[name][what]['off']:+.1%}" for what in said), flush=True)
        del program
        torch.cuda.empty_cache()
    beyond = [
        f"{name}: {what}" for name, row in rows.items() for what, most in WITHIN.items() if abs(row[what]["off"]) > most
    ]
    figures = {"flops": dict(machine.flops), "bandwidth": machine.bandwidth, "launch": machine.launch}
    print(json.dumps({"machine": figures, "models": rows, "beyond": beyond}, indent=2))


if __name__ == "__main__":
    main()
