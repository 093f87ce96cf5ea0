"""What is wrong is said before anything is launched, with the values, the rule and the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.kernels.participants import DEVICE, contexts, signals
from weft.kernels import (
    SIGNAL_BYTES,
    DeviceContext,
    DistributedAllGather,
    DistributedAllReduce,
    DistributedAllToAll,
    DistributedBroadcast,
    DistributedReduceScatter,
)
from weft.kernels.program import INTERPRETED

ROOT = Path(__file__).parents[2]


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def broadcast(outputs=None, source=None, buffers=None, who=None, **options):
    DistributedBroadcast.execute(
        [zeros(3), zeros(3)] if outputs is None else outputs,
        zeros(3) if source is None else source,
        signals(2) if buffers is None else buffers,
        contexts(2) if who is None else who,
        **options,
    )


def word(size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device=DEVICE)


BUFFER = SIGNAL_BYTES // 4

WRONG_BROADCASTS = {
    "DistributedBroadcast: takes 1 to 8 devices, but dev_ctxs_input has 9.": {
        "outputs": [zeros(3)] * 9,
        "buffers": signals(9),
        "who": contexts(9),
    },
    "DistributedBroadcast: takes 1 to 8 devices, but dev_ctxs_input has 0.": {"outputs": [], "buffers": [], "who": []},
    "DistributedBroadcast: 2 devices need as many outputs, but got 3.": {"outputs": [zeros(3)] * 3},
    "DistributedBroadcast: 2 devices need as many signal buffers, but got 1.": {"buffers": signals(1)},
    "DistributedBroadcast: outputs[1] has shape (4,), but (3,) is needed.": {"outputs": [zeros(3), zeros(4)]},
    "DistributedBroadcast: outputs[0] has dtype torch.int32, but torch.float32 is needed.": {
        "outputs": [zeros(3, dtype=torch.int32), zeros(3, dtype=torch.int32)]
    },
    "DistributedBroadcast: outputs have one dtype, but outputs[0] is torch.float32 and outputs[1] is torch.int32.": {
        "outputs": [zeros(3), zeros(3, dtype=torch.int32)]
    },
    "DistributedBroadcast: root is the index of one of the 2 devices, but got 2.": {"root": 2},
    f"a signal buffer has at least {SIGNAL_BYTES} bytes at a multiple of 4, but signal_buffers[1] has 40": {
        "buffers": [word(BUFFER), word(10)]
    },
    "a signal buffer is a contiguous int32 or uint8 tensor, but signal_buffers[0] is torch.float32": {
        "buffers": [word(BUFFER, torch.float32), word(BUFFER)]
    },
    "each device needs a signal buffer of its own, but two are the same memory. "
    "Make one for each device with weft.kernels.signal_buffer(device).": {"buffers": signals(1) * 2},
    "outputs[0] and outputs[1] overlap in memory. "
    "Outputs must be one and the same tensor or lie apart: allocate them separately.": {
        "outputs": list(torch.zeros(4, device=DEVICE).unfold(0, 3, 1))
    },
    "elements of outputs[1] share memory (shape (3,), strides (0,))": {"outputs": [zeros(3), zeros(1).expand(3)]},
    "outputs[0] is torch.sparse_coo. The kernels work on dense tensors: use to_dense().": {
        "outputs": [zeros(3).to_sparse(), zeros(3)]
    },
}


@pytest.mark.parametrize("message", WRONG_BROADCASTS)
def test_a_wrong_broadcast_says_why(message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole text is compared below
        broadcast(**WRONG_BROADCASTS[message])
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("run", "outputs", "inputs", "options", "message"),
    [
        (
            DistributedAllReduce,
            [zeros(3), zeros(3)],
            [zeros(3), zeros(4)],
            {},
            "DistributedAllReduce: inputs[1] has shape (4,), but (3,) is needed.",
        ),
        (
            DistributedAllReduce,
            [zeros(3), zeros(3)],
            [zeros(3), zeros(3)],
            {"reduce_op": "median"},
            "DistributedAllReduce: reduce_op is one of 'sum', 'mean', 'max', 'min', 'prod', but got 'median'.",
        ),
        (
            DistributedAllReduce,
            [zeros(3, dtype=torch.bool)] * 2,
            [zeros(3, dtype=torch.bool)] * 2,
            {},
            "DistributedAllReduce: torch.bool has no 'sum'. It has 'max', 'min', 'prod': convert to a dtype that has it.",
        ),
        (
            DistributedAllReduce,
            [zeros(3, dtype=torch.float8_e5m2)] * 2,
            [zeros(3, dtype=torch.float8_e5m2)] * 2,
            {},
            "DistributedAllReduce: torch.float8_e5m2 tensors are moved but not reduced.",
        ),
        (
            DistributedReduceScatter,
            [zeros(2), zeros(2)],
            [zeros(3), zeros(3)],
            {},
            "DistributedReduceScatter: outputs[1] has shape (2,), but (1,) is needed.",
        ),
        (
            DistributedReduceScatter,
            [zeros(2, 2)[0], zeros(2, 2)[0]],
            [zeros(3), zeros(3)],
            {"axis": 1},
            "DistributedReduceScatter: axis 1 is not a dim of a tensor with shape (3,).",
        ),
        (
            DistributedAllGather,
            [zeros(6), zeros(6)],
            [zeros(3), zeros(4)],
            {},
            "DistributedAllGather: outputs[0] has shape (6,), but (7,) is needed.",
        ),
        (
            DistributedAllGather,
            [zeros(6), zeros(6)],
            [zeros(3), zeros(3, 1)],
            {},
            "DistributedAllGather: inputs[1] has shape (3, 1), but (3,) is needed.",
        ),
        (
            DistributedAllToAll,
            [zeros(4), zeros(4)],
            [zeros(3), zeros(3)],
            {},
            "DistributedAllToAll: outputs[1] has shape (4,), but (2,) is needed.",
        ),
    ],
)
def test_a_wrong_collective_says_why(run, outputs, inputs, options, message):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the whole text is compared below
        run.execute(outputs, inputs, signals(2), contexts(2), **options)
    assert message in str(raised.value)


def test_outputs_that_differ_must_lie_apart():
    shared = zeros(2)
    with pytest.raises(ValueError, match=r"outputs\[0\] and outputs\[1\] overlap in memory. Outputs must lie apart"):
        DistributedAllToAll.execute([shared, shared], [zeros(2), zeros(2)], signals(2), contexts(2))


@pytest.mark.parametrize("device", ["meta", "xpu:0"])
def test_a_device_is_a_gpu(device):
    with pytest.raises(ValueError, match=r"DeviceContext: a device is 'cuda:N' \(or 'cpu' in the interpreter\)"):
        DeviceContext(device)


def test_a_tensor_lies_on_its_device():
    other = "meta" if INTERPRETED else "cpu"
    with pytest.raises(ValueError, match=rf"outputs\[1\] is on {other}, but device 1 is {DEVICE}"):
        broadcast(outputs=[zeros(3), torch.zeros(3, device=other)])
    with pytest.raises(ValueError, match=f"the input is on {other}, but the devices are {DEVICE}, {DEVICE}"):
        broadcast(source=torch.zeros(3, device=other))


def test_without_triton_the_import_says_what_to_install():
    code = "import sys; sys.modules['triton'] = None; import weft; import weft.kernels"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "ImportError: weft.kernels needs Triton, which is not installed." in found.stderr
    assert "pip install 'triton>=3.6'" in found.stderr


def test_weft_does_not_import_the_kernels():
    code = "import sys, weft; print('triton' in sys.modules, 'weft.kernels' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
