"""What is allowed in the sheets and is probably not meant: one warning each, before a run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sextant.base.errors import InputError
from sextant.experiment.experiment import Experiment
from sextant.experiment.servers import SIMULATED
from sextant.experiment.sheets import CellKey
from sextant.facts.slo import METRICS

_LEAST_MS = {"ttft": 1.0, "nttft": 1e-4, "itl": 0.2, "tpot": 0.2, "e2e": 1.0}
"""Limits below which no server gets, in ms: a smaller one was meant in seconds."""


def run_warnings(
    experiment: Experiment,
    config: Mapping[str, Any],
    cells: Iterable[CellKey],
    n_cores: int | None,
) -> list[str]:
    """Return warnings about a run that would measure `cells`, one line each.

    `n_cores` are those of this machine; None where jobs run elsewhere.
    """
    cells = [*cells]
    warnings = [*_units(experiment, config["sheets"].get("slos"))]
    if config["engine"].get("name") != SIMULATED:
        warnings += _cores(experiment, cells, n_cores)
    warnings += _levels(experiment, cells, config["engine"]["max_num_seqs"])
    return [f"Warning: {warning}" for warning in warnings]


def _units(experiment: Experiment, sheet: str | None) -> Iterator[InputError]:
    """Yield limits that are shorter than any server's latency."""
    for slo in experiment.slos.values():
        for name, limit in slo.limits.items():
            if limit.limit_ms < _LEAST_MS[name]:
                problem = f"{slo.slo_id}: no server has {METRICS[name]} of {limit.limit_ms:g} ms"
                fix = f"limits are in ms: {1e3 * limit.limit_ms:g}, if this one is in seconds"
                yield InputError(problem, file=sheet, field=f"{name}_ms", fix=fix)


def _cores(
    experiment: Experiment, cells: Iterable[CellKey], n_cores: int | None
) -> Iterator[InputError]:
    """Yield GPU profiles that need more processor cores than this machine has."""
    for name in dict.fromkeys(key.gpu_profile_id for key in cells):
        profile = experiment.profiles[name]
        if n_cores is not None and profile.gpu.kind == "cpu" and profile.n_gpus > n_cores:
            problem = f"{name} needs {profile.n_gpus:,} cores, this machine has {n_cores}"
            fix = "leave it out of benchmarks.tsv, or run on another machine"
            yield InputError(problem, field="n_gpus", fix=fix)


def _levels(
    experiment: Experiment, cells: Iterable[CellKey], max_num_seqs: int
) -> Iterator[InputError]:
    """Yield scenarios with more users than a batch has room for."""
    most_users: dict[str, float] = {}
    for key in cells:
        scenario = experiment.scenario(key)
        if scenario.has_users and experiment.endpoint(key) is None:
            users = scenario.levels[-1] / experiment.variants[key.variant_id].replicas
            most_users[key.scenario_id] = max(users, most_users.get(key.scenario_id, 0))
    for name, users in most_users.items():
        if users > max_num_seqs:
            problem = f"{name} has {users:g} users, a batch {max_num_seqs}: the others wait"
            fix = "raise engine.max_num_seqs, unless you want to measure the queue"
            yield InputError(problem, field="engine.max_num_seqs", fix=fix)
