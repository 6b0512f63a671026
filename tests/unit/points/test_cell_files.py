"""A cell's files are checked against what its run.json says was written."""

import errno
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sextant.base.errors import InputError
from sextant.points.cell_files import CELL_FILES, damaged_files, file_facts, require_whole, sealed


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    for name in CELL_FILES:
        if name.endswith(".parquet"):
            pq.write_table(pa.table({"level": list(range(1000))}), tmp_path / name)
    (tmp_path / "tuning.json").write_text("{}")
    facts = file_facts(tmp_path / name for name in CELL_FILES)
    run = {"levels": [{"level": "inf", "duration_s": 0.1}], "files": facts}
    (tmp_path / "run.json").write_text(json.dumps(sealed(run), indent=2))
    return tmp_path


NOT_WRITTEN = "is not what was written (SHA-256)"


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("requests.parquet", lambda content: content[:100], "has 100 bytes, {} were written"),
        ("server.parquet", lambda content: content[:50] + b"\0" + content[51:], NOT_WRITTEN),
        ("run.json", lambda content: content.replace(b": 0.1", b": 0.3"), NOT_WRITTEN),
        ("tuning.json", None, "is missing"),
        ("run.json", None, "is missing"),
    ],
)
def test_a_damaged_file_is_named_and_how(cell: Path, name: str, damage, said: str) -> None:
    path = cell / name
    content = path.read_bytes()
    path.unlink()
    if damage is not None:
        path.write_bytes(damage(content))
        assert path.read_bytes() != content
    assert damaged_files(cell) == {name: said.format(len(content))}


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00" * 20])
def test_a_damaged_run_says_nothing_of_other_files(cell: Path, text: str) -> None:
    (cell / "run.json").write_text(text)
    assert list(damaged_files(cell)) == ["run.json"]


@pytest.mark.parametrize("value", [None, [], {}, {"requests.parquet": 1}])
def test_without_facts_of_its_files_a_cell_is_not_whole(cell: Path, value: object) -> None:
    (cell / "run.json").write_text(json.dumps(sealed({"files": value})))
    assert damaged_files(cell)


def test_all_damaged_cells_are_named_and_set_aside_and_no_other(cell: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("cut", "good", "worse")]
    for place in places:
        shutil.copytree(cell, place, ignore=lambda *_: [p.name for p in places])
    cut, good, worse = places
    (cut / "requests.parquet").write_bytes(b"PAR1")
    (worse / "run.json").write_text("")
    with pytest.raises(InputError) as error:
        require_whole(places)
    message = str(error.value)
    assert "2 of 3 cells are damaged" in message
    assert f"{cut}: requests.parquet has 4 bytes" in message
    assert f"{worse}: run.json cannot be read" in message
    assert str(good) not in message
    assert message.endswith("Fix: run the same command again: it makes just these cells again")
    assert [path.name for path in cut.iterdir()] == ["damaged-1"]
    assert (cut / "damaged-1" / "requests.parquet").read_bytes() == b"PAR1"
    aside = {path.name for path in (worse / "damaged-1").iterdir()}
    assert aside == {*CELL_FILES, "run.json"}
    assert damaged_files(good) == {}
    require_whole([good])
    assert {path.name for path in good.iterdir()} == {*CELL_FILES, "run.json"}


def test_what_was_set_aside_before_stays(cell: Path) -> None:
    for number in (1, 2):
        (cell / "run.json").write_text(f"broken {number}")
        with pytest.raises(InputError, match=f"set aside in damaged-{number}"):
            require_whole([cell])
    assert (cell / "damaged-1" / "run.json").read_text() == "broken 1"
    assert (cell / "damaged-2" / "run.json").read_text() == "broken 2"


def test_what_cannot_be_read_at_all_is_not_set_aside(cell: Path, monkeypatch) -> None:
    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    before = sorted(path.name for path in cell.iterdir())
    monkeypatch.setattr("sextant.base.files.sha256_file", refused)
    with pytest.raises(InputError, match=r"requests\.parquet.*Permission denied.*nothing was set"):
        require_whole([cell])
    assert sorted(path.name for path in cell.iterdir()) == before


def test_a_folder_or_a_loop_of_links_in_the_place_of_a_file_is_damage(cell: Path) -> None:
    for name in ("server.parquet", "tuning.json"):
        (cell / name).unlink()
    (cell / "server.parquet").mkdir()
    (cell / "tuning.json").symlink_to("tuning.json")
    assert set(damaged_files(cell)) == {"server.parquet", "tuning.json"}
