"""The doctor says what a machine has, what Weft makes of it, and what would help; also of machines that are not here."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from weft.cli import main
from weft.drawing.panels import printed
from weft.inspect.doctor import Diagnosis
from weft.inspect.facts import GPU, Facts, facts
from weft.planning import Topology

BARE = Facts(torch="2.13.0", backends=("gloo",), pool=1 << 31, compiler="/usr/bin/c++", memory=16 << 30, has_links=True)
H200 = GPU("NVIDIA H200", 139 << 30, (9, 0))
ONE = replace(
    BARE,
    cuda="13.0",
    triton="3.6.0",
    nccl="2.28.9",
    backends=("gloo", "nccl"),
    gpus=(H200,),
    accelerators=1,
    driver=True,
)
EIGHT = replace(ONE, gpus=(H200,) * 8, accelerators=8)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["doctor", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_says_what_is_here() -> None:
    text = run()
    assert torch.__version__ in text
    assert "Weft uses" in text


def test_it_says_the_same_as_json() -> None:
    said = json.loads(run("--json"))
    assert said["facts"]["torch"] == torch.__version__
    assert len(said["facts"]["gpus"]) == torch.cuda.device_count()
    assert set(said["uses"]) == set(dict(Diagnosis(BARE).uses))


def test_it_needs_neither_triton_nor_a_c_library_that_keeps_memory() -> None:
    code = (
        "import sys\nsys.modules['triton'] = None\nsys.platform = 'other'\n"
        "from weft.inspect import facts\nfound = facts.facts()\nassert found.triton is None and not found.pool, found\n"
        "from weft.inspect.doctor import Diagnosis\nassert dict(Diagnosis(found).uses)['weft.kernels'] == 'not available'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("about", "purpose", "use"),
    [
        (BARE, "movements in one process", "views of one memory: nothing is copied"),
        (ONE, "movements in one process", "views of one memory: nothing is copied"),
        (EIGHT, "movements in one process", "copies from peer to peer"),
        (replace(BARE, separate=True), "movements in one process", "copies between memories that are pretended"),
        (replace(EIGHT, unreachable=((0, 1),)), "movements in one process", "through pinned host memory"),
        (ONE, "reductions in one process", "weft.kernels (Triton): one launch for up to 8 devices"),
        (replace(ONE, triton=None), "reductions in one process", "a chain of torch's adds"),
        (replace(ONE, triton=None), "weft.kernels", "not available"),
        (ONE, "weft.kernels", "compiled for the GPU"),
        (EIGHT, "between processes", "torch.distributed on NCCL for GPUs, Gloo for CPUs"),
        (replace(BARE, backends=()), "between processes", "not available"),
        (ONE, "compiled graphs", "one CUDA graph where all values are on one GPU"),
        (replace(BARE, compiler=None), 'compiled graphs, backend="inductor"', "not available"),
        (ONE, 'compiled graphs, backend="inductor"', "torch.compile with Triton"),
        (ONE, "meshes without named devices", "the accelerators"),
    ],
)
def test_what_weft_makes_of_a_machine(about: Facts, purpose: str, use: str) -> None:
    assert use in dict(Diagnosis(about).uses)[purpose]


@pytest.mark.parametrize(
    ("about", "advice"),
    [
        (replace(BARE, driver=True), "this torch is built for CPUs: install one for CUDA"),
        (replace(BARE, cuda="13.0"), "torch is built for CUDA, but sees no GPU: check nvidia-smi"),
        (replace(EIGHT, triton=None), "Without Triton, reductions on GPUs are chains of adds: pip install"),
        (replace(EIGHT, unreachable=((0, 1), (1, 0))), "2 pairs of GPUs cannot reach each other"),
        (replace(EIGHT, backends=("gloo",), nccl=None), "This torch has no NCCL"),
        (replace(BARE, compiler=None), "install g++ or clang"),
        (replace(BARE, pool=0), "WEFT_HOST_POOL says how much to keep"),
        (replace(BARE, separate=True), "WEFT_SEPARATE_MEMORY makes devices that share memory copy: unset it"),
        (ONE, "WEFT_VIRTUAL_ACCELERATORS=8 lets this GPU stand for eight"),
    ],
)
def test_advice_is_what_to_do(about: Facts, advice: str) -> None:
    (said,) = Diagnosis(about).advice
    assert advice in said
    assert " ".join(said.split()) in " ".join(printed(Diagnosis(about)).split())


@pytest.mark.parametrize("about", [BARE, EIGHT, replace(ONE, accelerators=8)], ids=["no GPU", "eight", "eight virtual"])
def test_nothing_to_improve(about: Facts) -> None:
    assert Diagnosis(about).advice == ()
    assert "Nothing to improve." in printed(Diagnosis(about))


def test_gpus_are_listed() -> None:
    text = printed(Diagnosis(replace(EIGHT, accelerators=16, unreachable=((2, 3),))))
    assert "GPU 7" in text
    assert "NVIDIA H200, 139 GiB, sm_90" in text
    assert "16, 8 of them virtual" in text
    assert "not 2 → 3" in text
    assert "Gloo, NCCL 2.28.9" in text


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (Topology(), "10 GB/s and 10 µs within a host"),
        (
            Topology.preset("h100"),
            "400 GB/s and 8 µs within a host, 45 GB/s and 15 µs between hosts of 8 devices, "
            "22 GB/s and 25 µs between racks of 4 hosts",
        ),
        (
            Topology(hosts=(0, 0, 1)),
            "10 GB/s and 10 µs within a host, 5 GB/s and 20 µs between hosts of different sizes",
        ),
    ],
)
def test_it_says_what_links_there_are(topology: Topology, text: str) -> None:
    said = " ".join(printed(Diagnosis(replace(BARE, topology=topology))).split())
    assert text in said
    assert f"{text} (assumed)" not in said
    assert f"{text} (assumed)" in " ".join(
        printed(Diagnosis(replace(BARE, topology=topology, has_links=False))).split()
    )


@pytest.mark.parametrize(
    ("topology", "text"),
    [
        (Topology(), "4, on one host"),
        (Topology(devices_per_host=2), "4, on hosts of 2 devices"),
        (Topology(hosts=(0, 0, 0, 1)), "4, on 2 hosts"),
    ],
)
def test_it_says_where_processes_are(topology: Topology, text: str) -> None:
    assert f"processes {text} links" in " ".join(
        printed(Diagnosis(replace(BARE, processes=4, topology=topology))).split()
    )


def test_links_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "links.json").write_text('{"host": {"latency": 1}}')
    monkeypatch.setenv("WEFT_TOPOLOGY", str(tmp_path / "links.json"))
    (advice,) = [text for text in Diagnosis(facts()).advice if "No program can plan here" in text]
    assert "links.json is no topology ('host' of a topology is no Link: " in advice
    assert "'bandwidth'): measure it again with `weft bench --links`" in advice


def test_links_that_nobody_has_measured_can_be() -> None:
    assert any("weft bench --links measures these" in text for text in Diagnosis(replace(BARE, has_links=False)).advice)


def test_looking_twice_finds_the_same() -> None:
    assert facts() == facts()
