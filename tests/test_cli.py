"""The command says what a plan would do, without importing torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from weft import cli
from weft.planning import Link, Topology
from weft.planning.topology.keeping import keep_topology


def run(*arguments: str) -> str:
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


SWAP = ["plan", "--mesh", "dp=2,tp=4", "--shape", "8192,8192", "--from", "dp,tp", "--to", "tp,dp"]


def test_a_plan_is_a_table_and_a_drawing():
    text = run(*SWAP)
    assert text.startswith(
        "(dp, tp) -> (tp, dp) on dp=2 × tp=4: 8192 × 8192, 4 bytes an element\n"
        "received 32 MiB on the busiest device, 192 MiB in all; the least possible\n"
    )
    assert "│ 4 │ 5 │ 6 │ 7 │" in text
    assert "exchange" in text


def test_a_plan_is_json_when_asked():
    said = json.loads(run(*SWAP, "--json", "--dtype", "bfloat16"))
    assert said["bytes_received"]["max"] == 16 << 20
    assert said["itemsize"] == 2


def test_layouts_group_axes_and_hold_reductions():
    said = json.loads(
        run("plan", "--mesh", "dp=2,tp=4", "--shape", "64,64", "--from", "dp,- sum@tp", "--to", "dp+tp,-", "--json")
    )
    assert (said["source"]["layout"], said["target"]["layout"]) == ("(dp, –) sum@tp", "(dp·tp, –)")
    assert [step["kind"] for step in said["steps"]] == ["reduce_scatter"]


def test_meshes_may_differ():
    said = json.loads(run(*SWAP[:-1], "x,-", "--to-mesh", "x=4@8", "--topology", "h100", "--json"))
    assert said["target"]["mesh"] == {"x": 4}
    assert said["bytes_received"]["total"] == 256 << 20


def test_a_plan_goes_by_a_file_of_links(tmp_path):
    file = tmp_path / "links.json"
    keep_topology(Topology(host=Link(latency=0.0, bandwidth=float(32 << 20))), file)
    assert json.loads(run(*SWAP, "--topology", str(file), "--json"))["estimated_time"] == 1.0


def test_a_free_order_is_asked_for():
    said = json.loads(
        run("plan", "--mesh", "a=2,b=2", "--shape", "8", "--from", "a+b", "--to", "b+a", "--relabel", "--json")
    )
    assert said["bytes_received"]["total"] == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["--from", "qp,tp"], "unknown mesh axis 'qp': this mesh has 'dp', 'tp'"),
        (["--from", "dp,tp,-"], "'dp,tp,-' says how 3 dims are split, but the shape has 2"),
        (["--mesh", "dp"], "'dp' is no mesh: write it as dp=2,tp=4, or dp=2,tp=4@8 for devices from 8 on"),
        (["--shape", "big"], "'big' is no shape: write it as 8192,8192, or scalar for rank 0"),
        (["--from", "- med@tp"], "unknown reduction 'med': use one of 'sum', 'mean' (or 'avg'), 'max', 'min', 'prod'"),
        (["--memory-limit", "1000"], "fits in 1,000 bytes a device: it needs 67,108,864"),
        (["--memory-limit", "60MB"], "fits in 60,000,000 bytes a device: it needs 67,108,864"),
        (
            ["--memory-limit", "much"],
            "memory_limit is a number of bytes or a text such as '60GB' or '60GiB', but got 'much'",
        ),
        (
            ["--topology", "dgx"],
            "there is no topology 'dgx': use 'cpu', 'pcie', 'a100', 'h100', 'ethernet', 'tpu', or a file",
        ),
    ],
)
def test_errors_say_what_to_write(change, text):
    result = CliRunner().invoke(cli.main, [*SWAP, *change])
    assert result.exit_code == 1
    assert text in result.output


def test_other_commands_are_imported_when_they_are_asked_for(monkeypatch):
    monkeypatch.setattr(cli, "COMMANDS", {"other": "weft.cli:plan_command"})
    assert "other" in run("--help")
    assert "--mesh" in run("other", "--help")


def test_planning_in_a_terminal_does_not_import_torch():
    code = f"import sys\nfrom weft.cli import main\ntry:\n    main({SWAP!r})\nexcept SystemExit as e:\n    assert not e.code\n"
    code += "assert not any(name.split('.')[0] in ('torch', 'numpy') for name in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_package_is_the_command_too():
    done = subprocess.run([sys.executable, "-m", "weft", *SWAP], capture_output=True, text=True, check=True)
    assert done.stdout == run(*SWAP)
