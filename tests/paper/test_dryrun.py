"""A step on paper: any program, on devices that nobody has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from tests.paper.llama import LAYOUTS, Llama, made, patterns, step
from weft import P
from weft.errors import PaperError
from weft.planning import step_between
from weft.planning.costs.cost import staged, step_time


def thought_of(**sizes: int) -> weft.DeviceMesh:
    count = 1
    for size in sizes.values():
        count *= size
    return weft.make_mesh(sizes, devices=[weft.Accelerator(1000 + i) for i in range(count)])


def on(mesh: weft.DeviceMesh, names: dict[str, P], spec: P, batch: int) -> tuple[nn.Module, object, torch.Tensor]:
    with torch.device("meta"):
        model = weft.nn.shard_module(Llama(), mesh, names)
        ids = weft.shard(torch.empty(batch, 32, dtype=torch.int64), mesh, spec)
    assert isinstance(ids, torch.Tensor)
    return model, torch.optim.AdamW(model.parameters()), ids


def test_a_mesh_of_devices_that_nobody_has_keeps_modules_without_values() -> None:
    model, _, ids = on(thought_of(dp=1280, tp=8), patterns("tp", None), P("dp"), 1280)
    weight = model.blocks[0].query.weight  # type: ignore[index, union-attr]
    assert weight.is_meta
    assert weight.mapping.spec == P("tp", None)  # type: ignore[union-attr]
    assert [x.shape for x in weight.local_shards] == [(8, 64)]  # type: ignore[union-attr, misc]
    assert ids.is_meta


def test_values_on_devices_that_nobody_has_are_refused() -> None:
    mesh = thought_of(dp=2)
    with pytest.raises(ValueError, match=r"Accelerator\(1000\) does not exist: this machine has"):
        weft.shard(torch.ones(4), mesh, P("dp"))
    with pytest.raises(ValueError, match=r"Accelerator\(1000\) does not exist"):
        weft.zeros(4, mapping=weft.NamedMapping(mesh, P("dp")))


def test_ten_thousand_devices_are_as_many_as_eight() -> None:
    few = weft.dryrun(step, *on(thought_of(dp=2, tp=4), patterns("tp", None), P("dp"), 16), topology="h100")
    many = weft.dryrun(step, *on(thought_of(dp=2560, tp=4), patterns("tp", None), P("dp"), 20480), topology="h100")
    assert many.devices == 10240
    assert many.memory.peak == few.memory.peak
    assert many.flops == few.flops
    assert len(many.operations) == len(few.operations)


class Attention(nn.Module):
    """Of Llama 8B: 32 heads of queries, 8 of keys, 128 features."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096)
        self.query, self.key, self.value, self.out = (
            nn.Linear(*each, bias=False, dtype=torch.bfloat16) for each in sizes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = [of(x).unflatten(-1, (-1, 128)).transpose(1, 2) for of in (self.query, self.key, self.value)]
        mixed = nn.functional.scaled_dot_product_attention(*given, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_llama_8b_at_128k_tokens_shares_its_sequence_out() -> None:
    """A device of 8 computes an eighth, holds an eighth beside weights and what arrives, and receives what the page on attention says."""
    tokens, reports = 1 << 17, []
    for devices in (1, 8):
        mesh = thought_of(sp=devices)
        with torch.device("meta"):
            module = weft.nn.shard_module(Attention(), mesh, {})
            x = weft.shard(torch.empty(1, tokens, 4096, dtype=torch.bfloat16), mesh, P(None, "sp"))
        with torch.no_grad():
            reports.append(weft.dryrun(module, x, topology="h100"))
    one, eighth = reports
    weights = 2 * 2 * 4096 * (4096 + 1024)
    assert eighth.flops == pytest.approx(one.flops / 8, rel=0.05)
    arriving = eighth.memory.at_peak["movements"]
    assert eighth.memory.peak - weights - arriving <= (one.memory.peak - weights) / 8
    assert arriving <= eighth.bytes_received
    assert eighth.bytes_by("axis") == {"sp": 280 << 20}


def test_what_is_given_stays_as_it_was() -> None:
    model, optimizer, ids = made("heads and replicas")
    before = [x.full_tensor().clone() for x in model.parameters()]  # type: ignore[attr-defined]
    weft.dryrun(step, model, optimizer, ids)
    assert all(x.grad is None for x in model.parameters())
    assert not optimizer.state
    for x, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(x.full_tensor(), old)  # type: ignore[attr-defined]
    step(model, optimizer, ids)
    assert all(x.grad is not None for x in model.parameters())


def test_a_function_may_take_what_it_needs_from_around_it() -> None:
    model, optimizer, ids = made("heads and replicas")
    around = weft.dryrun(lambda: step(model, optimizer, ids), topology="h100")
    given = weft.dryrun(step, model, optimizer, ids, topology="h100")
    assert around.memory.peak == given.memory.peak
    assert around.bytes_by("axis") == given.bytes_by("axis")


def test_a_tensor_that_was_not_given_is_told() -> None:
    model, _, ids = made("heads and replicas")
    hidden = {"model": model}
    with pytest.raises(
        PaperError, match=r"that the dry run was not given: give the model, the optimizer and the batch"
    ):
        weft.dryrun(lambda ids: hidden["model"](ids) + 1, ids)


def test_plain_programs_run_on_one_device() -> None:
    model = Llama()
    report = weft.dryrun(step, model, torch.optim.AdamW(model.parameters()), torch.zeros(4, 32, dtype=torch.int64))
    assert report.memory.most["parameters"] == sum(x.nbytes for x in model.parameters())
    assert report.devices == 1
    assert not report.movements


def test_reading_a_value_is_refused_with_the_way_out() -> None:
    x = weft.shard(torch.ones(8), weft.make_mesh({"dp": 4}), P("dp"))
    line = r"test_dryrun.py:\d+ reads the value of a tensor, but on paper tensors have none: say what to go on with, weft.assume\(x, value\)"
    with pytest.raises(PaperError, match=line):
        weft.dryrun(lambda x: x.sum().item(), x)
    with pytest.raises(PaperError, match=line):
        weft.dryrun(lambda x: x.nonzero(), torch.empty(4, device="meta"))
    with pytest.raises(PaperError, match=line):
        weft.dryrun(lambda x: x[x > 0], torch.empty(4, device="meta"))
    with pytest.raises(PaperError, match=r"weft\.assume"):
        weft.dryrun(lambda x: x.tolist(), x)


def test_what_is_assumed_is_read_and_what_follows_from_it_is_known() -> None:
    x = weft.shard(torch.ones(8), weft.make_mesh({"dp": 4}), P("dp"))
    seen: list[object] = []

    def program(x: torch.Tensor) -> None:
        loss = weft.assume(x.sum(), 2.5)
        seen.extend([loss.item(), bool(loss > 2), (loss * 2).item()])
        mask = weft.assume(x > 0, [True, False] * 4)
        seen.append(tuple(mask.nonzero().shape))
        seen.append(int(torch.arange(5, device=x.device).sum()))

    weft.dryrun(program, x)
    assert seen == [2.5, True, 5.0, (4, 1), 10]
    assert weft.assume(x, 3.0) is x
    assert x.sum().item() == 8
    with pytest.raises(ValueError, match=r"assume gives a tensor of shape \(8,\) a value of shape \(3,\)"):
        weft.dryrun(lambda x: weft.assume(x, [1, 2, 3]), x)
    assert weft.assume(x, [1.0] * 8) is x
    for value in ([1, 2, 3], torch.ones(8, 1), [[1.0] * 8]):
        with pytest.raises(ValueError, match=r"assume gives a tensor of shape \(8,\) a value of shape"):
            weft.assume(x, value)  # where it is not on paper, too


def test_numbers_of_rows_are_looked_up_without_their_values() -> None:
    mesh = thought_of(dp=4)
    with torch.device("meta"):
        x = weft.shard(torch.empty(64, 8), mesh, P("dp")).requires_grad_()
        rows = weft.shard(torch.empty(16, dtype=torch.int64), mesh, P("dp"))
    shapes: list[torch.Size] = []
    weft.dryrun(lambda x, rows: shapes.append(x[rows].shape), x, rows, topology="h100")
    weft.dryrun(lambda x, rows: x[rows].sum().backward(), x, rows, topology="h100")
    assert shapes == [(16, 8)]


def test_wrong_calls_are_told() -> None:
    x = torch.ones(4)
    with pytest.raises(TypeError, match="dryrun takes a function and what to call it with, but got 3 to call"):
        weft.dryrun(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown machine 'abacus': use one of 'cpu', 'h100', 'h200'"):
        weft.dryrun(lambda x: x + 1, x, topology="abacus")
    with pytest.raises(TypeError, match="topology= is the name of a machine"):
        weft.dryrun(lambda x: x + 1, x, topology=3)  # type: ignore[arg-type]
    with pytest.raises(PaperError, match="a dry run is under way already"):
        weft.dryrun(lambda x: weft.dryrun(lambda y: y, x), x)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        weft.dryrun(lambda x: x + 1, x).perfetto("nowhere/step.json")
    with pytest.raises(ValueError, match="bytes_by takes one of 'axis', 'tier'"):
        weft.dryrun(lambda x: x + 1, x).bytes_by("colour")
    assert torch.equal(weft.shard(x, weft.make_mesh({"dp": 2}), P("dp")).full_tensor(), x)  # type: ignore[attr-defined]


def test_errors_of_the_program_leave_no_paper_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        weft.dryrun(lambda x: 1 // 0, torch.ones(2))
    assert weft.zeros(4, mapping=weft.NamedMapping(weft.make_mesh({"dp": 2}), P("dp"))).sum().item() == 0


def test_lines_are_those_of_the_program_also_in_backward_passes() -> None:
    report = weft.dryrun(step, *made("heads and replicas"), topology="h100")
    lines = {
        (each.line.where.rpartition("/")[2].partition(":")[0], each.line.is_backward) for each in report.operations
    }
    assert lines == {("llama.py", False), ("llama.py", True)}
    source = Path(__file__).with_name("llama.py").read_text().splitlines()
    products = {
        source[int(each.line.where.rpartition(":")[2]) - 1].strip()
        for each in report.operations
        if each.op == "mm" and each.line.is_backward
    }
    assert any("self.down(F.silu" in line for line in products)
    assert any("of(y).view" in line for line in products)


def test_work_and_bytes_are_what_they_are() -> None:
    mesh = thought_of(dp=64, tp=8)
    with torch.device("meta"):
        x = weft.shard(torch.empty(4096, 1024, dtype=torch.bfloat16), mesh, P("dp", None))
        w = weft.shard(torch.empty(1024, 8192, dtype=torch.bfloat16), mesh, P(None, "tp"))
    report = weft.dryrun(lambda x, w: weft.all_gather(x @ w, 1), x, w, topology="h100")
    assert report.flops == 2 * 64 * 1024 * 1024
    assert report.bytes_by("axis") == {"tp": 64 * 8192 * 2 * 7 // 8}
    assert report.bytes_by("tier") == {"host": 64 * 8192 * 2 * 7 // 8}
    assert report.bytes_by("op") == {"all_gather": 64 * 8192 * 2 * 7 // 8}
    machine = weft.Machine.preset("h100")
    assert report.seconds == pytest.approx(report.computing + report.moving)
    assert report.moving == pytest.approx(machine.topology.host.time(64 * 8192 * 2 * 7 // 8))


def test_layers_that_come_whole_in_inference_mode_are_counted() -> None:
    mesh = thought_of(dp=8)
    with torch.device("meta"), torch.inference_mode():
        x, w = (weft.shard(torch.empty(shape), mesh, P("dp")) for shape in ((16, 4, 32), (8, 32, 64)))
        weight = weft.shard(torch.empty(64, 32), mesh, P())
        report = weft.dryrun(lambda: (nn.functional.linear(x, weight), x[:8] @ w), topology="h100")
    assert report.flops == 2 * (2 * 4 * 32 * 64) + 2 * (4 * 32 * 64)


def test_movements_take_what_plans_are_priced_by() -> None:
    mesh = thought_of(dp=2, tp=8)
    topology = weft.Machine.preset("h100").topology
    with torch.device("meta"):
        x, w = (weft.shard(torch.empty(4096, 4096), mesh, spec) for spec in (P(None, ("dp", "tp")), P(("dp", "tp"))))
    report = weft.dryrun(lambda x, w: weft.all_reduce(x @ w), x, w, topology="h100")
    (moved,) = report.movements
    step = step_between(moved.record.source, moved.record.target, (4096, 4096), 4)
    through_hosts = staged(step, topology)
    assert through_hosts.stages is not None
    assert moved.seconds == step_time(through_hosts, topology)
    assert moved.seconds < topology.rack.time(moved.record.bytes_received)


def test_one_may_say_ones_own_machine() -> None:
    slow = weft.Machine("slow", {4: 1e9}, 1 << 20, 1e9, weft.Topology(), products=1.0, streaming=1.0, launch=0.0)
    report = weft.dryrun(lambda x: x @ x, torch.ones(100, 100), topology=slow)
    assert report.seconds == pytest.approx(2e6 / 1e9)
    tight = weft.Machine("tight", {4: 1e9}, 1000, 1e9, weft.Topology())
    report = weft.dryrun(lambda x: x @ x, torch.ones(100, 100), topology=tight)
    assert "the step does not fit: 78.12 KiB on the fullest device, which has 1000 B" in str(report)
    with pytest.raises(ValueError, match="a machine needs operations a second by bytes of a number"):
        weft.Machine("none", {}, 1, 1.0, weft.Topology())


def looked_up(ids: torch.Tensor, table: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = nn.functional.embedding(ids, table)  # here
    return (x @ weight.T).relu()


def test_a_batch_whose_split_is_lost_is_found_with_its_line() -> None:
    mesh = thought_of(dp=64, tp=8)
    with torch.device("meta"):
        ids = weft.shard(torch.empty(64, 4096, dtype=torch.int64), mesh, P("dp"))
        table = weft.shard(torch.empty(128256, 8192), mesh, P("tp", "dp"))
        weight = weft.shard(torch.empty(28672, 8192), mesh, P("tp", "dp"))
    for x in (table, weight):
        x.requires_grad_()
    (lost,) = (
        each for each in weft.dryrun(looked_up, ids, table, weight, topology="h100").findings if "lost" in each.what
    )
    assert "the batch is gathered by aten.embedding.default at paper/test_dryrun.py:" in lost.what
    assert "its split over 'dp' is lost" in lost.what
    line = Path(__file__).read_text().splitlines()[int(lost.line.rpartition(":")[2]) - 1]
    assert line.endswith("# here")
    rows = weft.shard(table, mesh, P(("tp", "dp")))
    mended = weft.dryrun(looked_up, ids, rows, weight, topology="h100")
    assert not any("lost" in each.what for each in mended.findings)
    assert mended.bytes_received < lost.nbytes / 4


def test_a_layer_that_moves_gigabytes_is_warned_of_where_it_is_written() -> None:
    mesh = thought_of(dp=64, tp=8)
    with torch.device("meta"):
        x = weft.shard(torch.empty(64, 4096, 8192, dtype=torch.bfloat16), mesh, P(None, None, "dp"))
        weight = nn.Parameter(weft.shard(torch.empty(28672, 8192, dtype=torch.bfloat16), mesh, P("tp", "dp")))
    with weft.reshard_policy("warn"), pytest.warns(weft.DriftWarning) as told:
        nn.functional.linear(x, weight)
    (text,) = (str(each.message) for each in told)
    assert "test_dryrun.py:" in text
    assert "3.445 GiB for the sum that it leaves over 'dp'" in text
    assert "Lay the tensor of shape (64, 4096, 8192) out as P('dp', None, None)" in text


def test_a_batch_that_is_whole_everywhere_is_found_with_its_line() -> None:
    mesh = thought_of(dp=64, tp=8)
    report = weft.dryrun(step, *on(mesh, patterns("tp", "dp"), P(), 64), topology="h100")
    found = next(each for each in report.findings if "whole on every device" in each.what)
    assert "paper/llama.py:" in found.what
    assert "weft.shard(batch, mesh, P('dp'))" in found.fix
    split = weft.dryrun(step, *on(mesh, patterns("tp", "dp"), P("dp"), 64), topology="h100")
    assert split.bytes_received < found.nbytes / 4
    assert not any("batch" in each.what for each in split.findings)


def test_weights_that_are_gathered_to_be_used_are_no_finding() -> None:
    mesh = thought_of(dp=64)
    report = weft.dryrun(step, *on(mesh, patterns(None, "dp"), P("dp"), 64), topology="h100")
    assert report.bytes_by("kind").keys() >= {"all_gather", "reduce_scatter"}
    assert not report.findings


def test_memory_is_told_by_what_it_is_for_and_who_made_it() -> None:
    report = weft.dryrun(step, *made("heads and replicas"), topology="h100")
    assert sum(report.memory.at_peak.values()) == report.memory.peak
    assert sum(each.nbytes for each in report.memory.largest) == report.memory.peak
    kept = [each for each in report.memory.largest if each.kind == "kept for backward"]
    assert all("llama.py" in each.line.where for each in kept)
    assert max(sum(held) for _, held in report.curve()) == report.memory.peak


def test_an_optimizer_that_has_taken_steps_brings_its_state() -> None:
    model, optimizer, ids = made("split weights")
    step(model, optimizer, ids)
    report = weft.dryrun(step, model, optimizer, ids, topology="h100")
    assert report.memory.most["optimizer state"] == 2 * report.memory.most["parameters"]
    assert all(x.grad is not None for x in model.parameters())


def test_a_trace_for_perfetto(tmp_path: Path) -> None:
    report = weft.dryrun(step, *made("heads and replicas"), topology="h100")
    report.perfetto(tmp_path / "step.json")
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(report.operations) + len(report.movements)
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(report.seconds * 1e6)
    assert any(event["ph"] == "C" for event in events)


def test_a_report_says_it_on_one_screen() -> None:
    text = str(weft.dryrun(step, *made("heads and replicas"), topology="h100"))
    assert text.startswith("A step on 4 h100: dp=2 × tp=2\n  time")
    for words in ("computing", "exposed", "kept for backward", "by axis", "by tier", "paper/llama.py:"):
        assert words in text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_runs_on_paper_as_in_one_memory(layout: str) -> None:
    model, optimizer, ids = made(layout)
    report = weft.dryrun(step, model, optimizer, ids, topology="h100")
    with weft.comm_log() as log:
        step(model, optimizer, ids)
    assert report.bytes_received == log.bytes_received


def test_what_is_begun_early_is_hidden_behind_what_is_computed() -> None:
    mesh = thought_of(tp=8)
    with torch.device("meta"):
        x, w = (weft.shard(torch.empty(4096, 4096), mesh, P("tp")) for _ in range(2))

    def at_once(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = weft.all_gather(x)
        for _ in range(8):
            w = w.sin()
        return y + weft.all_gather(w)

    def ahead(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = weft.all_gather(x, async_op=True)
        for _ in range(8):
            w = w.sin()
        return y + weft.all_gather(w)

    late, early = (weft.dryrun(each, x, w, topology="h100") for each in (at_once, ahead))
    assert late.hidden == 0
    assert late.moving == pytest.approx(early.moving)
    assert 0 < early.hidden < early.moving
    assert early.seconds == pytest.approx(late.seconds - early.hidden)
    assert early.exposed + early.hidden == pytest.approx(early.moving)


def test_blocks_that_come_and_go_are_held_while_they_are_there() -> None:
    mesh = weft.make_mesh({"dp": 4})
    model = weft.nn.fully_shard(Llama(blocks=4), mesh, blocks="blocks.*", keep_bytes=0)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = weft.shard(torch.zeros(8, 32, dtype=torch.int64), mesh, P("dp"))
    report = weft.dryrun(step, model, optimizer, ids, topology="h100")
    whole = sum(x.nbytes for x in Llama(blocks=4).parameters())
    gathered = report.memory.most["movements"] + report.memory.most["kept for backward"]
    assert report.memory.most["parameters"] == sum(x.local_shards[0].nbytes for x in model.parameters())  # type: ignore[attr-defined]
    assert report.memory.most["movements"] < whole / 2 < gathered
    with weft.comm_log() as log:
        step(model, optimizer, ids)  # type: ignore[arg-type]
    assert report.bytes_received == log.bytes_received


def test_a_split_optimizer_holds_and_moves_on_paper_what_it_does() -> None:
    mesh = weft.make_mesh({"dp": 4})
    model = weft.nn.shard_module(Llama(blocks=1), mesh, {})
    optimizer = weft.nn.shard_optimizer(torch.optim.AdamW(model.parameters()))
    ids = weft.shard(torch.zeros(8, 32, dtype=torch.int64), mesh, P("dp"))
    report = weft.dryrun(step, model, optimizer, ids, topology="h100")
    with weft.comm_log() as log:
        step(model, optimizer, ids)
    assert report.bytes_received == log.bytes_received
    assert report.bytes_by("kind")["all_gather"] == sum(r.bytes_received for r in log if r.kind == "all_gather")
    held = sum(x.local_shards[0].nbytes for state in optimizer.state.values() for x in state.values() if x.dim())
    assert report.memory.most["optimizer state"] == pytest.approx(held, rel=0.01)


def test_what_rests_in_host_memory_takes_none_of_the_device() -> None:
    mesh = weft.make_mesh({"dp": 4}, devices=[weft.Accelerator(i) for i in range(4)])
    reports = []
    for offload in (None, "cpu"):
        with torch.device("meta"):
            model = weft.nn.fully_shard(Llama(blocks=2), mesh, blocks="blocks.*", offload=offload)
            ids = weft.shard(torch.zeros(8, 32, dtype=torch.int64), mesh, P("dp"))
        optimizer = torch.optim.AdamW(model.parameters())
        reports.append(weft.dryrun(step, model, optimizer, ids, topology="h100"))
    held, away = (report.memory.most for report in reports)
    assert {"parameters", "gradients", "optimizer state"} <= set(held)
    assert not {"parameters", "gradients", "optimizer state"} & set(away)
    assert reports[0].bytes_received == reports[1].bytes_received


@pytest.mark.parametrize("split", [None, P("dp")], ids=str)
def test_an_accelerator_keeps_the_input_of_a_norm_and_a_number_for_each_row(split: P | None) -> None:
    """It has one kernel for the norm; a host has none, and keeps what its ops make on the way."""
    mesh = weft.make_mesh({"dp": 2, "tp": 2}, devices=[weft.Accelerator(i) for i in range(4)])
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.RMSNorm(64, dtype=torch.bfloat16) for _ in range(4)))
        x = torch.empty(128, 64, dtype=torch.bfloat16)
        if split is not None:
            x, model = weft.shard(x, mesh, split), weft.nn.shard_module(model, mesh, {})

    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        model(x).sum().backward()

    kept = [
        weft.dryrun(step, model, x, topology=where).memory.most["kept for backward"]
        for where in ("h100", *(["cpu"] if split is None else []))
    ]
    rows = 128 if split is None else 64
    assert kept[0] == pytest.approx(4 * rows * 4 + 3 * rows * 64 * 2, rel=0.4)
    assert split is not None or kept[1] > 2 * kept[0]


@pytest.mark.parametrize("machine", ["h100", "cpu"])
@pytest.mark.parametrize("split", [None, P("dp")], ids=str)
def test_what_is_computed_anew_takes_the_same_kernels(split: P | None, machine: str) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mixed = nn.RMSNorm(64), nn.Linear(64, 192)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.mixed(self.norm(x)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
            return x + nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)

    def step(model: nn.Module, x: torch.Tensor, anew: bool) -> None:
        for block in model:
            x = checkpoint(block, x, use_reentrant=False) if anew else block(x)
        x.square().mean().backward()

    model, x = nn.ModuleList(Block() for _ in range(3)), torch.randn(4, 128, 64)
    if split is not None:
        mesh = weft.make_mesh({"dp": 4})
        model, x = weft.nn.shard_module(model, mesh, {}), weft.shard(x, mesh, split)
    kept, anew = (weft.dryrun(step, model, x, each, topology=machine) for each in (False, True))
    forward = weft.dryrun(lambda model, x: [x := block(x) for block in model], model, x, topology=machine)
    assert anew.flops == pytest.approx(kept.flops + forward.flops, rel=0.02)
    assert anew.memory.most["kept for backward"] < 0.6 * kept.memory.most["kept for backward"]


@pytest.mark.parametrize(
    ("devices", "hides"), [(weft.CPU, True), (weft.Accelerator, False)], ids=["hosts", "accelerators"]
)
def test_gradients_of_replicas_travel_while_the_way_back_goes_on(devices, hides):
    mesh = weft.make_mesh({"dp": 4}, devices=[devices(i) for i in range(4)])
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(3)))
        batch = weft.shard(torch.empty(4096, 512), mesh, P("dp"))
    weft.nn.shard_module(model, mesh, {})
    report = weft.dryrun(lambda model, x: model(x).square().mean().backward(), model, batch, topology="h100")
    gradients = [each for each in report.movements if each.record.op == "gradient"]
    assert len(gradients) == 3
    assert [each.exposed == 0 for each in gradients] == [hides] * 3  # nobody has asked for them yet


def test_a_device_computes_or_waits_for_something_that_moves() -> None:
    """An optimizer asks first for the gradient that came last: what it waits for are all that are still on their way."""
    mesh = weft.make_mesh({"dp": 4}, devices=[weft.CPU(i) for i in range(4)])
    with torch.device("meta"):
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(6)))
        batch = weft.shard(torch.empty(64, 2048), mesh, P("dp"))
    weft.nn.shard_module(model, mesh, {})

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        model(x).square().mean().backward()
        optimizer.step()

    report = weft.dryrun(step, model, torch.optim.SGD(model.parameters()), batch, topology="h100")
    gradients = [each for each in report.movements if each.record.op == "gradient"]
    assert sum(each.exposed > 0 for each in gradients) > 1, "they have all arrived: there is nothing to test"
    assert all(each.exposed <= each.seconds * (1 + 1e-9) for each in report.movements)
    assert report.hidden > 0
    assert report.computing + report.exposed == pytest.approx(report.seconds)


def test_what_a_device_computes_by_a_program_of_its_own_is_counted() -> None:
    mesh = thought_of(dp=4)
    with torch.device("meta"):
        convolution = weft.nn.shard_module(nn.Conv2d(3, 8, 3, padding=1, bias=False), mesh, {})
        x = weft.shard(torch.empty(8, 3, 16, 16), mesh, P("dp"))
    report = weft.dryrun(lambda: convolution(x).sum().backward(), topology="h100")
    forward = 2 * 2 * 8 * 16 * 16 * 3 * 9  # two pictures on a device
    assert 2 * forward <= report.flops < 2.05 * forward  # and the gradient of the weights


def test_rings_go_round_on_paper() -> None:
    mesh = thought_of(sp=8)
    x = weft.shard(torch.empty(1, 8, 1024, 64, device="meta"), mesh, P(None, None, "sp"))
    attention = nn.functional.scaled_dot_product_attention
    with weft.prefer("ring"):
        report = weft.dryrun(lambda: [attention(x, x, x, is_causal=True) for _ in range(2)], topology="h100")
    whole = 2 * (4 * 8 * 1024 * 1024 * 64)
    assert 0.4 * whole / 8 < report.flops < 1.1 * whole / 8
