"""What a cell is, and its measurement: levels on running servers, kept as they end, and files."""

import logging
import shutil
import statistics
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.files import provenance, read_json, write_json, write_parquet
from sextant.base.job_log import Progress
from sextant.bench.burst import run_phases
from sextant.engine.device_locks import n_other_processes
from sextant.engine.devices import host_facts
from sextant.engine.http import accepted_length, mean_itl_ms, server_gauges
from sextant.engine.protocol import RunningServer
from sextant.engine.registry import ENGINES
from sextant.engine.watcher import Watched, Watcher, WatchPlan
from sextant.experiment import scenarios
from sextant.experiment.experiment import definition_sha256, inputs_sha256, without_levels
from sextant.experiment.scenarios import Burst, ClosedLoop, OpenLoop, Scenario
from sextant.experiment.servers import EngineSettings, Variant
from sextant.experiment.sheets import CellKey
from sextant.facts.gpu import Devices
from sextant.load.measure import LevelResult, LoadTargets
from sextant.load.run import LEVEL_SEED_STRIDE, measure_level
from sextant.load.source import Prompts, RequestSource, drawn_from, unsent_parameters
from sextant.points import cell_files
from sextant.points.cell_files import MeasuredCell
from sextant.points.run import (
    CellOrigin,
    CellRun,
    EarlyStop,
    LeftOut,
    LevelMedians,
    LevelRun,
    SentRequests,
    ServerFacts,
    ServerReport,
)
from sextant.points.verdict import FEASIBLE, Feasibility, Probe, ProbeOutcome, Tuning, Verdict
from sextant.workload.prompts import RandomTokens, load_prompt_source
from sextant.workload.published import load_request_model

log = logging.getLogger(__name__)
_MIN_REQUESTS = 10  # fewest served requests whose medians may stop the sweep


@dataclass(frozen=True)
class Cell:
    """An LLM × GPU profile × workload × scenario, with all that its measurement depends on."""

    source: str
    key: CellKey
    config_path: Path  # the LLM's `config.json`
    model: str | None  # folder of the weights; None for random weights from the config alone
    devices: Devices
    workload_path: Path
    max_input_tokens: int
    max_output_tokens: int
    scenario: Scenario
    seed: int
    definition: Mapping[str, Any]  # what the cell was built from, plain data; see `cell_definition`
    contents_sha256: tuple[str, ...]  # of the files that count beside it (`inputs_sha256`)
    variant: Variant
    sampler: str = "joint"  # how requests are drawn from the workload; see `RequestModel.sample`
    prompts: str | None = None  # file that prompts are cut from; None for random token ids

    @property
    def definition_sha256(self) -> str:
        """SHA-256 of the definition, and of the contents."""
        return definition_sha256(self.definition, *self.contents_sha256)

    @property
    def level_sha256(self) -> str:
        """SHA-256 of what a level depends on, whichever other levels there are."""
        return definition_sha256(without_levels(self.definition), *self.contents_sha256)

    @property
    def longest_request_tokens(self) -> int:
        """Input and output tokens of the workload's longest request."""
        return self.max_input_tokens + self.max_output_tokens

    def prompt_source(self, vocab_size: int) -> tuple[Prompts, str]:
        """Return what makes the prompts, and its name; without a tokenizer they are random."""
        tokenizer = Path(self.model or "") / "tokenizer.json"
        if self.prompts and self.model and tokenizer.is_file():
            return load_prompt_source(self.prompts, tokenizer, vocab_size=vocab_size), self.prompts
        if self.prompts:
            llm_id = self.key.llm_id
            log.warning("%s has no tokenizer.json: its prompts are random token ids", llm_id)
        return RandomTokens(vocab_size), "random token ids"


def cell_from_definition(definition: Mapping[str, Any], workload_path: str | Path) -> Cell:
    """Build a cell from its definition (see `sextant.experiment.experiment.cell_definition`)."""
    variant = Variant(**definition.get("variant", {}))
    return Cell(
        source=definition["source"],
        key=CellKey(
            definition["llm_id"],
            definition["gpu_profile_id"],
            definition["workload_id"],
            definition["scenario_id"],
            variant.variant_id,
        ),
        config_path=Path(definition["config_path"]),
        model=definition["model"],
        devices=Devices(**definition["devices"]),
        workload_path=Path(workload_path),
        max_input_tokens=definition["max_input_tokens"],
        max_output_tokens=definition["max_output_tokens"],
        scenario=scenarios.scenario_of(definition["scenario"]),
        seed=definition["seed"],
        definition=definition,
        contents_sha256=inputs_sha256(definition, workload_path, definition["config_path"]),
        variant=variant,
        sampler=definition.get("sampler", "joint"),
        prompts=definition.get("prompts"),
    )


class Checkpoint:
    """The finished levels of a cell; those of another definition or machine are not taken over."""

    def __init__(self, folder: Path, definition_sha256: str, hardware: str) -> None:
        """Keep the levels in `folder` that are whole and of this definition and hardware."""
        self.folder = folder
        self.hardware = hardware
        self._key = {"definition_sha256": definition_sha256, "hardware": hardware}
        folder.mkdir(parents=True, exist_ok=True)
        for level in sorted(folder.glob("level-*")):
            if problem := self._problem(level):
                log.warning("%s: %s; it is measured again", level, problem)
                shutil.rmtree(level)

    def _problem(self, level: Path) -> str | None:
        if not (level / "level.json").exists():
            return "it was not finished"
        try:
            entry = read_json(level / "level.json")
            if entry["key"]["definition_sha256"] != self._key["definition_sha256"]:
                return "it was measured by another definition"
            if (machine := entry["key"]["hardware"]) != self._key["hardware"]:
                return f"it was measured on {machine}"
            cell_files.from_json(LevelRun, entry["level"])
            tables = [level / name for name in entry["files"]]
            if cell_files.file_facts(tables) == entry["files"]:
                return None
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return "its files are damaged"

    def save(
        self, level: LevelRun, batch_weight_tokens: int | None, tables: dict[str, pa.Table]
    ) -> None:
        """Keep a finished level; `level.json`, which declares it whole, comes last."""
        folder = self._folder_of(level)
        paths = {folder / f"{name}.parquet": table for name, table in tables.items()}
        for path, table in paths.items():
            write_parquet(path, table, {})
        entry = {"batch_weight_tokens": batch_weight_tokens, "level": cell_files.to_json(level)}
        entry |= {"key": self._key, "files": cell_files.file_facts(paths)}
        write_json(folder / "level.json", entry)

    def take_over(self, former: MeasuredCell) -> None:
        """Keep the levels of whole results that were measured by this definition, here."""
        tables: dict[str, pa.Table] = {}
        for level in former.run.levels:
            if level.phase is not None or self._folder_of(level).exists():
                continue  # phases of a burst rest on each other
            tables = tables or {
                name: pq.read_table(former.folder / f"{name}.parquet") for name in cell_files.TABLES
            }
            rows = {
                name: table.filter(pc.equal(table["level"], level.level)).replace_schema_metadata()
                for name, table in tables.items()
            }
            self.save(level, former.run.batch_weight_tokens, rows)

    def levels(self, batch_weight_tokens: int | None) -> list[LevelRun]:
        """Return the levels that were measured at this batch weight, in order."""
        entries = [read_json(path) for path in self.folder.glob("level-*/level.json")]
        levels = [
            cell_files.from_json(LevelRun, entry["level"])
            for entry in entries
            if entry["batch_weight_tokens"] == batch_weight_tokens
        ]
        return sorted(levels, key=lambda run: run.level)

    def table(self, name: str, levels: Sequence[LevelRun]) -> pa.Table:
        """Return the rows of a table (`cell_files.TABLES`), of these levels."""
        files = [self._folder_of(level) / f"{name}.parquet" for level in levels]
        return cell_files.concatenated(name, [pq.read_table(file) for file in files])

    def _folder_of(self, level: LevelRun) -> Path:
        return self.folder / f"level-{scenarios.level_to_json(level.level)}"

    def forget_levels(self) -> None:
        """Drop all levels: their batch weight did not hold."""
        for folder in self.folder.glob("level-*"):
            shutil.rmtree(folder)


def level_seed(seed: int, level: float) -> int:
    """Return the seed of a level's requests: other levels of the cell do not change it."""
    return seed + LEVEL_SEED_STRIDE * (1 + zlib.crc32(f"{level:g}".encode()))


def reason_to_stop(levels: Sequence[LevelMedians], scenario: Scenario) -> EarlyStop | None:
    """Return why more users need not be measured; None as long as they must be.

    Both medians at the last level exceed the limits of a closed loop by its `stop_factor`, and more
    users wait longer. A level with fewer than 10 served requests, or without one of the medians,
    decides nothing.
    """
    if not isinstance(scenario, ClosedLoop) or not levels:
        return None
    last = levels[-1]
    factor = scenario.stop_factor
    nttft_limit_ms = scenario.stop_nttft_ms
    itl_limit_ms = scenario.stop_itl_ms
    if nttft_limit_ms is None or itl_limit_ms is None or last.n_ok < _MIN_REQUESTS:
        return None
    is_far_beyond = (last.nttft_ms or 0.0) > factor * nttft_limit_ms
    is_far_beyond &= (last.itl_ms or 0.0) > factor * itl_limit_ms
    return EarlyStop(last, nttft_limit_ms, itl_limit_ms, factor) if is_far_beyond else None


class Measurement:
    """What is known of one cell: the levels that the checkpoint holds, and what is beside them."""

    def __init__(
        self,
        cell: Cell,
        settings: EngineSettings,
        kept: Checkpoint,
        progress: Progress,
        vocab_size: int,
    ) -> None:
        self.cell, self.settings, self.kept, self.progress = cell, settings, kept, progress
        self._vocab_size = vocab_size
        self.probes: Sequence[Probe] = ()
        self.levels: list[LevelRun] = []
        self._left_out: LeftOut | None = None  # levels that could not meet the limits
        self.possible_gain: float | None = None  # fraction by which the batch weight may be larger
        self.server: ServerFacts | None = None
        self._unsent_parameters: list[str] = []
        self._prompts: str | None = None
        self._started_at = datetime.now(UTC)
        self._epoch_ns = time.monotonic_ns()
        self._timeout_s = cell.scenario.timeout_s or settings.request_timeout_s
        self._metric_names = ENGINES[settings.name].metric_names

    def read_workload(self) -> None:
        """Read requests, and arrivals: before any server starts."""
        cell = self.cell
        self.model = load_request_model(cell.workload_path)
        self._scenarios: dict[float, Scenario] = dict.fromkeys(cell.scenario.levels, cell.scenario)
        if isinstance(scenario := cell.scenario, OpenLoop) and isinstance(scenario.arrivals, str):
            for level in scenario.levels:
                fitted = scenario.with_arrivals_of(cell.workload_path.parent, level)
                self._scenarios[level] = fitted
                kind = getattr(fitted.arrivals, "kind", None)
                log.info("level %g: %s arrivals (%s)", level, scenario.arrivals, kind)

    def scenario_at(self, level: float) -> Scenario:
        """Return the scenario of a level, with the workload's arrivals at its rate."""
        return self._scenarios[level]

    def run(self, servers: Sequence[RunningServer]) -> None:
        """Measure what was not measured before at this batch weight; ServerError if one died."""
        self._unsent_parameters = unsent_parameters(self.model)
        if self._unsent_parameters:
            log.warning("requests do not carry: %s", ", ".join(self._unsent_parameters))
        first = servers[0]
        is_ours = ENGINES[self.settings.name].starts_servers
        self.server = ServerFacts(
            engine=self.settings.name,
            version=first.version(),
            precision=self.settings.dtype if is_ours else None,
            command=tuple(first.command) if first.command else None,
            url=None if is_ours else first.target.base_url,
            start_duration_s=first.start_duration_s,
            devices=tuple(server.device_indices for server in servers),
            batch_weight_tokens=first.batch_weight_tokens,
        )
        kept = self.kept.levels(first.batch_weight_tokens)
        # One result has one version and one time limit: levels of others are measured again.
        self.levels = [
            level
            for level in kept
            if level.conditions.engine_version == self.server.version
            and level.conditions.timeout_s == self._timeout_s
        ]
        if self.levels:
            log.info("%d levels were measured before and are kept", len(self.levels))
            # Times count from the start of the first attempt, so that no two levels overlap; by the
            # wall clocks of both attempts, which on two nodes may differ a little.
            self._started_at = self.levels[0].conditions.times_since or self._started_at
            ended_s = max(level.ended_s or 0.0 for level in self.levels)
            since_s = (datetime.now(UTC) - self._started_at).total_seconds()
            self._epoch_ns = time.monotonic_ns() - int(max(since_s, ended_s) * 1e9)
        self._servers = servers
        addresses = [server.target for server in servers]
        self._targets = LoadTargets(addresses, self._timeout_s, self._epoch_ns)
        prompts, self._prompts = self.cell.prompt_source(self._vocab_size)
        if isinstance(self.cell.scenario, Burst):
            self._measure_phases(self.cell.scenario, prompts)
        else:
            self._measure_levels(prompts)

    def _measure_levels(self, prompts: Prompts) -> None:
        cell = self.cell
        measured_levels = {run.level for run in self.levels}
        for number, level in enumerate(cell.scenario.levels):
            if level in measured_levels:
                continue
            below = [run for run in self.levels if run.level < level]
            medians = [run.medians for run in below if run.medians]
            if stop := reason_to_stop(medians, cell.scenario):
                left_out = [it for it in cell.scenario.levels[number:] if it not in measured_levels]
                self._left_out = LeftOut(tuple(left_out), stop)
                log.info("levels %s", self._left_out)
                return
            self.progress.step(f"{level:g} {cell.scenario.level_words}")
            seed = level_seed(cell.seed, level)
            requests = drawn_from(self.model, prompts, cell.sampler)
            source = RequestSource(self._servers[0].target.model, requests, seed)
            scenario = self._scenarios[level]
            with self._watch(level) as watcher:
                begin = partial(self._note_metrics, level)
                result = measure_level(
                    scenario, level, self._targets, source, seed=seed, before=begin
                )
                self._keep(level, result, watcher.stop())

    def _measure_phases(self, scenario: Burst, prompts: Prompts) -> None:
        """Measure BurstGPT's phases; later ones rest on the first, so all are measured again."""
        self.kept.forget_levels()
        self.levels.clear()
        seed = self.cell.seed
        phases = run_phases(self._targets, self.model, prompts, scenario, seed, self._kv_usage)
        for number in sorted({1.0, *scenario.levels}):
            self.progress.step(f"phase {number:g}")
            with self._watch(number) as watcher:
                self._note_metrics(number)
                phase, result = next(phases)
                self._keep(number, result, watcher.stop(), phase)

    def _kv_usage(self) -> float | None:
        """Return the mean use of the replicas' KV caches, None if a server does not report it."""
        try:
            metrics = [server.metrics() for server in self._servers]
        except OSError:
            return None
        gauges = (server_gauges(text, self._metric_names) for text in metrics)
        usages = [it["kv_cache_usage"] for it in gauges if it["kv_cache_usage"] is not None]
        return statistics.fmean(usages) if len(usages) == len(metrics) else None

    def _watch(self, level: float) -> Watcher:
        servers = self._servers
        kind = self.cell.devices.kind
        devices = tuple(dict.fromkeys(i for s in servers for i in s.device_indices))
        pids = tuple(pid for s in servers for pid in s.pids) if kind == "cpu" else ()
        urls = tuple(target.base_url for target in self._targets.addresses)
        plan = WatchPlan(kind, devices, pids, urls, self._metric_names, self.settings.dcgm_url)
        return Watcher(plan, self._epoch_ns, level)

    def _metrics(self, level: float) -> str:
        """Return the metrics of all replicas one after another: their sums are the cell's."""
        texts = []
        for server in self._servers:
            try:
                texts.append(server.metrics())
            except OSError as error:
                raise server.error(f"the server died at level {level:g} ({error})") from error
            if not server.is_healthy():  # an API server may outlive its engine
                raise server.error(f"the engine ended at level {level:g}")
        return "\n".join(texts)

    def _note_metrics(self, level: float) -> None:
        self._before = self._metrics(level)
        self._n_others = self._n_other_processes()

    def _n_other_processes(self) -> int | None:
        """Return how many processes that are not ours use the servers' GPUs; None: unknown."""
        if self.cell.devices.kind != "gpu":
            return None
        devices = {device for server in self._servers for device in server.device_indices}
        return n_other_processes(devices, [pid for server in self._servers for pid in server.pids])

    def _keep(
        self,
        level: float,
        result: LevelResult,
        watched: Watched,
        phase: dict[str, Any] | None = None,
    ) -> None:
        """Keep a level that is whole: its entry in `run.json`, and its rows."""
        after = self._metrics(level)
        medians = None
        for warning in result.warnings:
            # On a CPU the client shares the server's cores: the report says so, once.
            is_usual = warning == result.run.client.lag_warning and self.cell.devices.kind == "cpu"
            log.log(logging.DEBUG if is_usual else logging.WARNING, "level %g: %s", level, warning)
        if self.cell.scenario.has_users:  # elsewhere latency counts from due times
            both = result.medians("nttft_ms", "itl_ms")
            medians = LevelMedians(level, result.log.n_ok, *both)
        measured = result.run.with_conditions(
            engine_version=self.server.version if self.server else None,
            timeout_s=self._timeout_s,
            times_since=self._started_at,
        )
        run = replace(
            measured,
            server_report=ServerReport(
                mean_itl_ms(self._before, after, self._metric_names),
                accepted_length(self._before, after, self._metric_names),
                tuple(watched.warnings),
                max(filter(None, [self._n_other_processes()]), default=self._n_others),
            ),
            medians=medians,
            phase=phase,
        )
        requests = result.table()
        tables = {"requests": requests, "server": watched.server, "telemetry": watched.telemetry}
        self.kept.save(run, self._servers[0].batch_weight_tokens, tables)
        self.levels = sorted([*self.levels, run], key=lambda it: it.level)

    def write_results(self, folder: Path, feasibility: Feasibility | None) -> None:
        """Write the cell's files to its folder; `feasibility` is None of others' servers."""
        cell = self.cell
        server = self.server
        verdict = feasibility.verdict if feasibility else FEASIBLE
        if verdict.is_feasible and server is None:
            n_starts = {"n_server_starts": len(self.probes)}
            verdict = Verdict(ProbeOutcome.NO_BATCH_WEIGHT_PASSED, n_starts)
        weight = server.batch_weight_tokens if server else None
        tuning = Tuning(verdict, weight, self.possible_gain, feasibility, tuple(self.probes))
        tables = {name: self.kept.table(name, self.levels) for name in cell_files.TABLES}
        run = CellRun(
            source=cell.source,
            key=cell.key,
            variant=cell.variant,
            scenario=scenarios.scenario_json(cell.scenario),
            verdict=verdict,
            batch_weight_tokens=weight,
            server=server,
            requests=SentRequests(
                cell.seed, cell.sampler, self._prompts, tuple(self._unsent_parameters)
            ),
            levels=tuple(self.levels),
            left_out=self._left_out,
            origin=CellOrigin(
                self._started_at.replace(microsecond=0),
                host_facts(),
                cell.definition,
                cell.definition_sha256,
                provenance({"workload": cell.workload_path}, seed=cell.seed),
            ),
        )
        cell_files.write_cell(folder, run, tuning, tables)
