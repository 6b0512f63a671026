"""What an interrupted measurement keeps, and what it does not take for its own."""

import pyarrow as pa

from sextant.benchmark.checkpoint import Checkpoint
from sextant.benchmark.results import TABLES

SCHEMA = pa.schema([("level", pa.float64()), ("value", pa.int32())])


def rows(level: float, *values: int) -> dict[str, pa.Table]:
    table = pa.table({"level": [level] * len(values), "value": list(values)}, schema=SCHEMA)
    return dict.fromkeys(TABLES, table)


def test_finished_levels_are_found_again_in_order(tmp_path):
    kept = Checkpoint(tmp_path / "partial", "abc")
    for level, values in (("inf", (5,)), (16, (3, 4)), (2.0, (1, 2))):
        kept.save({"level": level}, 4000, rows(float(level), *values))
    again = Checkpoint(tmp_path / "partial", "abc")
    levels = again.levels(4000)
    assert [entry["level"] for entry in levels] == [2.0, 16, "inf"]
    assert again.table("requests", levels, SCHEMA).column("value").to_pylist() == [1, 2, 3, 4, 5]
    assert again.table("server", levels[1:2], SCHEMA).column("value").to_pylist() == [3, 4]


def test_another_batch_weight_or_definition_has_no_levels(tmp_path):
    Checkpoint(tmp_path / "partial", "abc").save({"level": 1}, 4000, rows(1.0, 7))
    assert Checkpoint(tmp_path / "partial", "abc").levels(3000) == []
    assert Checkpoint(tmp_path / "partial", "other").levels(4000) == []
    assert Checkpoint(tmp_path / "partial", "abc").levels(4000) == []  # it started afresh


def test_a_level_without_its_entry_was_not_finished(tmp_path):
    kept = Checkpoint(tmp_path / "partial", "abc")
    for level in (1, 2):
        kept.save({"level": level}, 4000, rows(float(level), 7))
    (tmp_path / "partial" / "level-2" / "level.json").unlink()
    (tmp_path / "partial" / "level-1" / "level.json").write_text('{"batch_weight')
    assert kept.levels(4000) == []


def test_levels_of_a_weight_that_did_not_hold_are_forgotten_and_nothing_is_left(tmp_path):
    kept = Checkpoint(tmp_path / "partial", "abc")
    kept.save({"level": 1}, 4000, rows(1.0, 7))
    kept.forget_levels()
    assert kept.levels(4000) == []
    empty = kept.table("requests", [], SCHEMA)
    assert empty.schema.equals(SCHEMA) and len(empty) == 0
    kept.remove()
    assert list(tmp_path.iterdir()) == []
