"""Reads a characterization back from the store: points and the facts they refer to."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from sextant.base.errors import InputError
from sextant.experiment.servers import DEFAULT_VARIANT
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM
from sextant.points.characterizations.description import Description
from sextant.points.characterizations.features import Features
from sextant.points.characterizations.points import complete
from sextant.points.store.connection import open_store

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY_UTILIZATION = 0.9
"""vLLM's default of `--gpu-memory-utilization`."""

_OF_STORE = {
    "mean_input_tokens": "input_tokens",
    "mean_output_tokens": "output_tokens",
    "energy_per_output_token_j": "energy_j_per_token",
}


@dataclass(frozen=True)
class Characterization:
    """The points of one source, workload and scenario, ready for the predictors."""

    source: str
    workload_id: str
    scenario_id: str
    points: pd.DataFrame
    llms: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    predictors: list[str]
    """Those that the store has scores of."""
    features: Features | None
    """What predictors learn from, where it came with the source; else computed from facts."""
    feasibility: pd.DataFrame
    longest_request_tokens: int | None
    """None for an archive, whose workload is not known in full."""
    descriptions: tuple[Description, ...] = ()
    """What folders say of their points; none for a store."""
    left_out: tuple[str, ...] = ()
    """What is not among the points, and why, a sentence each."""

    @property
    def has_fixed_lengths(self) -> bool:
        """Whether each point has requests of its own lengths, not one workload's for all."""
        return any(each.lengths == "fixed" for each in self.descriptions)

    @property
    def memory_utilization(self) -> float:
        """Fraction of the memory that servers may use; vLLM's default if all ran already."""
        said = [each.memory_utilization for each in self.descriptions if each.memory_utilization]
        known = pd.concat(
            [self.feasibility["memory_utilization"].dropna(), pd.Series(said, dtype=float)]
        )
        return DEFAULT_MEMORY_UTILIZATION if known.empty else float(known.max())


def points_of_store(points: pd.DataFrame) -> pd.DataFrame:
    """Return rows of table `point` as a frame of points (`points.COLUMNS`)."""
    return complete(points.rename(columns=_OF_STORE))


def load_characterization(
    database: str | Path,
    source: str | None = None,
    workload_id: str | None = None,
    scenario_id: str | None = None,
) -> Characterization:
    """Read a characterization.

    The source has to be given if the store has several; workload and scenario are those
    that the store's recommendations rest on unless others are given.

    Raises:
        InputError: there is no such store, or the choice is not unique.
    """
    with open_store(database) as store:
        source = _only(store, database, "source", source)
        decision = store.execute(
            "SELECT workload_id, scenario_id FROM decision WHERE source = ?", [source]
        ).fetchone()
        default_workload, default_scenario = decision or (None, None)
        wanted = {
            "workload_id": workload_id or default_workload,
            "scenario_id": scenario_id or default_scenario,
        }
        chosen = {"source": source} | {
            name: _only(store, database, name, value) for name, value in wanted.items()
        }
        chosen["variant_id"] = DEFAULT_VARIANT
        where = " AND ".join(f"{name} = ${name}" for name in chosen)
        points = store.execute(f"SELECT * FROM point WHERE {where} ORDER BY ALL", chosen).df()
        feasibility = store.execute(f"SELECT * FROM feasibility WHERE {where}", chosen).df()
        longest = store.execute(
            "SELECT max_input_tokens + max_output_tokens FROM workload WHERE workload_id = ?",
            [chosen["workload_id"]],
        ).fetchone()
        return Characterization(
            source=source,
            workload_id=chosen["workload_id"],
            scenario_id=chosen["scenario_id"],
            points=points_of_store(points),
            llms=_llms(store),
            profiles=_profiles(store),
            feasibility=feasibility,
            predictors=_judged(store, source),
            features=_features(store, source),
            longest_request_tokens=longest[0] if longest else None,
        )


def load_all(database: str | Path) -> list[Characterization]:
    """Read every source, workload and scenario of a store that has points.

    Raises:
        InputError: there is no such store.
    """
    keys = "source, workload_id, scenario_id"
    with open_store(database) as store:
        query = f"SELECT DISTINCT {keys} FROM point WHERE variant_id = ? ORDER BY ALL"
        found = store.execute(query, [DEFAULT_VARIANT]).fetchall()
    return [load_characterization(database, *key) for key in found]


def _judged(store: "duckdb.DuckDBPyConnection", source: str) -> list[str]:
    query = "SELECT DISTINCT predictor FROM score WHERE source = ? ORDER BY 1"
    return [name for (name,) in store.execute(query, [source]).fetchall()]


def _features(store: "duckdb.DuckDBPyConnection", source: str) -> Features | None:
    tables = []
    for kind in ("llm", "gpu_profile"):
        rows = store.execute(
            "SELECT id, facts FROM feature WHERE source = ? AND kind = ? ORDER BY id",
            [source, kind],
        ).fetchall()
        facts = [json.loads(text) for _, text in rows]
        tables.append(pd.DataFrame(facts, index=pd.Index([name for name, _ in rows])))
    return Features(*tables) if len(tables[0]) else None


def _only(
    store: "duckdb.DuckDBPyConnection", database: str | Path, name: str, value: str | None
) -> str:
    found = [
        row[0] for row in store.execute(f"SELECT DISTINCT {name} FROM point ORDER BY 1").fetchall()
    ]
    option = f"--{name.replace('_', '-')}"
    if value is None and len(found) == 1:
        return found[0]
    if value is None or value not in found:
        if not found:
            fix = "measure a level to its end"
            raise InputError("the store has no points", file=database, fix=fix)
        fix = f"give {option}, one of {', '.join(found)}"
        problem = f"no points of {name} {value!r}" if value else f"{len(found)} values of {name}"
        raise InputError(problem, file=database, field=option, fix=fix)
    return value


def _llms(store: "duckdb.DuckDBPyConnection") -> dict[str, LLM]:
    names = [field.name for field in fields(LLM)]
    rows = store.execute(f"SELECT llm_id, {', '.join(names)} FROM llm ORDER BY llm_id").fetchall()
    return {llm_id: LLM(*values) for llm_id, *values in rows}


def _profiles(store: "duckdb.DuckDBPyConnection") -> dict[str, GPUProfile]:
    names = [field.name for field in fields(GPU)]
    gpus = {
        row[0]: GPU(*row) for row in store.execute(f"SELECT {', '.join(names)} FROM gpu").fetchall()
    }
    rows = store.execute(
        "SELECT gpu_profile_id, gpu_id, n_gpus, usd_per_hour, price_source, price_as_of "
        "FROM gpu_profile ORDER BY 1"
    ).fetchall()
    return {
        profile_id: GPUProfile(profile_id, gpus[gpu_id], n_gpus, usd, None, source, as_of)
        for profile_id, gpu_id, n_gpus, usd, source, as_of in rows
    }
