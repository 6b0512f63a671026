"""Whatever is read from a file that is damaged, the error names the file and what to do."""

from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.base.files import read_json, read_parquet
from sextant.report.trace_overview import measure_overview
from sextant.trace.job import ingest_trace
from sextant.trace.trace_format import require_trace
from sextant.workload.fit import WorkloadFiles, fit_workload
from sextant.workload.profiles import read_arrivals
from sextant.workload.published import load_request_model
from sextant.workload.request_model import served_requests
from sextant.workload.trace_arrivals import load_arrivals
from support import ROOT

TRACE = ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv"


def flipped(content: bytes) -> bytes:
    """Change a byte in forty, none of them in the magic words."""
    changed = bytearray(content)
    for place in range(16, len(content) - 16, 40):
        changed[place] ^= 0xFF
    return bytes(changed)


HOW = {
    "cut": lambda content: content[: len(content) // 2],
    "flipped": flipped,
    "emptied": lambda content: b"",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace and the workload that is fitted to it."""
    folder = tmp_path_factory.mktemp("made")
    outputs = [folder / name for name in ("t.parquet", "rejected.parquet", "t.report.json")]
    ingest_trace(TRACE, "sextant", *outputs)
    fit_workload(outputs[0], WorkloadFiles.in_folder(folder), n_bins=8, seed=0)
    return folder


READERS = {
    "trace, fitted": ("t.parquet", served_requests, "ingest the trace again"),
    "trace, its times": ("t.parquet", read_arrivals, "ingest the trace again"),
    "trace, by its columns": ("t.parquet", require_trace, "ingest the trace again"),
    "request model": ("requests.parquet", load_request_model, "fit the workload again"),
    "arrival model": ("arrivals.json", load_arrivals, "fit the workload again"),
    "any table": ("requests.parquet", read_parquet, "delete it and run"),
    "any JSON": ("validation.json", read_json, "delete it and run"),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_and_what_to_do(made, tmp_path, name: str, how: str) -> None:
    file, read, fix = READERS[name]
    path = tmp_path / file
    path.write_bytes(HOW[how]((made / file).read_bytes()))
    with pytest.raises(InputError, match=fix) as error:
        read(path)
    assert str(path) in str(error.value)


def test_a_report_of_ingest_that_is_damaged_is_named(made: Path, tmp_path: Path) -> None:
    report = tmp_path / "t.report.json"
    report.write_text("{")
    with pytest.raises(InputError, match=r"t\.report\.json: not JSON .*ingest the trace again"):
        measure_overview(made / "t.parquet", report)
    with pytest.raises(KeyError):  # other errors are not taken for damage
        read_parquet(made / "requests.parquet").column("none")
