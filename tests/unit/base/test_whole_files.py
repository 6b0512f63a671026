"""Results are replaced whole, whenever a command is ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from command import sextant
from killed_while_moving import OUT, copies_after_ends
from sextant.base.errors import InputError
from sextant.base.files import sha256_file
from sextant.base.whole_files import MOVING, atomic_files, atomic_folder, atomic_path, settle
from sextant.points.cell_files import damaged_files
from sextant.points.folder import load_folder
from stub_server import StubServer, answer_tokens

TESTS = Path(__file__).parents[2]
NAMES = ("a.json", "b.html", "c.parquet", "d/e.txt")
WRITE = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from killed_while_moving import end_at_rename
from sextant.base.whole_files import atomic_folder
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
end_at_rename({number}, {kind})
try:
    with atomic_folder({folder!r}, last="a.json") as new:
        for name in {names!r}:
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text("after")
    print("whole")
except KeyboardInterrupt:
    print("interrupted")
"""


def texts(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in NAMES}


def write(folder: Path, number: int = 0, kind: int = signal.SIGKILL) -> str:
    script = WRITE.format(
        tests=str(TESTS), number=number, kind=int(kind), folder=str(folder), names=NAMES
    )
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout


@pytest.fixture
def old(tmp_path):
    (tmp_path / "d").mkdir()
    for name in NAMES:
        (tmp_path / name).write_text("before")
    (tmp_path / "other.txt").write_text("stays")
    return tmp_path


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_after_a_kill_at_any_rename_a_reader_finds_one_set(old, number):
    assert write(old, number) == ""
    settle(old)
    assert texts(old) == dict.fromkeys(NAMES, "before" if number == 1 else "after")
    assert (old / "other.txt").read_text() == "stays" and not (old / MOVING).exists()


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_signal_waits_until_all_files_are_moved(old, number):
    assert write(old, number, signal.SIGINT) == "interrupted\n"
    assert not (old / MOVING).exists() and texts(old) == dict.fromkeys(NAMES, "after")


def test_the_next_writer_moves_what_was_left_and_sweeps(old):
    assert write(old, 2) == "" and (old / MOVING).is_dir()
    with atomic_folder(old, last="b.html") as new:
        (new / "b.html").write_text("newer")
    assert texts(old) == dict.fromkeys(NAMES, "after") | {"b.html": "newer"}
    assert write(old, 1) == ""
    assert any(path.name.endswith(".partial") for path in old.iterdir())
    with atomic_path(old / "other.txt") as path:
        path.write_text("newer")
    assert {path.name for path in old.iterdir()} == {"a.json", "b.html", "c.parquet", "d",
                                                     "other.txt"}  # fmt: skip


def test_one_writer_at_a_time(old, monkeypatch):
    """A writer that is stopped while it moves files keeps others from the folder."""
    monkeypatch.setattr("sextant.base.whole_files._PATIENCE_S", 0.2)
    script = WRITE.format(
        tests=str(TESTS), number=3, kind=int(signal.SIGSTOP), folder=str(old), names=NAMES
    )
    first = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        os.waitpid(first.pid, os.WUNTRACED)
        with pytest.raises(InputError, match="another command is about to write here"), \
                atomic_folder(old, last="b.html") as new:  # fmt: skip
            (new / "b.html").write_text("newer")
        with pytest.raises(InputError, match="another command is about to write here"):
            settle(old)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert first.communicate()[0] == "whole\n"
    assert texts(old) == dict.fromkeys(NAMES, "after")


def trace(path: Path, n: int, tokens: int) -> Path:
    lines = [f"{i * 0.5},{tokens + i % 7},{tokens // 2 + i % 5}" for i in range(n)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]) + "\n")
    return path


def assert_one_set(copies: list[Path], before: str, read: Callable[[Path], str]) -> None:
    """Assert that a command that was ended at any rename left the earlier set or its own."""
    *found, after = map(read, copies)
    assert before != after and set(found) == {before, after}
    assert not [path.name for path in copies[-1].iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM])
def test_a_fit_that_is_ended_at_any_rename_leaves_one_workload(tmp_path, kind):
    for name, tokens in (("one", 20), ("two", 2000)):
        source = trace(tmp_path / f"{name}.csv", 60, tokens)
        sextant("ingest", source, "--format", "sextant", "--out", tmp_path / f"{name}.parquet")
    out = tmp_path / "workload"
    sextant("fit", tmp_path / "one.parquet", "--out", out)

    def sampled(folder: Path) -> str:
        found = tmp_path / "found.csv"
        sextant("sample", "--workload", folder, "-n", 20, "--seed", 1, "--out", found)
        return found.read_text()

    copies = copies_after_ends(out, ["fit", tmp_path / "two.parquet", "--out", OUT], kind)
    assert_one_set(copies, sampled(out), sampled)


def test_an_ingest_that_is_killed_leaves_one_set(tmp_path):
    for name, tokens in (("one", 20), ("two", 2000)):
        trace(tmp_path / f"{name}.csv", 60, tokens)
    out = tmp_path / "traces"
    as_sextant = ["--format", "sextant", "--out"]
    sextant("ingest", tmp_path / "one.csv", *as_sextant, out / "i.parquet")

    def sampled(folder: Path) -> str:
        found = tmp_path / "found.csv"
        read = ["sample", "--workload", folder / "i.parquet", "--sampler", "raw", "-n", 20]
        sextant(*read, "--request-rate", 2, "--out", found)
        return found.read_text()

    ingest = ["ingest", tmp_path / "two.csv", *as_sextant, f"{OUT}/i.parquet"]
    copies = copies_after_ends(out, ingest)
    assert_one_set(copies, sampled(out), sampled)
    report = json.loads((copies[-1] / "i.report.json").read_text())
    assert report["provenance"]["inputs_sha256"]["source"] == sha256_file(tmp_path / "two.csv")


def requests_of(out: Path) -> int:
    """Return the number of requests of a load's results, which are of one run."""
    n = pq.read_metadata(out / "requests.parquet").num_rows if not damaged_files(out) else None
    (level,) = json.loads((out / "summary.json").read_text())["levels"]
    assert n == level["n_ok"]
    assert f"{n} answers in" in (out / "summary.html").read_text()
    return n


@pytest.mark.slow
def test_a_load_that_is_killed_at_any_rename_leaves_one_run(tmp_path):
    out = tmp_path / "run"
    with StubServer(answer_tokens()) as server:
        load = ["load", "--base-url", server.url, "--model", "m", "--batch", 2]
        load += ["--input-tokens", 8, "--output-tokens", 3]
        sextant(*load, "--n-requests", 4, "--out", out)
        copies = copies_after_ends(out, [*load, "--n-requests", 6, "--out", OUT])
    found = [requests_of(copy) for copy in copies]
    assert set(found) == {4, 6} and found == sorted(found)


@pytest.mark.slow
def test_an_import_that_is_killed_at_any_rename_leaves_one_set_of_points(tmp_path):
    result = {
        "model_id": "m", "num_prompts": 12, "request_rate": "inf", "duration": 4.0,
        "completed": 12, "failed": 0, "total_input_tokens": 1536, "total_output_tokens": 768,
        "request_throughput": 3.0, "output_throughput": 192.0, "median_ttft_ms": 52.0,
        "median_tpot_ms": 20.0, "median_itl_ms": 20.0,
    }  # fmt: skip
    for name, users in (("one", 4), ("two", 8)):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(result | {"max_concurrency": users}))
    served = ["--gpu-profile", "1xH100-80GB", "--llm", "Qwen/Qwen3-8B"]
    out = tmp_path / "points"
    command = ["import-characterization", "vllm-bench", *served]
    sextant(*command, "--from", tmp_path / "one.json", "--out", out)

    copies = copies_after_ends(out, [*command, "--from", tmp_path / "two.json", "--out", OUT])
    found = [load_folder(copy).points["users"].tolist() for copy in copies]
    assert found[0] == [4] and found[-1] == [8] and found == sorted(found)


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path):
    """`--out /dev/null` of root made a file of the device."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null"), Path("/dev/stdout")):
        with pytest.raises(InputError, match="it is a pipe or a device"), atomic_path(path):
            raise AssertionError
        with pytest.raises(InputError, match="it is a pipe or a device"), atomic_files([path]):
            raise AssertionError
    assert pipe.is_fifo() and Path("/dev/null").is_char_device()
