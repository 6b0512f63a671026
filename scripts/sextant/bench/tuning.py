"""Tunes the batch weight on real servers, and loads those that passed the last probe."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from sextant.base.files import atomic_path
from sextant.bench.batch_weight import WeightRange, next_weight
from sextant.engine.free_memory import worst
from sextant.engine.protocol import Server, ServerError
from sextant.points.cells.files import from_json, to_json
from sextant.points.cells.tuning import Probe

log = logging.getLogger(__name__)


class ProbeRecord:
    """The probes of a cell in a file that survives the job: a line each, written as it ends."""

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
        limits: the weights to search.
        record: the probes so far; new ones are added as they end.
        start: starts the servers of a cell with a batch weight.
        check: puts the corner cases of a weight on them (`corner_cases`).
        load: puts the scenario on them.

    Returns:
        The batch weight that was loaded; None if none works.

    Raises:
        ServerError: a server failed for a reason other than memory.
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
