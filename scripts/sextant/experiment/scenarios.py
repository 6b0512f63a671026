"""How load is put on a server: one dataclass, which checks itself, for each kind of scenario."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import Row, check_fields, hints_of
from sextant.experiment.servers import without_defaults
from sextant.experiment.sheets import ScenarioRow
from sextant.workload import trace_arrivals
from sextant.workload.generators import Arrivals, AtOnce, Gamma

BURST_TIMEOUT_S = 30.0  # BurstGPT's limit on a request (section V-C)
WINDOWS_FILE = resource("workloads/burst_windows.tsv")
"""Windows of a trace whose shapes the scenario `burst` mirrors."""
_N_BURST_PHASES = 6
_MOST = 1_000_000  # users, or requests a second, that one client could put on servers
_ONE_OF_TWO = "give either duration_s or n_requests"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Levels of load; fields as in `workflow/schemas/scenarios.schema.yaml`."""

    kind: ClassVar[str]
    level_words: ClassVar[str]  # what a level counts
    has_users: ClassVar[bool] = False
    """Whether users wait for answers. Then a latency counts from when a request was sent, else from
    when it was due."""
    _has_whole_levels: ClassVar[bool] = True
    _slow_share: ClassVar[float] = 0.0
    """Share of the time limit that a request may take while other requests wait for it."""
    levels: tuple[float, ...]
    warmup_s: float = 0.0
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        levels = self.levels
        if list(levels) != sorted(set(levels)) or not levels:
            problem = f"{', '.join(f'{level:g}' for level in levels)} do not ascend"
            _refuse("levels", problem, "write each level once, in ascending order")
        if not levels[0] > 0:
            _refuse("levels", f"a level is {levels[0]:g}", "give levels above 0")
        if any(_MOST < level < math.inf for level in levels):
            _refuse("levels", f"a level is above {_MOST:,}", "give lower levels")
        if self._has_whole_levels and not all(float(level).is_integer() for level in levels):
            _refuse("levels", "levels of this kind are whole numbers", "write whole numbers")

        values = {name: getattr(self, name, None) for name in hints_of(ScenarioRow)}
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        row = {"scenario_id": "any", "kind": self.kind, "levels": "1"}
        check_fields(ScenarioRow, row | numbers, "")  # bounds are those of the sheet

    @property
    def unmeasured_s(self) -> float:
        """Seconds of warm-up and cool-down of a level."""
        return self.warmup_s + getattr(self, "cooldown_s", 0.0)

    def planned_s(self, level: float, request_s: float) -> float:
        """Return how long a level is planned to take if a request takes `request_s`."""
        return self.unmeasured_s + getattr(self, "duration_s", 0.0)

    def longest_s(self, request_timeout_s: float) -> float:
        """Return how long all levels may take, with two slow last requests each."""
        timeout_s = self.timeout_s or request_timeout_s
        slow_s = timeout_s * self._slow_share
        return sum(self.planned_s(level, slow_s) + 2 * timeout_s for level in self.levels)


@dataclass(frozen=True, kw_only=True)
class ClosedLoop(Scenario):
    """Users that send one request after another."""

    kind = "closed_loop"
    level_words = "users"
    has_users = True
    duration_s: float
    cooldown_s: float = 0.0
    stop_nttft_ms: float | None = None
    stop_itl_ms: float | None = None
    stop_factor: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.stop_nttft_ms is None) != (self.stop_itl_ms is None):
            _refuse("stop_nttft_ms", "one limit without the other", "give both or neither")


@dataclass(frozen=True, kw_only=True)
class OpenLoop(Scenario):
    """Requests at a rate, whether earlier ones have ended or not; by default with Gamma gaps."""

    kind = "open_loop"
    _has_whole_levels = False
    level_words = "requests per second"
    duration_s: float | None = None
    cooldown_s: float = 0.0
    n_requests: int | None = None
    burstiness: float = 1.0  # shape of the Gamma gaps; 1 is Poisson
    arrivals: Arrivals | str | None = None
    """Another process, or the name of one of the workload's (see `with_arrivals_of`)."""
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duration_s is not None and self.n_requests is not None:
            _refuse("duration_s", "two ends of a level", _ONE_OF_TWO)
        if math.inf in self.levels and self.n_requests is None:
            _refuse("levels", "a rate of inf never ends", "give n_requests")

        ends_itself = isinstance(self.arrivals, Arrivals) and self.arrivals.ends_itself
        if self.duration_s is None and self.n_requests is None and not ends_itself:
            _refuse("duration_s", "how long a level lasts is not clear", _ONE_OF_TWO)
        if self.n_requests is not None and self.cooldown_s:
            _refuse("cooldown_s", "a number of requests is measured whole", "leave it out")
        if not isinstance(self.arrivals, str):
            return
        if self.arrivals not in (names := trace_arrivals.NAMES):
            _refuse("arrivals", f"unknown arrivals {self.arrivals!r}", f"use {', '.join(names)}")
        if self.burstiness != 1:
            _refuse("burstiness", "a workload's arrivals have their own", "leave it out")
        if math.inf in self.levels:
            fix = "give the mean rate in requests per second"
            _refuse("levels", "a workload's arrivals have no rate of inf", fix)

    def with_arrivals_of(self, workload: str | Path, level: float) -> OpenLoop:
        """Return the scenario with the arrivals of a workload's folder, at the rate of a level.

        A scenario that does not name a workload's arrivals stays as it is.
        """
        if not isinstance(self.arrivals, str):
            return self
        arrivals = trace_arrivals.arrivals_at_rate(workload, self.arrivals, level)
        return replace(self, arrivals=arrivals)

    def arrivals_at(self, level: float) -> Arrivals:
        """Return the arrival process of a level."""
        if isinstance(self.arrivals, str):
            raise TypeError(f"the {self.arrivals} arrivals of no workload")
        return self.arrivals or (AtOnce() if math.isinf(level) else Gamma(level, self.burstiness))

    @property
    def extent_s(self) -> float | None:
        """Seconds of arrivals, the unmeasured ones included; None if their number ends them."""
        return None if self.duration_s is None else self.unmeasured_s + self.duration_s

    def planned_s(self, level: float, request_s: float) -> float:
        """Return the seconds of load; a number of requests takes as long as its arrivals."""
        if self.n_requests is None:
            return self.extent_s or 0.0
        return self.unmeasured_s + self.n_requests / level + request_s


@dataclass(frozen=True, kw_only=True)
class Batch(Scenario):
    """Best effort: all requests at once; a level is the most of them in flight."""

    kind = "batch"
    _slow_share = 0.1  # how long a wave takes is not known beforehand
    level_words = "requests in flight"
    n_requests: int | None = None  # by default as many as in flight

    def n_waves(self, level: float) -> int:
        """Return how many requests follow each other at a level."""
        return math.ceil((self.n_requests or level) / level)

    def planned_s(self, level: float, request_s: float) -> float:
        """Return the seconds that the requests take, in waves as wide as those in flight."""
        return self.warmup_s + self.n_waves(level) * request_s


@dataclass(frozen=True, kw_only=True)
class Burst(Scenario):
    """BurstGPT's phases."""

    kind = "burst"
    level_words = "phases"
    duration_s: float  # of the mirrored loads
    n_requests: int | None = None  # requests from one change to the next
    burstiness: float = 1.0
    timeout_s: float | None = BURST_TIMEOUT_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels[-1] > _N_BURST_PHASES:
            problem = f"there is no phase {self.levels[-1]:g}"
            _refuse("levels", problem, f"use 1 to {_N_BURST_PHASES}")


KINDS: dict[str, type[Scenario]] = {it.kind: it for it in (ClosedLoop, OpenLoop, Batch, Burst)}
_WITH_USERS = ", ".join(f"'{name}'" for name, kind in KINDS.items() if kind.has_users)
WITH_USERS_SQL = f"scenario_kind IN ({_WITH_USERS})"  # Whether a row is of a scenario with users.
START_SQL = f"CASE WHEN {WITH_USERS_SQL} THEN sent_s ELSE scheduled_s END"  # latencies begin here


def _refuse(field: str, problem: str, fix: str) -> None:
    raise InputError(problem, field=field, fix=fix)


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    """Build a scenario of values by field.

    Raises InputError: a field that its kind does not use or that is missing, or a wrong value.
    """
    chosen = KINDS[values["kind"]]
    settings = {name: value for name, value in values.items() if name != "kind"}
    fields_by_name = {field.name: field for field in fields(chosen)}
    for name in sorted(set(settings) - set(fields_by_name)):
        _refuse(name, f"a scenario of kind {chosen.kind} does not use it", "leave it out")

    for name, field in fields_by_name.items():
        if field.default is MISSING and name not in settings:
            _refuse(name, "it is missing", f"a scenario of kind {chosen.kind} needs it")

    settings["levels"] = tuple(map(float, settings["levels"]))
    if isinstance(settings.get("arrivals"), Mapping):
        settings["arrivals"] = trace_arrivals.arrivals_from_plain(settings["arrivals"])

    return chosen(**settings)


def scenario_from_row(row: Row) -> Scenario:
    """Read a scenario that the schema has accepted; InputError names file, row and field."""
    values = {name: value for name, value in row.items() if name != "scenario_id"}
    try:
        return scenario_of(values | {"levels": row["levels"].split(",")})
    except InputError as error:
        raise error.at(file=row.file, row=row.line) from None


def scenario_json(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario's kind and all of its fields, as JSON has them."""
    values = {field.name: getattr(scenario, field.name) for field in fields(scenario)}
    values["levels"] = [level_to_json(level) for level in scenario.levels]
    if isinstance(arrivals := values.get("arrivals"), Arrivals):
        values["arrivals"] = trace_arrivals.arrivals_to_plain(arrivals)
    return {"kind": scenario.kind, **values}


def plain(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as a definition has it: fields that have their default are left out."""
    names = {"kind", *without_defaults(scenario)}
    return {name: value for name, value in scenario_json(scenario).items() if name in names}


def level_to_json(level: float) -> float | str:
    """Return a level as JSON has it, which knows no infinity; 4 users, not 4.0."""
    if math.isinf(level):
        return "inf"
    return int(level) if float(level).is_integer() else level
