"""Measures one cell: feasibility, batch weight, then every level of the scenario."""

import logging
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sextant.benchmark.batch_weight import WeightRange, next_weight
from sextant.benchmark.burst import run_phases
from sextant.benchmark.burst_loads import BurstPlan
from sextant.benchmark.checkpoint import Checkpoint
from sextant.benchmark.definition import Cell, CellOutputs
from sextant.benchmark.levels import level_medians, measure_level, warm_up
from sextant.benchmark.results import Record, write_results
from sextant.benchmark.stopping import LevelMedians, tells_nothing
from sextant.engine.devices import pick_devices
from sextant.engine.group import running_servers
from sextant.engine.vllm import EngineSettings, Server, ServerError, ServerSpec, model_folder
from sextant.errors import InputError
from sextant.llm import LLM, load_llm
from sextant.load.measure import LevelResult
from sextant.load.request import Target
from sextant.load.run import LEVEL_SEED_STRIDE
from sextant.load.source import RequestSource, unsent_parameters
from sextant.memory import Feasibility, assess
from sextant.progress import Progress
from sextant.scenarios import level_to_json
from sextant.telemetry import prometheus
from sextant.telemetry.watcher import WatchPlan, Watched, watch
from sextant.workload import load_request_model
from sextant.workload.prompts import PromptSource, RandomTokens, load_prompt_source

log = logging.getLogger(__name__)
# Room for the results of a cell; a run that ends for want of it would lose its GPU time.
_FREE_DISK_BYTES = 64 * 2**20
_MODEL_NAME = "sextant"


def measure_cell(
    cell: Cell, settings: EngineSettings, outputs: CellOutputs, progress: Progress
) -> None:
    """Measure a cell and write its results; an infeasible cell is a result too.

    What is finished is kept in `partial/` beside the results until they are whole, so that
    a measurement that was interrupted goes on from there.

    Raises:
        ServerError: the server failed for a reason other than memory.
        InputError: the workload has no cap that the LLM's context can hold, or the
            machine lacks the devices or the disk.
    """
    longest_tokens = cell.max_input_tokens + cell.max_output_tokens
    # What counts is the type that is served, not the one the weights were published in.
    llm = load_llm(cell.config_path, settings.dtype)
    if longest_tokens > llm.context_tokens:
        fix = "lower max_input_tokens or max_output_tokens of the workload"
        problem = f"requests of {longest_tokens} tokens exceed {llm.context_tokens} of context"
        raise InputError(problem, field=cell.llm_id, fix=fix)
    _require_disk(outputs.run.parent)
    feasibility = _assess(cell, llm, settings, longest_tokens)
    kept = Checkpoint(outputs.run.parent / "partial", cell.definition_sha256)
    run = _Run(cell, settings, outputs, kept, progress)
    if feasibility.is_feasible:
        with _model(cell) as folder:
            run.tune_and_load(_specs(cell, settings, llm, folder), llm, feasibility)
    write_results(cell, outputs, run.record, feasibility, kept)
    kept.remove()


def _assess(cell: Cell, llm: LLM, settings: EngineSettings, longest_tokens: int) -> Feasibility:
    """Decide from memory facts; a variant's replicas share the memory, its weight is given."""
    variant, devices = cell.variant, cell.devices
    if variant.memory_limit_gib and devices.kind == "cpu":
        limit_gib = min(variant.memory_limit_gib, devices.memory_gib * devices.n_gpus)
        devices = replace(devices, memory_gib=limit_gib / devices.n_gpus)
    utilization = settings.memory_utilization * variant.memory_share
    found = assess(llm, devices, utilization, longest_tokens)
    weight = variant.batch_weight_tokens
    if weight is None or not found.is_feasible:
        return found
    reason = "fits"
    if weight > found.max_batch_weight_tokens:
        most = found.max_batch_weight_tokens
        reason = f"does not fit: the KV cache holds {most} tokens, the variant asks for {weight}"
    elif weight < longest_tokens:
        reason = (
            f"does not fit: the variant's batch weight is {weight} tokens, "
            f"the longest request needs {longest_tokens}"
        )
    return replace(found, is_feasible=reason == "fits", reason=reason)


def _specs(
    cell: Cell, settings: EngineSettings, llm: LLM, model: Path
) -> Callable[[int], list[ServerSpec]]:
    """Return what makes the servers of a cell, one a replica, with a batch weight."""
    variant = cell.variant
    places = pick_devices(cell.devices, variant.replicas, variant.placement)
    cores = pick_cores(variant.cpu_cores) if variant.cpu_cores else None

    def with_weight(batch_weight_tokens: int) -> list[ServerSpec]:
        return [
            ServerSpec(
                model=model,
                load_format="auto" if cell.model else "dummy",
                devices=cell.devices,
                batch_weight_tokens=batch_weight_tokens,
                kv_bytes_per_token=llm.kv_bytes_per_token,
                max_request_tokens=cell.max_input_tokens + cell.max_output_tokens,
                device_indices=place,
                cpu_indices=cores,
                memory_share=variant.memory_share,
                memory_limit_gib=variant.memory_limit_gib,
                seed=cell.seed,
            )
            for place in places
        ]

    return with_weight


@contextmanager
def _model(cell: Cell) -> Iterator[Path]:
    if cell.model:
        yield Path(cell.model)
    else:
        with model_folder(cell.config_path) as folder:
            yield folder


def _prompts(cell: Cell, vocab_size: int) -> tuple[PromptSource, str]:
    """Return what makes a cell's prompts, and its name; without a tokenizer they are random."""
    tokenizer = Path(cell.model or "") / "tokenizer.json"
    if cell.prompts and cell.model and tokenizer.is_file():
        return load_prompt_source(cell.prompts, tokenizer, vocab_size=vocab_size), cell.prompts
    if cell.prompts:
        log.warning("%s has no tokenizer.json: its prompts are random token ids", cell.llm_id)
    return RandomTokens(vocab_size), "random token ids"


def _require_disk(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < _FREE_DISK_BYTES:
        problem = f"{free / 2**20:.0f} MiB of disk are free, {_FREE_DISK_BYTES / 2**20:.0f} needed"
        raise InputError(problem, file=folder, fix="free some space and run again")


class _Run:
    """The state of one measurement: what is known so far."""

    def __init__(
        self,
        cell: Cell,
        settings: EngineSettings,
        outputs: CellOutputs,
        kept: Checkpoint,
        progress: Progress,
    ) -> None:
        self.cell, self.settings, self.outputs = cell, settings, outputs
        self.kept, self.progress = kept, progress
        self.epoch_ns = time.monotonic_ns()
        self.record = Record()
        self.timeout_s = cell.scenario.timeout_s or settings.request_timeout_s

    def tune_and_load(
        self, specs: Callable[[int], list[ServerSpec]], llm: LLM, feasibility: Feasibility
    ) -> None:
        """Search the batch weight; load the servers that passed the last probe."""
        limits = self._limits(llm, feasibility)
        probes = self.record.probes
        while True:
            weight = next_weight(probes, limits)
            is_known = weight is None
            if is_known:  # the search ended before this attempt, or nothing holds
                if not probes or probes[-1].outcome != "ok":
                    return
                weight = probes[-1].batch_weight_tokens
            self.progress.note(f"server start {len(probes) + 1}: batch weight {weight}")
            try:
                servers_of = specs(weight)
                with running_servers(servers_of, self.settings, self.outputs.server_log) as servers:
                    if not is_known:
                        self._probe(servers, weight)
                    if next_weight(probes, limits) is None:
                        self._load(servers, llm.vocab_size)
                        return
            except ServerError as error:
                if not error.is_out_of_memory:
                    raise
                self._ran_out_of_memory(weight, error)

    def _load(self, servers: Sequence[Server], vocab_size: int) -> None:
        """Measure the levels that were not measured before at this batch weight."""
        cell, record = self.cell, self.record
        model = load_request_model(cell.workload_path)
        record.unsent_parameters = unsent_parameters(model)
        if record.unsent_parameters:
            log.warning("requests do not carry: %s", ", ".join(record.unsent_parameters))
        record.server = _server_facts(servers)
        prompts, record.prompts = _prompts(cell, vocab_size)
        weight = servers[0].spec.batch_weight_tokens
        record.levels = self.kept.levels(weight)
        if record.levels:
            log.info("%d levels were measured by an earlier attempt", len(record.levels))
        targets = [Target(server.base_url, _MODEL_NAME, server.api_key) for server in servers]
        if cell.scenario.kind == "burst":
            self._measure_phases(servers, targets, prompts)
            return
        for number, level in enumerate(cell.scenario.levels):
            if any(float(entry["level"]) == level for entry in record.levels):
                continue
            if reason := self._stop_reason():
                record.left_out_reason = reason
                left_out = cell.scenario.levels[number:]
                record.levels_left_out = [level_to_json(level) for level in left_out]
                log.info("levels %s %s", record.levels_left_out, reason)
                return
            self.progress.step(f"level {level:g}")
            seed = cell.seed + LEVEL_SEED_STRIDE * (number + 1)
            source = RequestSource(_MODEL_NAME, model, prompts, seed, cell.sampler)
            load = (cell.scenario, level, targets, source, self.timeout_s, self.epoch_ns)
            n_warmup = warm_up(*load)
            with self._watching(servers, level) as watched:
                result = measure_level(*load, seed)
            result.n_warmup_requests += n_warmup
            self._keep(servers, result, watched, {})

    def _stop_reason(self) -> str | None:
        """Say why larger levels would tell nothing, if the scenario asks for it and they would."""
        scenario, levels = self.cell.scenario, self.record.levels
        if scenario.stop_nttft_ms is None or scenario.stop_itl_ms is None:
            return None
        medians = [LevelMedians(**entry["medians"]) for entry in levels]
        limits = (scenario.stop_nttft_ms, scenario.stop_itl_ms)
        return tells_nothing(medians, *limits, scenario.stop_factor)

    def _measure_phases(
        self, servers: Sequence[Server], targets: Sequence[Target], prompts: PromptSource
    ) -> None:
        """Measure BurstGPT's phases; later ones rest on the first, so all are measured anew."""
        self.kept.forget_levels()
        self.record.levels.clear()
        cell, scenario = self.cell, self.cell.scenario
        plan = BurstPlan(
            phases=[int(level) for level in scenario.levels],
            alpha=scenario.burstiness,
            warmup_s=scenario.warmup_s,
            mirrored_s=scenario.duration_s,
            n_per_change=scenario.n_requests or BurstPlan.n_per_change,
        )
        model = load_request_model(cell.workload_path)
        phases = run_phases(
            targets,
            model,
            prompts,
            plan,
            self.timeout_s,
            self.epoch_ns,
            cell.seed,
            lambda: _kv_cache_usage(servers),
        )
        for number in sorted({1, *plan.phases}):
            self.progress.step(f"phase {number}")
            with self._watching(servers, float(number)) as watched:
                phase, result = next(phases)
            self._keep(servers, result, watched, {"phase": phase})

    @contextmanager
    def _watching(self, servers: Sequence[Server], level: float) -> Iterator[dict]:
        """Watch servers and devices; afterwards the dict holds what was `watched`, and more."""
        is_cpu = self.cell.devices.kind == "cpu"
        plan = WatchPlan(
            kind=self.cell.devices.kind,
            devices=tuple(dict.fromkeys(i for s in servers for i in s.spec.device_indices)),
            pids=tuple(server.pid for server in servers) if is_cpu else (),
            server_urls=tuple(server.base_url for server in servers),
            dcgm_url=self.settings.dcgm_url,
        )
        found: dict = {"before": _metrics(servers, level)}
        with watch(plan, self.epoch_ns, level) as watcher:
            yield found
            found["watched"] = watcher.stop()
        found["after"] = _metrics(servers, level)

    def _keep(
        self, servers: Sequence[Server], result: LevelResult, found: dict, more: dict
    ) -> None:
        """Keep a level that is whole: its entry in `run.json`, and its rows."""
        watched: Watched = found["watched"]
        requests = result.table()
        medians = level_medians(result.level, requests)
        entry = {
            "level": level_to_json(result.level),
            "started_s": result.started_s,
            "duration_s": result.duration_s,
            "n_warmup_requests": result.n_warmup_requests,
            "n_cooldown_requests": result.n_cooldown_requests,
            "n_prepared_late": result.n_prepared_late,
            "client_lag_ms": result.client_lag_ms,
            "send_lag_ms": result.send_lag_ms,
            "lag_warning": result.lag_warning,
            "server_mean_itl_ms": prometheus.mean_itl_ms(found["before"], found["after"]),
            "telemetry_warnings": watched.warnings,
            "medians": vars(medians) | {"users": level_to_json(medians.users)},
            **more,
        }
        tables = {"requests": requests, "server": watched.server, "telemetry": watched.telemetry}
        self.kept.save(entry, servers[0].spec.batch_weight_tokens, tables)
        self.record.levels.append(entry)


def _server_facts(servers: Sequence[Server]) -> dict:
    first = servers[0]
    return {
        "command": first.command,
        "version": first.version(),
        "start_duration_s": first.start_duration_s,
        "devices": [list(server.spec.device_indices) for server in servers],
        "batch_weight_tokens": first.spec.batch_weight_tokens,
    }


def _metrics(servers: Sequence[Server], level: float) -> str:
    """Return the metrics of all replicas, one after another: their sums are those of the cell."""
    texts = []
    for server in servers:
        try:
            texts.append(prometheus.fetch(server.base_url))
        except OSError as error:
            raise server.error(f"the server died at level {level:g} ({error})") from error
    return "\n".join(texts)


def _kv_cache_usage(servers: Sequence[Server]) -> float | None:
    """Return the mean use of the replicas' KV caches, None where a server does not tell."""
    usages = []
    for server in servers:
        try:
            gauges = prometheus.server_gauges(prometheus.fetch(server.base_url))
        except OSError:
            return None
        usages.append(gauges["kv_cache_usage"])
    return None if None in usages else statistics.fmean(usages)
