"""Reads measurements of our own: the store of a pipeline, its files, or the cells of a folder."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd
import pyarrow as pa
from pydantic import ValidationError

from sextant.base.errors import InputError
from sextant.base.files import read_parquet
from sextant.experiment.experiment import Experiment
from sextant.experiment.scenarios import KINDS
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM
from sextant.points.cell_files import DAMAGED, MeasuredCell, damaged_files, from_json, read_cell
from sextant.points.characterization import Characterization
from sextant.points.frame import Features, points_of_store
from sextant.points.store import connect, open_store
from sextant.points.summarize import summarize_cells

_LOAD_AGAIN = "load again into this folder, or move it elsewhere"
_SETTING = ["source", "workload_id", "scenario_id"]
_T = TypeVar("_T")


class _Measured(NamedTuple):
    """All that a store or a folder of cells has, of every source."""

    points: pd.DataFrame  # rows of the store's table `point`
    feasibility: pd.DataFrame  # rows of the store's table `feasibility`
    llms: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    longest_request_tokens: Mapping[str, int]  # by workload
    decisions: Mapping[str, tuple[str, str]]  # workload and scenario of answers, by source
    features: Mapping[str, Features] = {}  # features that came with a source, by source
    predictors: Mapping[str, list[str]] = {}  # predictors that were scored, by source


def load_characterization(
    path: str | Path,
    source: str | None = None,
    workload_id: str | None = None,
    scenario_id: str | None = None,
) -> Characterization:
    """Read a characterization from a store or from the cells of a folder.

    The workload and scenario are by default those of the source's recommendations. InputError: no
    points, a damaged file, or the choice is not unique.
    """
    return _choose(_read(path), path, source, workload_id, scenario_id)


def load_all(path: str | Path) -> list[Characterization]:
    """Read every source, workload and scenario that has points; see `load_characterization`."""
    measured = _read(path)
    plain = measured.points[measured.points["variant_id"] == DEFAULT_VARIANT]
    keys = plain[_SETTING].drop_duplicates().sort_values(_SETTING)
    return [_choose(measured, path, *key) for key in keys.itertuples(index=False)]


def load_run(
    files: Mapping[str, str | Path],
    experiment: Experiment,
    source: str,
    decision: Mapping[str, str],
) -> Characterization:
    """Read a run's points from its Parquet `files`, of one workload and scenario."""
    workload_id = decision["workload_id"]
    caps = experiment.workloads[workload_id]
    measured = _Measured(
        points=_frame(read_parquet(Path(files["point"]))),
        feasibility=_frame(read_parquet(Path(files["feasibility"]))),
        llms=dict(sorted(experiment.llm_facts.items())),
        profiles=_profiles(experiment.profiles),
        longest_request_tokens={workload_id: caps["max_input_tokens"] + caps["max_output_tokens"]},
        decisions={},
    )
    return _choose(measured, files["point"], source, workload_id, decision["scenario_id"])


def _frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as the store would: integers stay integers where some are missing."""
    return connect().from_arrow(table).df()


def _profiles(profiles: Mapping[str, GPUProfile]) -> dict[str, GPUProfile]:
    """Return profiles without their names in a cluster, which no measurement depends on."""
    return {name: replace(profiles[name], gpu_model=None) for name in sorted(profiles)}


def _choose(
    measured: _Measured,
    path: str | Path,
    source: str | None,
    workload_id: str | None,
    scenario_id: str | None,
) -> Characterization:
    """Return the points of a source, workload and scenario, on servers of the default variant."""
    source = _only(measured.points, path, "source", source)
    usual_workload, usual_scenario = measured.decisions.get(source, (None, None))
    workload_id = _only(measured.points, path, "workload_id", workload_id or usual_workload)
    scenario_id = _only(measured.points, path, "scenario_id", scenario_id or usual_scenario)
    setting = (source, workload_id, scenario_id, DEFAULT_VARIANT)
    wanted = pd.Series(setting, [*_SETTING, "variant_id"])

    def rows(table: pd.DataFrame) -> pd.DataFrame:
        return table[(table[wanted.index] == wanted).all(axis=1)].reset_index(drop=True)

    return Characterization(
        source,
        workload_id,
        scenario_id,
        points=points_of_store(rows(measured.points)),
        llms=measured.llms,
        profiles=measured.profiles,
        feasibility=rows(measured.feasibility),
        predictors=measured.predictors.get(source, []),
        features=measured.features.get(source),
        longest_request_tokens=measured.longest_request_tokens.get(workload_id),
        priced_by_sheet=frozenset(
            name
            for name, profile in measured.profiles.items()
            if not math.isnan(profile.usd_per_hour)
        ),
    )


def _only(points: pd.DataFrame, path: str | Path, name: str, value: str | None) -> str:
    """Return the value of a column that is asked for, or the only one; InputError: several."""
    values = sorted(points[name].unique())
    if not values:
        raise InputError("the store has no points", file=path, fix="measure a level to its end")
    if value is None and len(values) == 1:
        return str(values[0])
    if value is not None and value in values:
        return value
    option = f"--{name.replace('_', '-')}"
    fix = f"give {option}, one of {', '.join(values)}"
    problem = f"no points of {name} {value!r}" if value else f"{len(values)} values of {name}"
    raise InputError(problem, file=path, field=option, fix=fix)


def _read(path: str | Path) -> _Measured:
    if Path(path).is_dir():
        return _read_cells(Path(path))
    llm, gpu = (", ".join(field.name for field in fields(kind)) for kind in (LLM, GPU))
    with open_store(path) as store:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return store.execute(query).fetchall()

        gpus = {row[0]: GPU(*row) for row in rows(f"SELECT {gpu} FROM gpu")}
        profiles = rows(
            "SELECT gpu_profile_id, gpu_id, n_gpus, usd_per_hour, price_source, price_as_of "
            "FROM gpu_profile ORDER BY 1"
        )
        llms = rows(f"SELECT llm_id, {llm} FROM llm ORDER BY llm_id")
        longest = rows("SELECT workload_id, max_input_tokens + max_output_tokens FROM workload")
        decisions = rows("SELECT source, workload_id, scenario_id FROM decision")
        scored = rows(
            "SELECT source, list(DISTINCT predictor ORDER BY predictor) FROM score GROUP BY 1"
        )
        features: dict[str, dict[str, dict[str, Any]]] = {}
        for source, kind, name, facts in rows("FROM feature ORDER BY source, kind, id"):
            tables = features.setdefault(source, {"llm": {}, "gpu_profile": {}})
            tables[kind][name] = json.loads(facts)
        return _Measured(
            points=store.execute("FROM point ORDER BY ALL").df(),
            feasibility=store.execute("FROM feasibility").df(),
            llms={llm_id: LLM(*values) for llm_id, *values in llms},
            profiles={
                name: GPUProfile(name, gpus[gpu_id], n_gpus, usd, None, price_source, as_of)
                for name, gpu_id, n_gpus, usd, price_source, as_of in profiles
            },
            longest_request_tokens=dict(longest),
            decisions={source: (workload, scenario) for source, workload, scenario in decisions},
            features={
                source: Features(
                    *(pd.DataFrame.from_dict(rows, orient="index") for rows in tables.values())
                )
                for source, tables in features.items()
            },
            predictors=dict(scored),
        )


def _read_cells(folder: Path) -> _Measured:
    """Read all cells below a folder; their `run.json` has the facts of LLMs and GPUs."""
    cells = []
    for path in sorted(folder.rglob("run.json")):
        name = path.parent.name
        # Damaged files that were set aside, or files that a killed process left.
        if name.startswith(DAMAGED) or name.endswith(".partial"):
            continue
        if damage := damaged_files(path.parent):
            problems = ", ".join(f"{name} {problem}" for name, problem in damage.items())
            # The cell stays in its folder: no command would measure it again.
            raise InputError(f"the cell is damaged: {problems}", file=path.parent, fix=_LOAD_AGAIN)
        cells.append(read_cell(path.parent))
    if not cells:
        fix = "give a store, a folder of what `sextant load` has written, or --source FOLDER"
        raise InputError("there is no measured cell", file=folder, fix=fix)

    folders: dict[tuple[str, ...], Path] = {}
    llms: dict[str, LLM] = {}
    profiles: dict[str, GPUProfile] = {}
    longest: dict[str, int] = {}
    for cell in cells:
        key = cell.run.key
        other = folders.setdefault(cell.run.ids, cell.folder)
        if other != cell.folder:
            fix = "move one of them elsewhere"
            raise InputError(f"the same was measured in {other}", file=cell.folder, fix=fix)
        llms[key.llm_id] = _fact(cell, "llm", LLM, "--llm or --hf-config")
        options = "--gpu-profile and --usd-per-hour"
        profiles[key.gpu_profile_id] = _fact(cell, "gpu_profile", GPUProfile, options)
        sides = ("max_input_tokens", "max_output_tokens")
        longest[key.workload_id] = sum(_fact(cell, side, int) for side in sides)
    settings = {
        (run.source, (run.key.workload_id, run.key.scenario_id))
        for run in (cell.run for cell in cells)
        if KINDS[run.scenario_kind].has_users and run.key.variant_id == DEFAULT_VARIANT
    }
    points, feasibility, _ = summarize_cells(cells)
    return _Measured(
        points=_frame(points),
        feasibility=_frame(feasibility),
        llms=dict(sorted(llms.items())),
        profiles=_profiles(profiles),
        longest_request_tokens=longest,
        decisions=dict(settings) if len(settings) == 1 else {},
    )


def _fact(cell: MeasuredCell, name: str, kind: type[_T], options: str = "") -> _T:
    """Return a fact of a cell's definition; InputError: it is unknown or malformed."""
    value = (cell.run.origin.definition or {}).get(name)
    field = f"definition.{name}"
    path = cell.folder / "run.json"
    if value is None:
        fix = f"load again with {options}" if options else "measure it again with `sextant load`"
        raise InputError("it is not known", file=path, field=field, fix=fix)
    if isinstance(value, dict):  # an unknown price is null: the dataclass has its own default
        value = {key: fact for key, fact in value.items() if fact is not None}
    try:
        return from_json(kind, value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, (field, *first["loc"])))
        raise InputError(first["msg"], file=path, field=field, fix=_LOAD_AGAIN) from None
