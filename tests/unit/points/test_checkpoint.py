"""What an interrupted measurement keeps, and what it does not take for its own."""

import pyarrow as pa
import pytest

from sextant.bench.measurement import Checkpoint
from sextant.points.cell_files import TABLES
from sextant.points.run import LevelRun


def rows(level: float, *values: int) -> dict[str, pa.Table]:
    found = [{"level": level, "replica": value} for value in values]
    return {name: pa.Table.from_pylist(found, schema=schema) for name, schema in TABLES.items()}


def test_finished_levels_are_found_again_in_order(tmp_path):
    kept = Checkpoint(tmp_path / "partial", "abc", "a CPU")
    for level, values in (("inf", (5,)), (16, (3, 4)), (2.0, (1, 2))):
        kept.save(LevelRun(float(level)), 4000, rows(float(level), *values))
    again = Checkpoint(tmp_path / "partial", "abc", "a CPU")
    levels = again.levels(4000)
    assert [run.level for run in levels] == [2.0, 16.0, float("inf")]
    assert again.table("requests", levels).column("replica").to_pylist() == [1, 2, 3, 4, 5]
    assert again.table("server", levels[1:2]).column("replica").to_pylist() == [3, 4]


def test_another_batch_weight_machine_or_definition_has_no_levels(tmp_path, caplog):
    Checkpoint(tmp_path / "partial", "abc", "a CPU").save(LevelRun(1.0), 4000, rows(1.0, 7))
    assert Checkpoint(tmp_path / "partial", "abc", "a CPU").levels(3000) == []
    assert Checkpoint(tmp_path / "partial", "abc", "a CPU, a GPU").levels(4000) == []
    assert "it was measured on a CPU; it is measured again" in caplog.text
    assert Checkpoint(tmp_path / "partial", "other", "a CPU").levels(4000) == []
    assert Checkpoint(tmp_path / "partial", "abc", "a CPU").levels(4000) == []  # it started afresh


def test_a_level_without_its_entry_was_not_finished(tmp_path):
    kept = Checkpoint(tmp_path / "partial", "abc", "a CPU")
    for level in (1, 2):
        kept.save(LevelRun(float(level)), 4000, rows(float(level), 7))
    (tmp_path / "partial" / "level-2" / "level.json").unlink()
    (tmp_path / "partial" / "level-1" / "level.json").write_text('{"batch_weight')
    assert Checkpoint(tmp_path / "partial", "abc", "a CPU").levels(4000) == []


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("requests.parquet", lambda content: content[:-30]),
        ("server.parquet", lambda content: content[:40] + b"\0" + content[41:]),
        ("telemetry.parquet", lambda content: b""),
        *(("level.json", lambda _, text=text: text) for text in (b"{", b'{"key": "abc"}', b"[]")),
    ],
)
def test_only_the_level_that_is_damaged_is_measured_again(tmp_path, caplog, name, damage):
    kept = Checkpoint(tmp_path / "partial", "abc", "a CPU")
    for level in (1, 2, 3):
        kept.save(LevelRun(float(level)), 4000, rows(float(level), 7))
    path = tmp_path / "partial" / "level-2" / name
    path.write_bytes(damage(path.read_bytes()))
    again = Checkpoint(tmp_path / "partial", "abc", "a CPU")
    levels = again.levels(4000)
    assert [run.level for run in levels] == [1, 3]
    assert again.table("requests", levels).column("level").to_pylist() == [1.0, 3.0]
    (record,) = caplog.records
    assert "level-2" in record.message and "damaged" in record.message
    again.save(LevelRun(2.0), 4000, rows(2.0, 7))
    assert len(Checkpoint(tmp_path / "partial", "abc", "a CPU").levels(4000)) == 3


def test_levels_of_a_weight_that_did_not_hold_are_forgotten_and_nothing_is_left(tmp_path):
    kept = Checkpoint(tmp_path / "partial", "abc", "a CPU")
    kept.save(LevelRun(1.0), 4000, rows(1.0, 7))
    kept.forget_levels()
    assert kept.levels(4000) == []
    empty = kept.table("requests", [])
    assert empty.schema.equals(TABLES["requests"]) and len(empty) == 0
    assert not list((tmp_path / "partial").glob("level-*"))
