"""A rehearsal of a campaign (`engine.name: simulated`): cells are simulated, not measured.

In go a cell and its GPU profile, out come its files as `sextant.bench` writes them, with the
latencies of the likeliest law of what ships. A cell takes seconds, so that sheets, queue, pages and
costs can be tried before the first GPU is asked for.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.ask.laws import find_laws
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.base.job_log import Progress
from sextant.base.scratch import cell_lock
from sextant.bench.cell import Measure, reusable_results
from sextant.bench.measurement import Cell, Checkpoint, Measurement, level_seed
from sextant.experiment.loading import load_experiment
from sextant.experiment.scenarios import Batch, ClosedLoop, OpenLoop, Scenario
from sextant.experiment.servers import SIMULATED, EngineSettings
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import load_llm
from sextant.facts.slo import SLO
from sextant.points.cell_files import CHECKPOINT, REQUEST_SCHEMA, TABLES
from sextant.points.run import LevelMedians, LevelRun, ServerFacts
from sextant.points.verdict import assess
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import (
    Simulation,
    TooFewRequests,
    simulate,
    simulate_closed,
)
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import RequestStream

log = logging.getLogger(__name__)
_LIKE = "vllm"
"""The engine whose law and scheduler the rehearsal has."""
_FIRST_REQUESTS = 1000
"""Requests that are drawn for a closed loop at first; more where users send more."""
_ANY_LIMIT = SLO("rehearsal", e2e_ms=1e9, percentile=50, users=1)
"""The law of a step does not depend on what is asked of it."""


@dataclass(frozen=True)
class _Server:
    """How a replica of the rehearsal works."""

    law: StepLaw
    scheduler: Scheduler


def rehearsal_of(config: Mapping[str, Any], gpu_profile_id: str) -> Measure:
    """Return what simulates a cell on a GPU profile of a configuration, for `run_job`."""
    profiles = load_experiment(config).profiles
    return partial(rehearse_cell, gpu_profile=profiles[gpu_profile_id])


def rehearse_cell(
    cell: Cell,
    settings: EngineSettings,
    folder: Path,
    progress: Progress,
    *,
    gpu_profile: GPUProfile,
) -> None:
    """Write the files of a cell with simulated latencies; an infeasible cell is a result too.

    InputError: no law of a step is known of the GPU profile, or the scenario cannot be simulated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    llm = load_llm(cell.config_path, settings.dtype)
    with cell_lock(folder):
        former = reusable_results(cell, folder)
        if former is not None and former.is_current:
            log.info("this cell is simulated already: its results are taken over")
            return
        share = settings.memory_utilization * cell.variant.memory_share
        # With what an engine's own buffers and graphs take: no server is there to find out.
        feasibility = assess(llm, cell.devices, share, cell.longest_request_tokens, _LIKE)
        kept = Checkpoint(folder / CHECKPOINT, cell.level_sha256, SIMULATED)
        kept.forget_levels()
        measurement = Measurement(cell, settings, kept, progress, llm.vocab_size)
        if feasibility.is_feasible:
            measurement.read_workload()
            server = _server(cell, settings, gpu_profile, measurement.model.frame)
            measurement.server = ServerFacts(
                engine=SIMULATED,
                version=None,
                precision=settings.dtype,
                batch_weight_tokens=server.scheduler.kv_tokens,
            )
            started_s = 0.0
            for level in cell.scenario.levels:
                progress.step(f"level {level:g}, simulated")
                run, requests = _simulate_level(cell, measurement, server, level, started_s)
                started_s = run.ended_s or started_s
                tables = {name: schema.empty_table() for name, schema in TABLES.items()}
                kept.save(run, server.scheduler.kv_tokens, tables | {"requests": requests})
                measurement.levels.append(run)
        measurement.write_results(folder, feasibility)


def _server(
    cell: Cell, settings: EngineSettings, gpu_profile: GPUProfile, requests: Any
) -> _Server:
    """Return how the likeliest law has a replica of the cell work."""
    names = ("input_tokens", "output_tokens")
    means = [float(np.average(requests[name], weights=requests["count"])) for name in names]
    question = Question(
        _ANY_LIMIT,
        hf_config=cell.config_path,
        gpu_profile_ids=(f"{gpu_profile.n_gpus}x{gpu_profile.gpu.gpu_id}",),
        requests=RequestLengths(*(Length(mean, mean) for mean in means)),
        engine=_LIKE,
        dtype=settings.dtype,
        gpu_memory_utilization=settings.memory_utilization * cell.variant.memory_share,
        max_model_len=cell.longest_request_tokens,
        max_num_seqs=settings.max_num_seqs,
        seed=cell.seed,
    )
    timeout_s = cell.scenario.timeout_s or settings.request_timeout_s
    scheduling = Settings.of(question, timeout_s)
    laws = find_laws(question, scheduling, 0, need_prices=False)
    for replica in laws.servers.values():
        return _Server(replica.law(0), replica.scheduler)
    why = next(iter(laws.excluded.values()), "no law of a step is known there")
    fix = "leave the GPU profile out of the rehearsal"
    raise InputError(why, field=cell.key.gpu_profile_id, fix=fix)


def _simulate_level(
    cell: Cell, measurement: Measurement, server: _Server, level: float, started_s: float
) -> tuple[LevelRun, pa.Table]:
    """Return a level and its requests; times count on from the levels before."""
    scenario = measurement.scenario_at(level)
    simulation = _simulation(cell, scenario, measurement, server, level)
    warmup_s = scenario.warmup_s
    ends_s = getattr(scenario, "duration_s", None)
    is_measured = simulation.arrival_s >= warmup_s
    if ends_s is not None:
        is_measured &= simulation.arrival_s < warmup_s + ends_s
    is_ok = ~np.isnan(simulation.e2e_s)
    rows = _requests(simulation, is_measured, is_ok, level, started_s)
    last_s = np.nanmax(simulation.arrival_s + simulation.e2e_s, initial=warmup_s)
    medians = None
    if scenario.has_users:
        ok = is_measured & is_ok
        nttft_ms = 1e3 * simulation.ttft_s[ok] / simulation.input_tokens[ok]
        medians = LevelMedians(
            level, int(ok.sum()), _median(nttft_ms), _median(1e3 * simulation.tpot_s[ok])
        )
    run = LevelRun(
        level=level,
        started_s=started_s + warmup_s,
        duration_s=max(float(last_s) - warmup_s, 0.0),
        n_warmup_requests=int((simulation.arrival_s < warmup_s).sum()),
        n_cooldown_requests=int((~is_measured & (simulation.arrival_s >= warmup_s)).sum()),
        medians=medians,
    )
    return run, rows


def _median(values: np.ndarray) -> float | None:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else None


def _simulation(
    cell: Cell, scenario: Scenario, measurement: Measurement, server: _Server, level: float
) -> Simulation:
    """Simulate the requests of a level."""
    seed = level_seed(cell.seed, level)
    n_replicas = cell.variant.replicas

    def stream(arrival_s: np.ndarray) -> RequestStream:
        drawn = measurement.model.sample(len(arrival_s), seed=seed, sampler=cell.sampler)
        lengths = (drawn[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        return RequestStream.of(arrival_s, *lengths)

    if isinstance(scenario, ClosedLoop):
        for requests in _longer_and_longer(stream):
            try:
                return simulate_closed(
                    int(level),
                    requests,
                    server.scheduler,
                    server.law,
                    duration_s=scenario.unmeasured_s + scenario.duration_s,
                    n_replicas=n_replicas,
                )
            except TooFewRequests:
                continue
    scheduler = server.scheduler
    if isinstance(scenario, OpenLoop):
        arrivals = scenario.arrivals_at(level)
        ends_s, n = scenario.extent_s, scenario.n_requests
        arrival_s = arrivals.times(n=n, duration_s=ends_s, seed=seed)
    elif isinstance(scenario, Batch):
        arrival_s = np.zeros(scenario.n_requests or int(level))
        most = min(scheduler.max_num_seqs, max(1, int(level) // n_replicas))
        scheduler = replace(scheduler, max_num_seqs=most)
    else:
        fix = "leave it out of the rehearsal"
        problem = f"a scenario of kind {scenario.kind} cannot be simulated"
        raise InputError(problem, field=cell.key.scenario_id, fix=fix)
    return simulate(stream(arrival_s), scheduler, server.law, n_replicas=n_replicas)


def _longer_and_longer(stream: Any) -> Iterator[RequestStream]:
    """Yield streams of requests that are due at once, each four times as long as the last."""
    n = _FIRST_REQUESTS
    while True:
        yield stream(np.zeros(n))
        n *= 4


def _requests(
    simulation: Simulation,
    is_measured: np.ndarray,
    is_ok: np.ndarray,
    level: float,
    started_s: float,
) -> pa.Table:
    """Return the measured requests as a cell has them; the gaps of a request are all equal."""
    rows = []
    for n in np.flatnonzero(is_measured):
        sent_s = started_s + float(simulation.arrival_s[n])
        tokens = {
            name: int(getattr(simulation, name)[n]) for name in ("input_tokens", "output_tokens")
        }
        row = {"level": level, "request_id": f"{level:g}-{n}", "replica": 0, "user": 0}
        row |= {"scheduled_s": sent_s, "sent_s": sent_s, **tokens}
        row |= {f"requested_{name}": n_tokens for name, n_tokens in tokens.items()}
        if is_ok[n]:
            ttft_s, e2e_s = float(simulation.ttft_s[n]), float(simulation.e2e_s[n])
            later_ms = 1e3 * np.linspace(0, e2e_s - ttft_s, tokens["output_tokens"])
            row |= {"first_token_s": sent_s + ttft_s, "last_token_s": sent_s + e2e_s}
            row |= {"token_offsets_ms": later_ms, "status": "ok"}
        else:
            row |= {"status": "timeout", "error": "no answer within the limit of time"}
        rows.append(row)
    return pa.Table.from_pylist(rows, REQUEST_SCHEMA)
