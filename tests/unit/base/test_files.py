"""Files are whole or absent, and know where they came from."""

import subprocess
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sextant
from sextant.base import files
from sextant.base.errors import InputError
from sextant.base.files import git_commit, write_json
from sextant.base.whole_files import atomic_folder, atomic_path

TABLE = pa.table({"x": [1, 2, 3]})


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_files_that_belong_together_are_replaced_together(tmp_path, error):
    old = {tmp_path / name: "before" for name in ("a.json", "b.html", "c.parquet")}
    for path, text in old.items():
        path.write_text(text)
    with pytest.raises(error), atomic_path(tmp_path / "a.json") as temporary:
        temporary.write_text("half of")
        raise error
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.json"):
        pass  # nothing is written
    with pytest.raises(error), atomic_folder(tmp_path, last="a.json") as new:
        (new / "b.html").write_text("half of")
        raise error
    assert {path: path.read_text() for path in tmp_path.iterdir()} == old
    with atomic_folder(tmp_path, last="a.json") as new:
        for path in old:
            (new / path.name).write_text("after")
    assert {path: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(old, "after")


HANG = """
import sys, time
from sextant.base.whole_files import atomic_path
from sextant.cli import app

def hang(*_, **__):
    with atomic_path(sys.argv[1]) as temporary:
        temporary.write_text("half of it")
        print("there", flush=True)
        time.sleep(60)

app.app = hang
app.main()
"""


def test_a_command_that_is_ended_leaves_no_file(tmp_path):
    command = [sys.executable, "-c", HANG, str(tmp_path / "a.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"there\n"
        process.terminate()
        assert process.wait(60) == 128 + 15
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_job_left_is_not_continued(tmp_path):
    """In a container, the process id of a killed job comes again."""
    with atomic_path(tmp_path / "a.duckdb") as temporary:
        temporary.write_text("new")
    temporary.write_text("left by a job that was killed")
    with atomic_path(tmp_path / "a.duckdb") as again:
        assert again == temporary and not again.exists()
        again.write_text("newer")
    assert (tmp_path / "a.duckdb").read_text() == "newer"


WRITE_UNDER_A_LIMIT = """
import resource, signal, sys
from pathlib import Path
import numpy as np, pyarrow as pa
from sextant.base.errors import InputError
from sextant.base.files import write_json, write_parquet
folder = Path(sys.argv[1])
table = pa.table({"x": np.random.default_rng(0).random(100_000)})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
for write in (lambda: write_parquet(folder / "a.parquet", table, {}),
              lambda: write_json(folder / "a.json", list(range(100_000)))):
    try:
        write()
    except InputError as error:
        print(error)
"""


def test_a_full_disk_leaves_no_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITE_UNDER_A_LIMIT, str(tmp_path)], capture_output=True, text=True
    )
    assert done.stdout.count(f"{tmp_path}: no room to write a.") == 2, done.stderr
    assert done.stdout.count("Fix: free some space or raise the quota") == 2
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_that_duckdb_reports_is_one_too(tmp_path):
    said = "Could not write file '/x/y': No space left on device"
    with (
        pytest.raises(InputError, match=r"no room to write a\.parquet \(No space left"),
        atomic_path(tmp_path / "a.parquet"),
    ):
        raise duckdb.IOException(said)
    with pytest.raises(duckdb.IOException), atomic_path(tmp_path / "a.parquet"):
        raise duckdb.IOException("of another kind")


@pytest.mark.parametrize("value", [float("nan"), [1.0, float("inf")], {"a": {"b": float("nan")}}])
def test_json_has_no_nan(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", value)
    assert list(tmp_path.iterdir()) == []


def test_provenance_goes_with_the_file(tmp_path):
    source = tmp_path / "source.csv"
    source.write_bytes(b"abc")
    origin = files.provenance({"trace": source}, seed=7)
    # The digest of "abc" stands in FIPS 180-2.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert origin["inputs_sha256"] == {"trace": digest}
    assert (origin["seed"], origin["sextant_version"]) == (7, sextant.__version__)
    files.write_parquet(tmp_path / "a.parquet", TABLE, origin)
    assert files.read_provenance(tmp_path / "a.parquet") == origin
    stored = pq.ParquetFile(tmp_path / "a.parquet")
    assert stored.read().equals(TABLE)
    assert stored.metadata.row_group(0).column(0).compression == "ZSTD"


def test_without_git_the_commit_is_unknown(monkeypatch, tmp_path):
    git_commit.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert git_commit() == "unknown"
    git_commit.cache_clear()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    files.require_writable(tmp_path / "new" / "results")
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(InputError, match=f"{tmp_path}: cannot be written. Fix: choose another"):
        files.require_writable(tmp_path / "new" / "results")
