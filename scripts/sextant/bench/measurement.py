"""Measures the levels of a cell on running servers, keeps each as it ends, and writes the files."""

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sextant.base.files import provenance
from sextant.base.job_log import Progress
from sextant.bench.burst import run_phases
from sextant.bench.burst_loads import BurstPlan
from sextant.bench.definition import Cell, Checkpoint
from sextant.engine.host import host_facts
from sextant.engine.http import mean_itl_ms, server_gauges
from sextant.engine.protocol import Server
from sextant.engine.registry import ENGINES
from sextant.engine.watcher import Watched, WatchPlan, watch
from sextant.experiment.scenarios import Burst, ClosedLoop, OpenLoop, Scenario, as_json
from sextant.experiment.servers import EngineSettings
from sextant.load.measure import LevelResult
from sextant.load.results import level_run
from sextant.load.run import LEVEL_SEED_STRIDE, measure_level
from sextant.load.source import RequestSource, unsent_parameters
from sextant.points.cell_files import TABLES, write_cell
from sextant.points.metrics import points_query
from sextant.points.run import CELL_KEY, CellRun, LeftOut, LevelMedians, LevelRun, ServerFacts, Stop
from sextant.points.verdict import FEASIBLE, Feasibility, Outcome, Probe, Tuning, Verdict
from sextant.workload.generators import Arrivals
from sextant.workload.prompts import PromptSource, RandomTokens, load_prompt_source
from sextant.workload.published import load_request_model


@dataclass
class Record:
    """What is known of a cell beside its tables."""

    probes: Sequence[Probe] = ()
    levels: list[LevelRun] = field(default_factory=list)
    """Those that the checkpoint holds."""
    left_out: LeftOut | None = None
    """The levels that were skipped, since they could not meet the limits."""
    possible_gain: float | None = None
    """How much larger a batch weight that works may be, as a fraction of the one that was tuned."""
    server: ServerFacts | None = None
    unsent_parameters: list[str] = field(default_factory=list)
    prompts: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))


def write_results(
    cell: Cell, folder: Path, record: Record, feasibility: Feasibility | None, kept: Checkpoint
) -> None:
    """Write all files of a cell to its folder.

    `feasibility` is None of servers that run already: only their host knows their memory.
    """
    verdict = feasibility.verdict if feasibility else FEASIBLE
    if verdict.is_feasible and record.server is None:
        n_starts = {"n_server_starts": len(record.probes)}
        verdict = Verdict(Outcome.NO_BATCH_WEIGHT_PASSED, n_starts)
    tuning = Tuning(
        verdict=verdict,
        batch_weight_tokens=record.server.batch_weight_tokens if record.server else None,
        possible_gain=record.possible_gain,
        memory=feasibility,
        probes=tuple(record.probes),
    )
    tables = {name: kept.table(name, record.levels) for name in TABLES}
    run = CellRun(
        **{name: getattr(cell, name) for name in CELL_KEY if name != "variant_id"},
        variant_id=cell.variant.variant_id,
        scenario=as_json(cell.scenario),
        variant=cell.variant,
        verdict=tuning.verdict,
        batch_weight_tokens=tuning.batch_weight_tokens,
        server=record.server,
        seed=cell.seed,
        sampler=cell.sampler,
        prompts=record.prompts,
        unsent_parameters=tuple(record.unsent_parameters),
        levels=tuple(record.levels),
        left_out=record.left_out,
        started_at=record.started_at.replace(microsecond=0),
        host=host_facts(),
        definition=cell.definition,
        definition_sha256=cell.definition_sha256,
        provenance=provenance({"workload": cell.workload_path}, seed=cell.seed),
    )
    write_cell(folder, run, tuning, tables)


MIN_REQUESTS = 10
"""Fewest served requests whose medians decide. A level with fewer does not stop the sweep."""


def reason_to_stop(
    levels: Sequence[LevelMedians], nttft_limit_ms: float, itl_limit_ms: float, factor: float
) -> Stop | None:
    """Return why more users need not be measured, None as long as they must.

    They need not where both medians at the last level, users ascending, exceed their limits (ms per
    input token, ms) by `factor` of 1 or more: more users wait longer, so no larger level can meet
    either limit. A level with fewer than 10 served requests, or without one of the medians, decides
    nothing.
    """
    last = levels[-1] if levels else None
    if last is None or last.n_ok < MIN_REQUESTS or last.nttft_ms is None or last.itl_ms is None:
        return None
    if last.nttft_ms <= factor * nttft_limit_ms or last.itl_ms <= factor * itl_limit_ms:
        return None
    return Stop(last, nttft_limit_ms, itl_limit_ms, factor)


def level_medians(level: float, requests: pa.Table) -> LevelMedians:
    """Return what the stop rule looks at, of a closed loop's rows."""
    with duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        database.register("rows", requests)
        query = points_query(
            "(SELECT 0 AS cell, sent_s AS start_s, * FROM rows)",
            f"(SELECT 0 AS cell, '{level}'::DOUBLE AS level, 1.0 AS duration_s)",
        )
        names = "n_ok, median_nttft_ms, median_itl_ms"
        (row,) = database.execute(f"SELECT {names} FROM ({query})").fetchall()
    return LevelMedians(level, *row)


log = logging.getLogger(__name__)


class Measurement:
    """The levels of one cell: what is measured goes to the checkpoint and to `record`."""

    def __init__(
        self,
        cell: Cell,
        settings: EngineSettings,
        record: Record,
        kept: Checkpoint,
        progress: Progress,
        vocab_size: int,
    ) -> None:
        self.cell, self.settings, self.record = cell, settings, record
        self.kept, self.progress = kept, progress
        self.model = load_request_model(cell.workload_path)
        self._vocab_size = vocab_size
        self._scenarios = _scenarios(cell)
        self._epoch_ns = time.monotonic_ns()
        self._timeout_s = cell.scenario.timeout_s or settings.request_timeout_s
        self._metric_names = ENGINES[settings.name].metric_names

    def run(self, servers: Sequence[Server]) -> None:
        """Measure what was not measured before at this batch weight; ServerError if one died."""
        cell, record = self.cell, self.record
        record.unsent_parameters = unsent_parameters(self.model)
        if record.unsent_parameters:
            log.warning("requests do not carry: %s", ", ".join(record.unsent_parameters))
        record.server = _server_facts(servers, self.settings)
        kept = self.kept.levels(servers[0].batch_weight_tokens)
        # One result has one version and one time limit: levels of others are measured again.
        same = (record.server.version, self._timeout_s)
        record.levels = [it for it in kept if (it.engine_version, it.timeout_s) == same]
        if record.levels:
            log.info("%d levels were measured by an earlier attempt", len(record.levels))
            # Times count from the start of the first attempt, so that no two levels overlap; by the
            # wall clocks of both attempts, which on two nodes may differ a little.
            record.started_at = record.levels[0].times_since or record.started_at
            ended_s = max(level.ended_s or 0.0 for level in record.levels)
            since_s = (datetime.now(UTC) - record.started_at).total_seconds()
            self._epoch_ns = time.monotonic_ns() - int(max(since_s, ended_s) * 1e9)
        prompts, record.prompts = _prompts(cell, self._vocab_size)
        if isinstance(cell.scenario, Burst):
            self._measure_phases(cell.scenario, servers, prompts)
        else:
            self._measure_levels(servers, prompts)

    def _measure_levels(self, servers: Sequence[Server], prompts: PromptSource) -> None:
        cell, record = self.cell, self.record
        known, targets = {run.level for run in record.levels}, [it.target for it in servers]
        for number, level in enumerate(cell.scenario.levels):
            if level in known:
                continue
            if stop := self._stop():
                record.left_out = LeftOut(cell.scenario.levels[number:], stop)
                log.info("levels %s", record.left_out)
                return
            self.progress.step(f"level {level:g}")
            seed = cell.seed + LEVEL_SEED_STRIDE * (number + 1)
            source = RequestSource(targets[0].model, self.model, prompts, seed, cell.sampler)
            load = (self._scenarios[level], level, targets, source, self._timeout_s, self._epoch_ns)
            with self._watching(servers, level) as (found, note_metrics):
                before = partial(note_metrics, "before")
                result = measure_level(*load, seed=seed, before=before)
            self._keep(servers, level, result, found)

    def _stop(self) -> Stop | None:
        """Return why larger levels can be skipped; None if they must be measured."""
        scenario, levels = self.cell.scenario, self.record.levels
        if not isinstance(scenario, ClosedLoop):
            return None
        if scenario.stop_nttft_ms is None or scenario.stop_itl_ms is None:
            return None
        medians = [run.medians for run in levels if run.medians]
        limits = (scenario.stop_nttft_ms, scenario.stop_itl_ms)
        return reason_to_stop(medians, *limits, scenario.stop_factor)

    def _measure_phases(
        self, scenario: Burst, servers: Sequence[Server], prompts: PromptSource
    ) -> None:
        """Measure BurstGPT's phases; later ones rest on the first, so all are measured again."""
        self.kept.forget_levels()
        self.record.levels.clear()
        plan = BurstPlan(
            phases=[int(level) for level in scenario.levels],
            alpha=scenario.burstiness,
            warmup_s=scenario.warmup_s,
            mirrored_s=scenario.duration_s,
            n_per_change=scenario.n_requests or BurstPlan.n_per_change,
        )
        targets = [server.target for server in servers]
        limits = (self._timeout_s, self._epoch_ns, self.cell.seed)
        phases = run_phases(
            targets, self.model, prompts, plan, *limits, lambda: self._kv_cache_usage(servers)
        )
        for number in sorted({1, *plan.phases}):
            self.progress.step(f"phase {number}")
            with self._watching(servers, float(number)) as (found, note_metrics):
                note_metrics("before")
                phase, result = next(phases)
            self._keep(servers, float(number), result, found, phase)

    def _kv_cache_usage(self, servers: Sequence[Server]) -> float | None:
        """Return the mean use of the replicas' KV caches, None if a server does not report it."""
        usages = []
        for server in servers:
            try:
                gauges = server_gauges(server.metrics(), self._metric_names)
            except OSError:
                return None
            if gauges["kv_cache_usage"] is None:
                return None
            usages.append(gauges["kv_cache_usage"])
        return statistics.fmean(usages)

    @contextmanager
    def _watching(
        self, servers: Sequence[Server], level: float
    ) -> Iterator[tuple[dict, Callable[[str], None]]]:
        """Watch servers and devices; the dict then holds what was `watched`, and metrics `after`.

        The function notes the servers' metrics there under another name.
        """
        is_cpu = self.cell.devices.kind == "cpu"
        plan = WatchPlan(
            kind=self.cell.devices.kind,
            devices=tuple(dict.fromkeys(i for s in servers for i in s.device_indices)),
            pids=tuple(pid for s in servers for pid in s.pids) if is_cpu else (),
            server_urls=tuple(server.target.base_url for server in servers),
            metric_names=self._metric_names,
            dcgm_url=self.settings.dcgm_url,
        )
        found: dict = {}

        def note_metrics(name: str) -> None:
            found[name] = _metrics(servers, level)

        with watch(plan, self._epoch_ns, level) as watcher:
            yield found, note_metrics
            found["watched"] = watcher.stop()
        note_metrics("after")

    def _keep(
        self,
        servers: Sequence[Server],
        level: float,
        result: LevelResult,
        found: dict,
        phase: dict[str, Any] | None = None,
    ) -> None:
        """Keep a level that is whole: its entry in `run.json`, and its rows."""
        for warning in result.warnings:
            # On a CPU the client shares the server's cores: the report says so, once.
            is_usual = warning == result.lag_warning and self.cell.devices.kind == "cpu"
            log.log(logging.DEBUG if is_usual else logging.WARNING, "level %g: %s", level, warning)
        watched: Watched = found["watched"]
        requests = result.table()
        run = level_run(
            level,
            result,
            server_mean_itl_ms=mean_itl_ms(found["before"], found["after"], self._metric_names),
            telemetry_warnings=tuple(watched.warnings),
            engine_version=self.record.server.version if self.record.server else None,
            timeout_s=self._timeout_s,
            times_since=self.record.started_at,
            # Of users alone: elsewhere latency counts from due times.
            medians=level_medians(level, requests) if self.cell.scenario.has_users else None,
            phase=phase,
        )
        tables = {"requests": requests, "server": watched.server, "telemetry": watched.telemetry}
        self.kept.save(run, servers[0].batch_weight_tokens, tables)
        self.record.levels.append(run)


def _scenarios(cell: Cell) -> dict[float, Scenario]:
    """Return the scenario of each level: arrivals of a workload have the level's rate.

    Raises InputError, before any server starts, if the workload has no such arrivals.
    """
    if not isinstance(cell.scenario, OpenLoop):
        return dict.fromkeys(cell.scenario.levels, cell.scenario)
    found: dict[float, Scenario] = {}
    for level in cell.scenario.levels:
        own = cell.scenario.with_arrivals_of(cell.workload_path.parent, level)
        if isinstance(own.arrivals, Arrivals) and own is not cell.scenario:
            log.info("level %g: %s arrivals (%s)", level, cell.scenario.arrivals, own.arrivals.kind)
        found[level] = own
    return found


def _prompts(cell: Cell, vocab_size: int) -> tuple[PromptSource, str]:
    """Return what makes a cell's prompts, and its name; without a tokenizer they are random."""
    tokenizer = Path(cell.model or "") / "tokenizer.json"
    if cell.prompts and cell.model and tokenizer.is_file():
        return load_prompt_source(cell.prompts, tokenizer, vocab_size=vocab_size), cell.prompts
    if cell.prompts:
        log.warning("%s has no tokenizer.json: its prompts are random token ids", cell.llm_id)
    return RandomTokens(vocab_size), "random token ids"


def _server_facts(servers: Sequence[Server], settings: EngineSettings) -> ServerFacts:
    first = servers[0]
    starts_servers = ENGINES[settings.name].starts_servers
    return ServerFacts(
        engine=settings.name,
        version=first.version(),
        precision=settings.dtype if starts_servers else None,
        command=tuple(first.command) if first.command else None,
        url=None if starts_servers else first.target.base_url,
        start_duration_s=first.start_duration_s,
        devices=tuple(server.device_indices for server in servers),
        batch_weight_tokens=first.batch_weight_tokens,
    )


def _metrics(servers: Sequence[Server], level: float) -> str:
    """Return the metrics of all replicas, one after another: their sums are those of the cell."""
    texts = []
    for server in servers:
        try:
            texts.append(server.metrics())
        except OSError as error:
            raise server.error(f"the server died at level {level:g} ({error})") from error
        if not server.is_healthy():  # an API server may outlive its engine
            raise server.error(f"the engine ended at level {level:g}")
    return "\n".join(texts)
