"""What a dcgm-exporter says of our devices, and of them alone."""

import pytest

from sextant.engine.gauges import Gpu, dcgm_reader
from stub_server import StubServer, answer_text

# As the exporter writes them: other devices and fields, instances, marks for no value.
TEXT = """\
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA {A100}"} 0.500000
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA A100"} 0.250000
DCGM_FI_PROF_SM_ACTIVE{gpu="2",UUID="GPU-c",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"} 0.125000
DCGM_FI_PROF_SM_ACTIVE{gpu="2",UUID="GPU-c",GPU_I_PROFILE="1g.5gb",GPU_I_ID="8"} 0.750000
DCGM_FI_PROF_SM_OCCUPANCY{gpu="0",UUID="GPU-a",device="nvidia0"} 0.375000
DCGM_FI_PROF_SM_OCCUPANCY{gpu="1",UUID="GPU-b",device="nvidia1"} 9223372036854775794
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 88
"""


def read(text: str, *gpus: Gpu, status: str = "200 OK") -> tuple[list[dict], list[str]]:
    warnings: list[str] = []
    with StubServer(answer_text(text, status)) as exporter:
        reader = dcgm_reader(exporter.url, gpus, warnings.append)
        reader()
        return reader(), warnings


def gpu(name: str, uuid: str | None, instance_id: str = "") -> Gpu:
    return Gpu(name, None, [], uuid, instance_id)


def test_a_device_is_known_by_its_uuid():
    # In a container, a GPU may have another index than on its host.
    rows, warnings = read(TEXT, gpu("gpu3", "GPU-a"))
    assert rows == [{"device": "gpu3", "sm_active": 0.5, "sm_occupancy": 0.375}]
    assert warnings == []


def test_a_device_whose_uuid_is_not_known_is_known_by_its_index():
    rows, warnings = read(TEXT, gpu("gpu0", None), gpu("gpu1", None))
    assert rows[1] == {"device": "gpu1", "sm_active": 0.25}  # no value is not a huge one
    assert rows[0]["sm_occupancy"] == 0.375 and warnings == []


def test_a_mig_instance_is_known_by_its_gpu_and_its_number():
    rows, _ = read(TEXT, gpu("MIG-x", "GPU-c", "8"), gpu("gpu2", "GPU-c"))
    assert rows == [{"device": "MIG-x", "sm_active": 0.75}]


def test_what_is_not_exported_is_said_once():
    rows, warnings = read("DCGM_FI_DEV_GPU_UTIL{gpu='0'} 88\n", gpu("gpu0", "GPU-a"))
    assert rows == []
    (warning,) = warnings
    assert "no DCGM_FI_PROF_SM_ACTIVE, DCGM_FI_PROF_SM_OCCUPANCY of our GPUs" in warning


@pytest.mark.parametrize("status", ["503 Service Unavailable", "nonsense"])
def test_an_exporter_that_fails_is_a_gap_and_one_warning(status):
    rows, warnings = read(TEXT, gpu("gpu0", "GPU-a"), status=status)
    assert rows == [] and len(warnings) == 1 and "does not answer" in warnings[0]
