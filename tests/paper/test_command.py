"""`weft dryrun`: files that were written for real devices."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

import weft
from weft.cli import main

PROGRAM = """
import sys, torch, weft
from weft import P

devices = weft.devices()
mesh = weft.make_mesh({"dp": len(devices) // 8, "tp": 8})
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
model = weft.nn.shard_module(model, mesh, {"0.*": P("tp"), "2.weight": P(None, "tp")})
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
for step in range(1000):
    batch = weft.shard(torch.randn(len(devices), 256), mesh, P("dp"))
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    READ
"""


def run(tmp_path: Path, read: str, *options: str) -> tuple[int, str]:
    (tmp_path / "train.py").write_text(PROGRAM.replace("READ", read))
    done = CliRunner().invoke(main, ["dryrun", str(tmp_path / "train.py"), "0.1", *options])
    return done.exit_code, done.output


def test_a_file_runs_until_its_optimizer_has_taken_a_step(tmp_path: Path) -> None:
    files = tmp_path / "step.html", tmp_path / "step.json"
    status, said = run(tmp_path, "", "--devices", "10240", "--html", str(files[0]), "--perfetto", str(files[1]))
    assert status == 0, said
    assert said.startswith("A step on 10,240 h100: dp=1280 × tp=8")
    assert "parameters" in said
    assert "train.py:13 (backward)" in said
    assert "A step on 10,240 h100" in files[0].read_text()
    assert "traceEvents" in files[1].read_text()
    assert len(weft.devices()) < 10240


def test_several_steps_and_what_they_read(tmp_path: Path) -> None:
    status, said = run(tmp_path, "print(loss.item())", "--devices", "16", "--steps", "2")
    assert status == 1
    assert "train.py:15 reads the value of a tensor" in said
    status, said = run(tmp_path, "print(weft.assume(loss, 1.5).item())", "--devices", "16", "--steps", "2")
    assert status == 0, said
    assert said.startswith("1.5\nA step on 16 h100")
