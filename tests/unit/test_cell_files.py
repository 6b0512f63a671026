"""A cell's files are checked against what its run.json vouches for."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sextant.cell_files import CELL_FILES, damaged_files, file_facts


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    for name in CELL_FILES:
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"level": list(range(1000))}), tmp_path / name)
    (tmp_path / "tuning.json").write_text("{}")
    facts = file_facts(tmp_path / name for name in CELL_FILES)
    (tmp_path / "run.json").write_text(json.dumps({"files": facts}))
    return tmp_path


def test_whole_files_are_whole(cell: Path) -> None:
    assert damaged_files(cell) == {}


def test_a_truncated_file_is_named_with_its_sizes(cell: Path) -> None:
    path = cell / "requests.parquet"
    n_bytes = path.stat().st_size
    path.write_bytes(path.read_bytes()[:100])
    assert damaged_files(cell) == {
        "requests.parquet": f"has 100 bytes, {n_bytes} were written",
    }


def test_one_flipped_bit_is_found(cell: Path) -> None:
    path = cell / "server.parquet"
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    assert damaged_files(cell) == {"server.parquet": "is not what was written (SHA-256)"}


def test_missing_files_are_named(cell: Path) -> None:
    (cell / "tuning.json").unlink()
    assert damaged_files(cell) == {"tuning.json": "is missing"}
    (cell / "run.json").unlink()
    assert damaged_files(cell) == {"run.json": "is missing"}


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00" * 20])
def test_a_damaged_run_vouches_for_nothing(cell: Path, text: str) -> None:
    (cell / "run.json").write_text(text)
    assert list(damaged_files(cell)) == ["run.json"]


def test_without_facts_files_are_read(cell: Path) -> None:
    (cell / "run.json").write_text("{}")
    assert damaged_files(cell) == {}
    path = cell / "telemetry.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    assert list(damaged_files(cell)) == ["telemetry.parquet"]
