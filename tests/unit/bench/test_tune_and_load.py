"""Tuning on servers: what is kept of an attempt that was interrupted, and what follows from it."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fake_servers import CPU, SETTINGS
from sextant.bench.tuning import (
    CornerCase,
    ProbeRecord,
    WeightRange,
    check_corner_cases,
    tune_and_load,
)
from sextant.engine.protocol import ServerError
from sextant.engine.vllm import VLLMServer
from sextant.points.verdict import MemoryFacts, Probe
from sextant.workload.prompts import RandomTokens

LIMITS = WeightRange(lowest_tokens=100, highest_tokens=10_000, kv_bytes_per_token=1000.0)
MEMORY = MemoryFacts(idle_free_bytes=4_000_000, free_bytes=2_000_000, profiled_tokens=None)
FAILED = Probe(10_000, "out_of_memory", "it said so", 12.5, MemoryFacts(lacking_bytes=7))
PASSED = Probe(6_000, "ok", "all corner cases passed", 34.0, MEMORY)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "cell" / "tuning.partial.jsonl"


def test_probes_survive_as_they_were_unless_they_depended_on_something_else(path):
    record = ProbeRecord(path, {"model": "a"})
    record.add(FAILED)
    record.add(PASSED)
    assert ProbeRecord(path, {"model": "a"}).probes == [FAILED, PASSED]
    assert len(path.read_text().splitlines()) == 2
    other = ProbeRecord(path, {"model": "b"})
    assert other.probes == []
    other.add(PASSED)
    assert ProbeRecord(path, {"model": "a"}).probes == []


@pytest.mark.parametrize("torn", ['{"key": "', "\0\0\0", "null\n", '{"key": 3}\n', "\xff"])
def test_a_torn_last_line_is_ignored(path, torn):
    record = ProbeRecord(path, 1)
    record.add(FAILED)
    with path.open("a", encoding="latin-1") as file:
        file.write(torn)
    again = ProbeRecord(path, 1)
    assert again.probes == [FAILED]
    again.add(PASSED)
    assert ProbeRecord(path, 1).probes == [FAILED, PASSED]


def test_a_failure_under_load_replaces_the_pass_of_the_same_start(path):
    record = ProbeRecord(path, 1)
    under_load = replace(PASSED, outcome="out_of_memory", detail="under load")
    for probe in (FAILED, PASSED, under_load):
        record.add(probe)
    known = replace(under_load, is_under_load=True)
    assert record.probes == ProbeRecord(path, 1).probes == [FAILED, known]
    # A start of its own is none of the kind.
    record.add(replace(PASSED, batch_weight_tokens=3000))
    record.add(replace(under_load, batch_weight_tokens=4000))
    assert len(record.probes) == 4


class Fakes:
    """Starts servers that hold up to `limit` tokens, and notes what was done with them."""

    def __init__(self, limit: int, loaded: int = 10**9, **memory):
        self.limit, self.most_loaded, self.memory = limit, loaded, memory
        self.started, self.checked, self.loaded = [], [], []

    @contextlib.contextmanager
    def start(self, weight: int):
        self.started.append(weight)
        self._hold(weight, self.limit)
        yield [SimpleNamespace(memory=lambda: MEMORY, stop_watching_memory=lambda: None)]

    def check(self, servers, weight: int) -> None:
        self.checked.append(weight)

    def load(self, servers) -> None:
        self._hold(self.started[-1], self.most_loaded)
        self.loaded.append(self.started[-1])

    @staticmethod
    def _hold(weight: int, limit: int) -> None:
        if weight > limit:
            raise ServerError("it ended", "CUDA out of memory.", is_out_of_memory=True)

    def tune(self, record: ProbeRecord) -> int | None:
        return tune_and_load(LIMITS, record, self.start, self.check, self.load)


def test_a_search_that_had_ended_costs_one_start_and_no_check(path):
    weight = Fakes(limit=7000).tune(ProbeRecord(path, 1))
    again = Fakes(limit=7000)
    assert again.tune(ProbeRecord(path, 1)) == weight
    assert (again.started, again.checked, again.loaded) == ([weight], [], [weight])
    nothing = path.with_name("nothing.jsonl")
    Fakes(limit=99).tune(ProbeRecord(nothing, 1))
    again = Fakes(limit=99)
    assert again.tune(ProbeRecord(nothing, 1)) is None
    assert again.started == []


def test_a_weight_that_fails_under_load_is_not_the_result(path):
    fakes, record = Fakes(limit=10_000, loaded=4000), ProbeRecord(path, 1)
    assert fakes.tune(record) == 3430  # 10,000 · 0.7³
    assert fakes.loaded == [3430]
    assert [probe.is_under_load for probe in record.probes] == [True, True, True, False]


def test_another_failure_ends_the_tuning_and_is_no_probe(path):
    fakes, record = Fakes(limit=10_000), ProbeRecord(path, 1)

    def check(servers, weight):
        raise ServerError("timed out", "", is_out_of_memory=False)

    with pytest.raises(ServerError, match="timed out"):
        tune_and_load(LIMITS, record, fakes.start, check, fakes.load)
    assert record.probes == []


# Servers with a real limit of memory, in a job that is killed

TOKEN_BYTES = 2**14
REAL_LIMITS = WeightRange(100, 30_000, TOKEN_BYTES)


def tune_with_a_real_limit(path: Path) -> int | None:
    """Tune fakes that take their KV cache's memory; 256 MiB hold about 15,000 tokens of it."""
    spec = replace(CPU, memory_limit_gib=0.25)

    @contextlib.contextmanager
    def start(weight: int):
        print(weight, flush=True)
        server = VLLMServer(
            replace(spec, batch_weight_tokens=weight), SETTINGS, path.with_name(f"{weight}.log")
        )
        with server:
            yield [server]

    def check(servers, weight: int) -> None:
        prompts = RandomTokens(1000)
        check_corner_cases(servers, [CornerCase("two", 2, 10, 4)], prompts, 1, 10.0)

    return tune_and_load(REAL_LIMITS, ProbeRecord(path, 1), start, check, lambda servers: None)


JOB = """
import sys
from pathlib import Path
tests = Path(sys.argv[1])
sys.path[:0] = [str(tests), str(tests / "unit" / "bench")]
from test_tune_and_load import tune_with_a_real_limit
print(tune_with_a_real_limit(Path(sys.argv[2])), flush=True)
"""


def test_a_job_that_is_killed_after_two_probes_goes_on_with_the_third(path, monkeypatch):
    monkeypatch.setenv("FAKE_KV_BYTES", str(TOKEN_BYTES))
    command = [sys.executable, "-c", JOB, str(Path(__file__).parents[2]), str(path)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not path.exists() or len(path.read_text().splitlines()) < 2:
        assert job.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    job.send_signal(signal.SIGKILL)
    started = [int(line) for line in job.communicate()[0].split()]
    first = [json.loads(line)["batch_weight_tokens"] for line in path.read_text().splitlines()]
    assert first == started[:2] and first[0] == REAL_LIMITS.highest_tokens

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *starts, weight = map(int, done.stdout.split())
    probes = [json.loads(line) for line in path.read_text().splitlines()]
    assert [probe["batch_weight_tokens"] for probe in probes] == [*first, *starts]
    assert len(probes) <= 5 and weight == starts[-1]
    assert (probes[0]["outcome"], probes[-1]["outcome"]) == ("out_of_memory", "ok")
    # What it leaves of the limit is less than 2 % of it.
    left_bytes = probes[-1]["memory"]["free_bytes"]
    assert 0 <= left_bytes < 0.02 * weight * TOKEN_BYTES
