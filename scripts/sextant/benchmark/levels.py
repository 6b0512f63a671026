"""The levels of a scenario: what load each puts on the servers of a cell."""

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from sextant.benchmark.stopping import LevelMedians
from sextant.cells.metrics import points_query
from sextant.experiment.scenarios import Scenario
from sextant.load.closed_loop import run_closed_loop
from sextant.load.measure import LevelResult, Source
from sextant.load.open_loop import run_open_loop
from sextant.load.request import Target
from sextant.workload.generators import at_once, gamma


def warm_up(
    scenario: Scenario,
    level: float,
    targets: Sequence[Target],
    source: Source,
    timeout_s: float,
    epoch_ns: int,
) -> int:
    """Put load on servers before a level; return the number of requests.

    An open loop with a duration has its warm-up in its own schedule instead.
    """
    if not scenario.warmup_s or (scenario.kind == "open_loop" and scenario.duration_s is not None):
        return 0
    users = len(targets) if scenario.kind == "open_loop" else int(level)
    result = run_closed_loop(targets, source, users, scenario.warmup_s, timeout_s, epoch_ns)
    return result.n_ok + result.n_failed


def measure_level(
    scenario: Scenario,
    level: float,
    targets: Sequence[Target],
    source: Source,
    timeout_s: float,
    epoch_ns: int,
    seed: int,
) -> LevelResult:
    """Load servers at one level of a scenario other than `burst`."""
    load = {"timeout_s": timeout_s, "epoch_ns": epoch_ns}
    if scenario.kind == "closed_loop":
        window = {"duration_s": scenario.duration_s, "cooldown_s": scenario.cooldown_s}
        return run_closed_loop(targets, source, int(level), **load, **window)
    if scenario.kind == "open_loop" and scenario.duration_s is not None:
        # One schedule without a pause: the load is already steady when measuring begins.
        total_s = scenario.warmup_s + scenario.duration_s + scenario.cooldown_s
        arrival_s = gamma(scenario.burstiness, level, duration_s=total_s, seed=seed)
        window = {"warmup_s": scenario.warmup_s, "duration_s": scenario.duration_s}
        return run_open_loop(targets, source, arrival_s, level=level, **load, **window)
    cap = int(level) if scenario.kind == "batch" else None
    arrival_s = _arrivals(scenario, level, seed)
    return run_open_loop(targets, source, arrival_s, level=level, **load, max_in_flight=cap)


def _arrivals(scenario: Scenario, level: float, seed: int) -> np.ndarray:
    """Return when a given number of requests arrive: all at once, or at the level's rate."""
    if scenario.kind == "batch" or np.isinf(level):
        return at_once(n=scenario.n_requests or int(level))
    return gamma(scenario.burstiness, level, n=scenario.n_requests, seed=seed)


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
        return LevelMedians(level, *database.execute(f"SELECT {names} FROM ({query})").fetchone())
