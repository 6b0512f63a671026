"""Tunes the batch weight: probes the extreme batches that a weight allows, on real servers."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sextant.base.files import atomic_path
from sextant.bench.batch_weight import WeightRange, next_weight
from sextant.engine.protocol import Server, ServerError
from sextant.load.schedules import run_open_loop
from sextant.load.source import ListedRequests
from sextant.points.cell_files import from_json, to_json
from sextant.points.verdict import MemoryFacts, Probe
from sextant.workload.prompts import PromptSource
from sextant.workload.request_model import RequestModel

log = logging.getLogger(__name__)
# Enough tokens to decode a few times after the prefill has filled the KV cache.
_SHORT_OUTPUT_TOKENS = 4


class RequestLengths(NamedTuple):
    """The shortest, mean and longest requests of a workload, in tokens."""

    input_tokens: tuple[int, int, int]
    output_tokens: tuple[int, int, int]


class CornerCase(NamedTuple):
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

    No output is so short that its request would end before the others have begun.
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
    """Put each case on all servers at once; ServerError: a request failed, or a server died."""
    targets = [server.target for server in servers]
    for number, case in enumerate(cases):
        lengths = ([case.input_tokens], [case.output_tokens])
        source = ListedRequests(targets[0].model, *lengths, prompts, seed + number)
        # Request i goes to server i mod n: each gets the whole case.
        due_s = np.zeros(case.n_requests * len(servers))
        result = run_open_loop(targets, source, due_s, timeout_s, time.monotonic_ns())
        rows = result.table().select(["status", "error", "replica"]).to_pylist()
        if failed := next((row for row in rows if row["status"] != "ok"), None):
            problem = failed["error"]
            if failed["status"] == "timeout":
                problem += ". Fix: raise engine.request_timeout_s, unless the server hangs"
            raise servers[failed["replica"]].error(f"corner case '{case.name}' failed: {problem}")
        for server in servers:
            if not server.is_healthy():
                raise server.error(f"the engine ended after corner case '{case.name}'")


class ProbeRecord:
    """The probes of a cell in a file that survives the job, one line per probe."""

    def __init__(self, path: Path, depends_on: object) -> None:
        """Take over the probes in the file whose outcome depended on the same."""
        self.path = path
        text = json.dumps(depends_on, sort_keys=True)
        self._key = hashlib.sha256(text.encode()).hexdigest()
        self.probes: list[Probe] = []
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if entry.pop("key") == self._key:
                    self.probes.append(from_json(Probe, entry))
            except (ValueError, TypeError, KeyError, AttributeError):
                log.warning("%s, line %d is damaged: the rest is kept", path, number)
        if self.probes:
            log.info("%d server starts are known from an earlier attempt", len(self.probes))
        self._write()

    def add(self, probe: Probe) -> None:
        """Keep a probe. One that failed under load replaces its pass: one start is one probe."""
        passed = [(last.outcome, last.batch_weight_tokens) for last in self.probes[-1:]]
        if probe.outcome != "ok" and passed == [("ok", probe.batch_weight_tokens)]:
            self.probes.pop()
            probe = replace(probe, is_under_load=True)
        self.probes.append(probe)
        self._write()
        log.info("batch weight %d tokens: %s", probe.batch_weight_tokens, probe.outcome)

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
    """Search the batch weight; load the servers that passed the last probe and return their weight.

    Servers that run out of memory under load have not passed: the search goes on. A search that
    ended in an earlier attempt, which `record` knows, costs one start, of the weight it chose.
    `start` starts the servers of a cell with a weight, `check` puts its corner cases on them.
    None if no weight works. Raises ServerError: a server failed for another reason than memory.
    """
    while True:
        weight = untried = next_weight(record.probes, limits)
        if weight is None:  # the search has ended: the last probe tells how
            if not record.probes or record.probes[-1].outcome != "ok":
                return None
            weight = record.probes[-1].batch_weight_tokens
        started_s = time.monotonic()
        try:
            with start(weight) as servers:
                if untried is not None:
                    check(servers, weight)
                    detail, duration_s = "all corner cases passed", time.monotonic() - started_s
                    record.add(Probe(weight, "ok", detail, duration_s, _least_memory(servers)))
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


def _least_memory(servers: Sequence[Server]) -> MemoryFacts:
    """Return the facts of the server with the least memory, of servers that run together."""
    each = [vars(server.memory()) for server in servers]
    known = {name: [it[name] for it in each if it[name] is not None] for name in each[0]}
    least = {name: min(values, default=None) for name, values in known.items()}
    return MemoryFacts(**least | {"lacking_bytes": max(known["lacking_bytes"], default=None)})
