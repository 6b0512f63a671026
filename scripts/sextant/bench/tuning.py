"""Tunes the batch weight: probes the extreme batches that a weight allows, on real servers."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from sextant.base.files import atomic_path
from sextant.bench.batch_weight import WeightRange, next_weight
from sextant.engine.devices import worst
from sextant.engine.protocol import Server, ServerError
from sextant.load.schedules import run_open_loop
from sextant.load.source import ListedRequests
from sextant.points.cell_files import from_json, to_json
from sextant.points.verdict import Probe
from sextant.workload.prompts import PromptSource
from sextant.workload.request_model import RequestModel

# Enough tokens to decode a few times after the prefill has filled the KV cache.
_SHORT_OUTPUT_TOKENS = 4


@dataclass(frozen=True)
class RequestLengths:
    """The shortest, mean and longest requests of a workload, in tokens."""

    input_tokens: tuple[int, int, int]
    output_tokens: tuple[int, int, int]


@dataclass(frozen=True)
class CornerCase:
    """Requests that are sent all at once."""

    name: str
    n_requests: int
    input_tokens: int
    output_tokens: int


def request_lengths(
    model: RequestModel, max_input_tokens: int, max_output_tokens: int
) -> RequestLengths:
    """Return a workload's lengths: the least and the mean of its bins, the most by its caps."""

    def lengths(name: str, cap: int) -> tuple[int, int, int]:
        values = model.frame[name].to_numpy(float)
        mean = np.average(values, weights=model.weights)
        least, mean = (int(np.clip(round(value), 1, cap)) for value in (values.min(), mean))
        return least, mean, cap

    return RequestLengths(
        lengths("input_tokens", max_input_tokens), lengths("output_tokens", max_output_tokens)
    )


def corner_cases(
    batch_weight_tokens: int, lengths: RequestLengths, max_num_seqs: int
) -> list[CornerCase]:
    """Return the batches at the extremes of a batch weight, after LLM-Pilot, section III-C2.

    One longest request, then as many requests as the weight and the engine's own limit
    hold, of the shortest, the mean and the two mixed lengths. No output is so short that
    its request would end before the others have begun.
    """
    least_in, mean_in, most_in = lengths.input_tokens
    least_out, mean_out, most_out = lengths.output_tokens
    least_out = max(least_out, min(_SHORT_OUTPUT_TOKENS, most_out))

    def full(name: str, input_tokens: int, output_tokens: int) -> CornerCase:
        n_held = batch_weight_tokens // (input_tokens + output_tokens)
        return CornerCase(name, int(np.clip(n_held, 1, max_num_seqs)), input_tokens, output_tokens)

    return [
        CornerCase("one longest request", 1, most_in, most_out),
        full("full of shortest requests", least_in, least_out),
        full("full of longest prompts with shortest outputs", most_in, least_out),
        full("full of shortest prompts with longest outputs", least_in, most_out),
        full("full of mean requests", mean_in, mean_out),
    ]


def check_corner_cases(
    servers: Sequence[Server],
    cases: Sequence[CornerCase],
    prompts: PromptSource,
    seed: int,
    timeout_s: float,
) -> None:
    """Put each case on all servers at the same time.

    Raises ServerError, which says whether memory ran out: a request failed, or a server died.
    """
    targets = [server.target for server in servers]
    for number, case in enumerate(cases):
        # Request i goes to server i mod n: each gets the whole case.
        n_requests = case.n_requests * len(servers)
        inputs, outputs = (
            np.full(n_requests, tokens) for tokens in (case.input_tokens, case.output_tokens)
        )
        source = ListedRequests(targets[0].model, inputs, outputs, prompts, seed + number)
        due_s = np.zeros(n_requests)
        result = run_open_loop(targets, source, due_s, timeout_s, time.monotonic_ns())
        rows = result.table().select(["status", "error", "replica"])
        failed = rows.filter(pc.not_equal(rows["status"], "ok")).to_pylist()
        if failed:
            server, problem = servers[failed[0]["replica"]], failed[0]["error"]
            if failed[0]["status"] == "timeout":
                problem += ". Fix: raise engine.request_timeout_s, unless the server hangs"
            raise server.error(f"corner case '{case.name}' failed: {problem}")
        for server in servers:
            if not server.is_healthy():
                raise server.error(f"the engine ended after corner case '{case.name}'")


log = logging.getLogger(__name__)


class ProbeRecord:
    """The probes of a cell in a file that survives the job, one line per probe."""

    def __init__(self, path: Path, depends_on: object) -> None:
        """Take over the probes in the file whose outcome depended on the same."""
        self.path = path
        text = json.dumps(depends_on, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.probes = self._read()
        if self.probes:
            log.info("%d server starts are known from an earlier attempt", len(self.probes))
        self._write()

    @property
    def chosen(self) -> int | None:
        """The batch weight of a search that has ended; None if no weight works."""
        last = self.probes[-1] if self.probes else None
        return last.batch_weight_tokens if last and last.outcome == "ok" else None

    def add(self, probe: Probe) -> None:
        """Keep a probe. One that failed under load replaces its pass: one start is one probe."""
        last = self.probes[-1] if self.probes else None
        is_same_start = (
            last is not None
            and (last.outcome, probe.outcome) == ("ok", "out_of_memory")
            and last.batch_weight_tokens == probe.batch_weight_tokens
        )
        if is_same_start:
            self.probes.pop()
            probe = replace(probe, is_under_load=True)
        self.probes.append(probe)
        self._write()
        log.info("batch weight %d tokens: %s", probe.batch_weight_tokens, probe.outcome)

    def _read(self) -> list[Probe]:
        if not self.path.exists():
            return []
        probes = []
        for number, line in enumerate(self.path.read_text(errors="replace").splitlines(), 1):
            try:
                entry = json.loads(line)
                if entry.pop("key") == self._key:
                    probes.append(from_json(Probe, entry))
            except (ValueError, TypeError, KeyError, AttributeError):
                log.warning("%s, line %d is damaged: the rest is kept", self.path, number)
        return probes

    def _write(self) -> None:
        """Write all probes again: never more than a handful, and never half of them."""
        lines = [json.dumps({"key": self._key, **to_json(probe)}) + "\n" for probe in self.probes]
        with atomic_path(self.path) as path:
            path.write_text("".join(lines))


def tune_and_load(
    limits: WeightRange,
    record: ProbeRecord,
    start: Callable[[int], AbstractContextManager[Sequence[Server]]],
    check: Callable[[Sequence[Server], int], None],
    load: Callable[[Sequence[Server]], None],
) -> int | None:
    """Search the batch weight and load the servers that passed the last probe.

    Servers that run out of memory under load have not passed: the search goes on. A search
    that ended in an earlier attempt costs one start, of the weight it chose.

    Args:
        record: the probes so far; new ones are added as they end.
        start: starts the servers of a cell with a batch weight.
        check: puts the corner cases of a weight on them (`corner_cases`).

    Returns:
        The batch weight that was loaded; None if none works.

    Raises ServerError: a server failed for a reason other than memory.
    """
    while True:
        untried = next_weight(record.probes, limits)
        weight = record.chosen if untried is None else untried
        if weight is None:
            return None
        started_s = time.monotonic()
        try:
            with start(weight) as servers:
                if untried is not None:
                    check(servers, weight)
                    memory = worst([server.memory() for server in servers])
                    detail, duration_s = "all corner cases passed", time.monotonic() - started_s
                    record.add(Probe(weight, "ok", detail, duration_s, memory))
                for server in servers:
                    server.stop_watching_memory()
                if next_weight(record.probes, limits) is None:
                    load(servers)
                    return weight
        except ServerError as error:
            if not error.is_out_of_memory:
                raise
            duration_s = time.monotonic() - started_s
            record.add(Probe(weight, "out_of_memory", str(error), duration_s, error.memory))
