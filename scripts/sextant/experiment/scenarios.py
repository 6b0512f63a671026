"""How load is put on a server, and how the servers of a cell are set up: rows of two sheets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import Row

DEFAULT_VARIANT = "default"
BURST_TIMEOUT_S = 30.0
"""BurstGPT's limit on a request (section V-C)."""
WINDOWS_FILE = Path(__file__).parents[3] / "resources" / "workloads" / "burst_windows.tsv"
"""Windows of a trace whose shapes the scenario `burst` mirrors."""
_OF_KIND = {
    "closed_loop": {"duration_s", "cooldown_s", "stop_nttft_ms", "stop_itl_ms", "stop_factor"},
    "open_loop": {"duration_s", "cooldown_s", "n_requests", "burstiness"},
    "batch": {"n_requests"},
    "burst": {"duration_s", "n_requests", "burstiness"},
}
_ANY_KIND = {"scenario_id", "kind", "levels", "warmup_s", "timeout_s"}
_N_BURST_PHASES = 6


@dataclass(frozen=True)
class Scenario:
    """How load is put on a server; fields as in `workflow/schemas/scenarios.schema.yaml`."""

    kind: str
    levels: tuple[float, ...]
    """Users, requests per second, requests in flight, or phases, by `kind`."""
    warmup_s: float = 0.0
    duration_s: float | None = None
    cooldown_s: float = 0.0
    n_requests: int | None = None
    burstiness: float = 1.0
    timeout_s: float | None = None
    stop_nttft_ms: float | None = None
    stop_itl_ms: float | None = None
    stop_factor: float = 2.0

    def longest_s(self, request_timeout_s: float) -> float:
        """Return how long all levels may take, with two slow last requests each."""
        timeout_s = self.timeout_s or request_timeout_s
        each_s = self.warmup_s + (self.duration_s or 0.0) + self.cooldown_s + 2 * timeout_s
        if self.n_requests is None or self.duration_s is not None:
            return each_s * len(self.levels)
        # A batch of n goes in n / level waves; how long one takes is not known beforehand.
        wave_s = 1.0 if self.kind == "open_loop" else timeout_s / 10
        return sum(each_s + self.n_requests / level * wave_s for level in self.levels)


@dataclass(frozen=True)
class Variant:
    """How servers are set up; fields as in `workflow/schemas/variants.schema.yaml`."""

    variant_id: str = DEFAULT_VARIANT
    replicas: int = 1
    placement: str = "own"
    batch_weight_tokens: int | None = None
    cpu_cores: int | None = None
    memory_limit_gib: float | None = None

    @property
    def memory_share(self) -> float:
        """Fraction of the usable device memory that each replica gets."""
        return 1 / self.replicas if self.placement == "shared" else 1.0

    @property
    def n_device_sets(self) -> int:
        """How often the devices of the GPU profile are needed."""
        return 1 if self.placement == "shared" else self.replicas


def scenario_from_row(row: Row, file: str) -> Scenario:
    """Read a scenario that the schema has accepted.

    Raises:
        InputError: a field that its kind does not heed or lacks, or levels that it cannot have.
    """
    kind = row["kind"]
    for name in sorted(set(row) - _ANY_KIND - _OF_KIND[kind]):
        _refuse(row, file, name, f"a scenario of kind {kind} does not heed it", "leave it empty")
    if kind == "open_loop" and ("duration_s" in row) == ("n_requests" in row):
        _refuse(row, file, "duration_s", "how long a level lasts is not clear", _ONE_OF_TWO)
    if kind in ("closed_loop", "burst") and "duration_s" not in row:
        _refuse(row, file, "duration_s", "it is missing", "give the seconds of a level")
    if ("stop_nttft_ms" in row) != ("stop_itl_ms" in row):
        _refuse(row, file, "stop_nttft_ms", "one limit without the other", "give both or neither")
    values = {field.name: row[field.name] for field in fields(Scenario) if field.name in row}
    if kind == "burst":
        values = {"timeout_s": BURST_TIMEOUT_S} | values
    return Scenario(**values | {"levels": _levels(row, file)})


_ONE_OF_TWO = "give either duration_s or n_requests"


def _levels(row: Row, file: str) -> tuple[float, ...]:
    levels, kind = [float(level) for level in row["levels"].split(",")], row["kind"]
    if levels != sorted(set(levels)):
        problem = f"{row['levels']} of scenario {row['scenario_id']} do not ascend"
        _refuse(row, file, "levels", problem, "write them in ascending order")
    if levels[0] <= 0:
        _refuse(row, file, "levels", "a level is 0", "leave it out")
    if kind != "open_loop" and not all(level.is_integer() for level in levels):
        _refuse(row, file, "levels", f"levels of kind {kind} are whole numbers", "round them")
    if kind == "burst" and levels[-1] > _N_BURST_PHASES:
        _refuse(
            row, file, "levels", f"there is no phase {levels[-1]:g}", f"use 1 to {_N_BURST_PHASES}"
        )
    if math.inf in levels and "n_requests" not in row:
        _refuse(row, file, "levels", "a rate of inf never ends", "give n_requests")
    return tuple(levels)


def _refuse(row: Row, file: str, field: str, problem: str, fix: str) -> None:
    raise InputError(problem, file=file, row=row.line, field=field, fix=fix)


def variant_from_row(row: Row) -> Variant:
    """Read a variant that the schema has accepted."""
    return Variant(**row)


def plain(value: Scenario | Variant) -> dict[str, Any]:
    """Return a scenario or variant as JSON has it: no field that has its default, no infinity."""
    changed = {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }
    if "levels" in changed:
        changed["levels"] = [level_to_json(level) for level in changed["levels"]]
    return changed


def scenario_from_plain(values: Mapping[str, Any]) -> Scenario:
    """Read what `plain` wrote of a scenario."""
    return Scenario(**{**values, "levels": tuple(float(level) for level in values["levels"])})


def level_to_json(level: float) -> float | str:
    """Return a level as JSON has it, which knows no infinity; 4 users, not 4.0."""
    if math.isinf(level):
        return "inf"
    return int(level) if float(level).is_integer() else level
