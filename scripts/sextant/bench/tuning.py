"""Tunes the batch weight: the largest that real servers hold under load, in few server starts.

After LLM-Pilot, section III-C2, which bisects. A start costs minutes, so `next_weight` also uses
what each start reports: the memory left at the peak of its load, what a failed allocation lacked,
and what vLLM's own profiling left for the KV cache.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sextant.base.whole_files import atomic_path
from sextant.engine.protocol import RunningServer, ServerError
from sextant.load.measure import LoadTargets
from sextant.load.schedules import ArrivalSchedule, run_open_loop
from sextant.load.source import Prompts, RequestSource, draw_in_order
from sextant.points.cell_files import from_json, to_json
from sextant.points.verdict import MemoryFacts, Probe
from sextant.workload.request_model import RequestModel

log = logging.getLogger(__name__)
TOLERANCE = 0.02  # starts are not spent on weights closer than this to the largest that works
# An estimate is aimed at from below by this much; the rest of the tolerance is for its error.
_MARGIN = 0.014
_OPTIMISM = 0.7  # where to aim between the least and the most that an estimate allows
_READING_ERROR = 0.003  # by how much an estimate of the largest weight may be wrong
# Without an estimate: where to look below the bound that a failed allocation set, and below a
# weight that failed though it had passed its corner cases, which say no more about it.
_BOUND_GUESS = 0.7
_SHORT_OUTPUT_TOKENS = 4  # enough to decode a few times after the prefill


@dataclass(frozen=True)
class WeightRange:
    """The weights to search, and what a token takes."""

    lowest_tokens: int  # the longest request: with less the LLM cannot serve the workload
    highest_tokens: int  # upper bound from memory facts
    kv_bytes_per_token: float  # KV cache of a token on one device
    max_starts: int = 5


def next_weight(probes: list[Probe], limits: WeightRange) -> int | None:
    """Return the batch weight to probe next; None when the search has ended.

    The first is the upper bound from memory facts, which often works. The last is the best that
    passed, or the lowest, since the last server is the one that is loaded. There are more than
    `max_starts` if a weight that passed fails later.
    """
    if not probes:
        return limits.highest_tokens
    evidence = _Evidence(probes, limits)
    starts_left = limits.max_starts - len(probes)
    is_done = starts_left < 2 or evidence.is_close() or evidence.is_overloaded
    if probes[-1].outcome == "ok" and evidence.best and is_done:
        return None
    if limits.lowest_tokens >= evidence.ceiling:
        return None  # even the longest request alone does not fit
    if evidence.is_overloaded:
        return evidence.well_below_ceiling()
    if starts_left > 1 and not evidence.is_close():
        return evidence.guess()
    if evidence.best:
        return evidence.best.batch_weight_tokens
    if any(probe.outcome == "ok" for probe in probes):
        # It failed when it was started again: the largest weight varies from start to start.
        return evidence.well_below_ceiling()
    return limits.lowest_tokens if starts_left == 1 else None


def possible_gain(probes: list[Probe], limits: WeightRange) -> float | None:
    """Return by which fraction a weight that works may exceed the best; None without one."""
    evidence = _Evidence(probes, limits)
    if evidence.best is None:
        return None
    return max(0.0, evidence.highest_possible() / evidence.best.batch_weight_tokens - 1)


class _Evidence:
    """What all probes say together."""

    def __init__(self, probes: list[Probe], limits: WeightRange) -> None:
        self.limits = limits
        self.failed = [probe for probe in probes if probe.outcome != "ok"]
        # The least weight that failed.
        failed_tokens = [probe.batch_weight_tokens for probe in self.failed]
        self.ceiling = min(failed_tokens, default=limits.highest_tokens + 1)
        # That weight had passed its corner cases, and failed under load.
        self.is_overloaded = any(
            probe.is_under_load and probe.batch_weight_tokens == self.ceiling
            for probe in self.failed
        )
        # A weight that passed at or above one that failed proves nothing.
        self.passed = sorted(
            (p for p in probes if p.outcome == "ok" and p.batch_weight_tokens < self.ceiling),
            key=lambda probe: probe.batch_weight_tokens,
        )
        self.best = self.passed[-1] if self.passed else None
        # What vLLM itself would have made the KV cache: with room for its largest step.
        profiled = (probe.memory.profiled_tokens for probe in probes)
        self.profiled = [tokens for tokens in profiled if tokens is not None]
        self.estimate = self._estimate()

    def is_close(self) -> bool:
        """Return whether the best weight is within the tolerance of the largest that works."""
        if self.best is None:
            return False
        weight = self.best.batch_weight_tokens
        is_bracketed = self.ceiling - weight <= max(1, TOLERANCE * self.ceiling)
        return is_bracketed or self.highest_possible() <= weight * (1 + TOLERANCE - _READING_ERROR)

    def highest_possible(self) -> int:
        """Return the largest weight that may work.

        The memory that was left is better evidence than what an allocation lacked: fragmented
        memory fails early.
        """
        if self.estimate:
            bounds = [int(self.estimate[1])]
        else:
            kv_bytes = self.limits.kv_bytes_per_token
            lacked = ((it.batch_weight_tokens, it.memory.lacking_bytes) for it in self.failed)
            bounds = [int(weight - n / kv_bytes) for weight, n in lacked if n is not None]
        return max(self.limits.lowest_tokens, min([self.ceiling - 1, *bounds]))

    def _estimate(self) -> tuple[float, float] | None:
        """Return the least and the most that the largest weight may be; None if unknown."""
        # A token takes at least its KV cache. What the load takes besides grows with the weight,
        # but ever less, since batches reach their caps: at most in proportion, and at most as
        # steeply as between two weights that passed.
        free_memory = [
            (probe.batch_weight_tokens, probe.memory.free_bytes, probe.memory.idle_free_bytes)
            for probe in self.passed
            if probe.memory.free_bytes is not None
        ]
        if not free_memory:
            return None
        weight, free_bytes, idle_free_bytes = free_memory[-1]
        kv_bytes = self.limits.kv_bytes_per_token
        slopes = []  # bytes a token takes, KV cache and load together, at most
        if idle_free_bytes is not None:
            slopes.append(kv_bytes + (idle_free_bytes - free_bytes) / weight)
        # The best may have started twice.
        smaller = [start for start in free_memory if start[0] < weight]
        if smaller:
            smaller_weight, smaller_free_bytes, _ = smaller[-1]
            slopes.append((smaller_free_bytes - free_bytes) / (weight - smaller_weight))
        token_bytes = max(kv_bytes, min(slopes, default=kv_bytes))
        left_bytes = max(0, free_bytes)
        return weight + left_bytes / token_bytes, weight + left_bytes / kv_bytes

    def guess(self) -> int:
        """Return a weight between the best that passed and the least that failed."""
        floor = self.best.batch_weight_tokens if self.best else self.limits.lowest_tokens - 1
        highest: float = self.highest_possible()
        profiled = [tokens for tokens in self.profiled if floor < tokens <= highest]
        if self.estimate:
            least, most = self.estimate
            wanted = (1 - _MARGIN) * (least + _OPTIMISM * (most - least))
            if wanted >= highest:  # a failure since then shows that it was too much
                wanted = min((max(least, floor) + highest) / 2, (1 - TOLERANCE) * self.ceiling + 1)
            wanted = wanted if wanted > floor * (1 + _MARGIN) else (floor + highest) / 2
        elif profiled:
            wanted = min(profiled)
        elif highest < self.ceiling - 1 and len(self.failed) == 1:
            wanted = floor + _BOUND_GUESS * (highest - floor)
        else:
            wanted = (floor + self.ceiling) // 2
        return int(min(max(wanted, floor + 1), self.ceiling - 1))

    def well_below_ceiling(self) -> int:
        """Return a weight well below the least that failed."""
        return max(self.limits.lowest_tokens, int(_BOUND_GUESS * self.ceiling))


class CornerCase(NamedTuple):
    """Requests that are sent all at once."""

    name: str
    n_requests: int
    input_tokens: int
    output_tokens: int


def probe_lengths(model: RequestModel, name: str, cap: int) -> tuple[int, int, int]:
    """Return the least and the mean (of the bins) and the most (`cap`) of a workload's lengths."""
    values = model.frame[name].to_numpy(float)
    mean = np.average(values, weights=model.weights)
    least, mean = (int(np.clip(round(value), 1, cap)) for value in (values.min(), mean))
    return least, mean, cap


def corner_cases(
    batch_weight_tokens: int,
    input_tokens: tuple[int, int, int],
    output_tokens: tuple[int, int, int],
    max_num_seqs: int,
) -> list[CornerCase]:
    """Return the batches at the extremes of a batch weight, after LLM-Pilot, section III-C2.

    Lengths are as of `probe_lengths`. No request ends before the others have begun.
    """
    (least_in, mean_in, most_in), (least_out, mean_out, most_out) = input_tokens, output_tokens
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
    servers: Sequence[RunningServer],
    cases: Sequence[CornerCase],
    prompts: Prompts,
    seed: int,
    timeout_s: float,
) -> None:
    """Put each case on all servers at once; ServerError: a request failed, or a server died."""
    addresses = [server.target for server in servers]
    for number, case in enumerate(cases):
        requests = draw_in_order([case.input_tokens], [case.output_tokens], prompts)
        source = RequestSource(addresses[0].model, requests, seed + number)
        # Request i goes to server i mod n: each gets the whole case.
        schedule = ArrivalSchedule(np.zeros(case.n_requests * len(servers)))
        targets = LoadTargets(addresses, timeout_s, epoch_ns=time.monotonic_ns())
        result = run_open_loop(targets, source, schedule)
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

    def __init__(self, path: Path, depends_on: object, title: str = "batch weight") -> None:
        """Take over the probes in the file whose outcome depended on the same.

        `title` begins the lines of the log, e.g. with the cell's name.
        """
        self.path = path
        self._title = title
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
            n_probes = len(self.probes)
            log.info("%s: %d server starts are known from an earlier attempt", title, n_probes)
        self._write()

    def add(self, probe: Probe) -> None:
        """Keep a probe. One that failed under load replaces its pass: one start is one probe."""
        passed = [(last.outcome, last.batch_weight_tokens) for last in self.probes[-1:]]
        if probe.outcome != "ok" and passed == [("ok", probe.batch_weight_tokens)]:
            self.probes.pop()
            probe = replace(probe, is_under_load=True)
        self.probes.append(probe)
        self._write()
        outcome = "the server holds" if probe.outcome == "ok" else f"{probe.outcome} with"
        words = "%s: %s %s tokens of requests in flight (batch weight)"
        log.info(words, self._title, outcome.replace("_", " "), f"{probe.batch_weight_tokens:,}")

    def take_over(self, probes: Sequence[Probe]) -> None:
        """Take over the probes of earlier results, whose outcome depended on the same."""
        self.probes = [*probes]
        self._write()

    def _write(self) -> None:
        lines = [json.dumps({"key": self._key, **to_json(probe)}) + "\n" for probe in self.probes]
        with atomic_path(self.path) as path:
            path.write_text("".join(lines))


def tune_and_load(
    limits: WeightRange,
    record: ProbeRecord,
    start: Callable[[int], AbstractContextManager[Sequence[RunningServer]]],
    check: Callable[[Sequence[RunningServer], int], None],
    load: Callable[[Sequence[RunningServer]], None],
) -> int | None:
    """Search the batch weight, and `load` the servers that passed the last probe.

    Returns their weight; None if none works. `start` starts servers with a weight, `check` puts the
    corner cases on them. Servers that run out of memory under load have not passed, nor have those
    of an earlier attempt (`record`). ServerError: a server failed for another reason than memory.
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
                    detail = "all corner cases passed"
                    duration_s = time.monotonic() - started_s
                    memory = MemoryFacts.least_of([server.memory() for server in servers])
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
