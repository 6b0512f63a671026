"""Which devices replicas get."""

import os
import subprocess
import sys

import pytest

from fake_nvml import use_fake_nvml
from sextant.base.errors import InputError
from sextant.engine.devices import pick_devices
from sextant.facts.gpu import Devices

ONE, TWO = Devices("gpu", 1, 40.0), Devices("gpu", 2, 40.0)


@pytest.mark.parametrize(
    ("visible", "devices", "picked"),
    [
        *[("3,5,7", TWO, (3, 5)), ("3", ONE, (3,)), (" 4 , 6 ", TWO, (4, 6))],
        ("GPU-8932f937,1", TWO, ("GPU-8932f937", 1)),
        ("MIG-4c60d78c,MIG-5", ONE, ("MIG-4c60d78c",)),
        (None, TWO, (0, 1)),
    ],
)
def test_the_job_s_first_gpus_are_picked(visible, devices, picked):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert pick_devices(devices, environ=environ) == [picked]


@pytest.mark.parametrize("visible", ["", " ", "-1", "3", "3,-1,4", "NoDevFiles", "3,3", "3,,4"])
def test_too_few_gpus(visible):
    # As CUDA does: what stands behind an entry that is no device is hidden.
    with pytest.raises(InputError, match=r"2 devices \(gpu\) needed, [01] here"):
        pick_devices(TWO, environ={"CUDA_VISIBLE_DEVICES": visible})


@pytest.mark.parametrize(
    ("environ", "devices", "n_replicas", "placement", "found"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,4,5,6"}, TWO, 2, "own", [(0, 1), (4, 5)]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,4,5,6"}, TWO, 3, "own", r"6 devices .*gpu. needed, 5 here"),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, TWO, 3, "shared", [(2, 3)] * 3),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, ONE, 2, "own", [("MIG-a",), ("MIG-b",)]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, TWO, 1, "own", "cannot use MIG instances"),
        # In a job without devices no other job's are taken.
        ({"SLURM_JOB_ID": "17"}, ONE, 1, "own", r"SLURM job 17 was given no GPU.*gpu_model"),
        ({"SLURM_JOB_ID": "17", "CUDA_VISIBLE_DEVICES": "3"}, ONE, 1, "own", [(3,)]),
        # A device that no core stands in for is none.
        ({"SLURM_JOB_GPUS": "99"}, Devices("cpu", 1, 1.0), 1, "own", "1 devices .*needed, 0 here"),
    ],
)
def test_replicas_have_their_own_devices_or_share(environ, devices, n_replicas, placement, found):
    if isinstance(found, list):
        assert pick_devices(devices, n_replicas, placement, environ) == found
    else:
        with pytest.raises(InputError, match=found):
            pick_devices(devices, n_replicas, placement, environ)


def test_cores_are_those_this_job_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {9, 4, 7, 2})
    assert pick_devices(Devices("cpu", 2, 1.0)) == [(2, 4)]
    assert pick_devices(Devices("cpu", 2, 1.0), 2) == [(2, 4), (7, 9)]
    assert pick_devices(Devices("cpu", 3, 1.0), 2, "shared") == [(2, 4, 7)] * 2
    with pytest.raises(InputError, match=r"6 devices \(cpu\) needed, 4 here"):
        pick_devices(Devices("cpu", 3, 1.0), 2)


@pytest.mark.parametrize(
    ("environ", "picked"),
    [
        # Two jobs on a node of four devices, which cores stand in for.
        ({"SLURM_JOB_GPUS": "0,2"}, (2, 7)),
        ({"SLURM_JOB_GPUS": "1,3"}, (4, 9)),
        # The plugin clears the job's variables; the step's are left.
        ({"SLURM_STEP_GPUS": "3,0"}, (9, 2)),
        # No devices: the cores that SLURM has bound the job to are its own.
        ({"SLURM_JOB_ID": "17", "CUDA_VISIBLE_DEVICES": "1"}, (2, 4)),
    ],
)
def test_devices_of_a_slurm_job_choose_the_cores_that_stand_in(monkeypatch, environ, picked):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {9, 4, 7, 2})
    assert pick_devices(Devices("cpu", 2, 1.0), environ=environ) == [picked]


def test_where_nothing_is_hidden_all_gpus_of_the_machine_count(monkeypatch):
    use_fake_nvml(monkeypatch, gpus=3)
    script = (
        "from sextant.engine.devices import pick_devices\n"
        "from sextant.facts.gpu import Devices\n"
        "print(pick_devices(Devices('gpu', 1, 40.0), 3, environ={}))\n"
        "pick_devices(Devices('gpu', 2, 40.0), 2, environ={})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[(0,), (1,), (2,)]\n"
    assert "4 devices (gpu) needed, 3 here" in done.stderr
