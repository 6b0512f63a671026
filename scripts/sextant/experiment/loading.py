"""Reads the configuration and all sheets, and has them checked against each other."""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import Row, check, load_sheet
from sextant.experiment.cells import (
    ADAPTIVE,
    archived_cells,
    cells_of_studies,
    check_adaptive,
    chosen_cells,
)
from sextant.experiment.checks import check_experiment
from sextant.experiment.downloads import load_registry
from sextant.experiment.experiment import Experiment
from sextant.experiment.scenarios import scenario_from_row
from sextant.experiment.servers import (
    EngineSettings,
    Variant,
    VariantRow,
    engine_settings,
    load_endpoints,
)
from sextant.experiment.sheets import (
    DEFAULT_VARIANT,
    BenchmarkRow,
    Configuration,
    DemandRow,
    GpuFeatureRow,
    GpuProfileRow,
    LlmFeatureRow,
    LlmRow,
    ScenarioRow,
    SupplyRow,
    TraceRow,
    WorkloadRow,
)
from sextant.facts.gpu import GPUProfile, load_gpu, profile_from_row
from sextant.facts.llm import load_llm
from sextant.facts.slo import SLO, slo_of
from sextant.trace.mapping import columns_given

SHEETS: dict[str, tuple[type, str | None]] = {
    "traces": (TraceRow, "trace_id"),
    "workloads": (WorkloadRow, "workload_id"),
    "llms": (LlmRow, "llm_id"),
    "gpu_profiles": (GpuProfileRow, "gpu_profile_id"),
    "scenarios": (ScenarioRow, "scenario_id"),
    "benchmarks": (BenchmarkRow, None),
    "slos": (SLO, "slo_id"),
}
"""What the rows of each sheet may hold, and the column of their ids."""
_FEATURES = {"llms": (LlmFeatureRow, "llm_id"), "gpus": (GpuFeatureRow, "gpu_id")}
# An archive says in its own files what was measured with what.
_NOT_OF_ARCHIVES = ("traces", "workloads", "scenarios", "benchmarks")
CheckEngine = Callable[[EngineSettings, str | Path], list[str]]
log = logging.getLogger(__name__)


def load_experiment(
    config: Mapping[str, Any],
    file: str | Path = "config",
    known_predictors: Collection[str] | None = None,
    check_engine: CheckEngine | None = None,
) -> Experiment:
    """Read and check everything that a configuration names; paths are relative to here.

    This room knows neither predictors nor engines: `known_predictors` are the names that
    `predictors` may hold, `check_engine` checks the settings of the engine and returns warnings
    (`sextant.engine.registry.check_settings`). None leaves them unchecked. InputError names the
    first file, line and field that is wrong, before anything runs.
    """
    check_config(config, file)
    for name in config["predictors"]:
        if known_predictors is not None and name not in known_predictors:
            fix = f"use some of {', '.join(known_predictors)}"
            raise InputError(f"unknown predictor {name!r}", file=file, field="predictors", fix=fix)
    for warning in check_engine(engine_settings(config), file) if check_engine else ():
        log.warning("%s: %s", file, warning)
    paths, archive = config["sheets"], config.get("archive")
    rows = {
        name: [] if archive and name in _NOT_OF_ARCHIVES else load_sheet(paths[name], kind, key)
        for name, (kind, key) in SHEETS.items()
    }
    for row in rows["traces"]:
        if "columns" in row:
            row["columns"] = columns_given(row["columns"])
    by_id = {
        name: {row[key]: row for row in rows[name]} for name, (_, key) in SHEETS.items() if key
    }
    variants = {DEFAULT_VARIANT: Variant()}
    if "variants" in paths:
        variant_rows = load_sheet(paths["variants"], VariantRow, "variant_id")
        variants |= {row["variant_id"]: Variant(**row) for row in variant_rows}
    demands = []
    if "demands" in paths:  # the supply is read to see that it can be
        load_sheet(paths["supply"], SupplyRow, "pool_id")
        demands = load_sheet(paths["demands"], DemandRow, "demand_id")
    ids: dict[str, Collection[str]] = {**by_id, "variants": variants}
    check_adaptive(rows["benchmarks"], config["decision"])
    studies = cells_of_studies(rows["benchmarks"], ids)
    candidates = studies.pop(ADAPTIVE, ())
    asked = dict.fromkeys(cell for cells in studies.values() for cell in cells)
    adaptive = tuple(cell for cell in candidates if cell not in asked)
    chosen = chosen_cells(config, adaptive)
    asked |= dict.fromkeys(chosen)
    slos = {row["slo_id"]: slo_of(row, paths["slos"], row.line) for row in rows["slos"]}
    experiment = Experiment(
        traces=by_id["traces"],
        workloads=by_id["workloads"],
        llms=by_id["llms"],
        # Weights and KV cache have the type they are served in, whatever was published.
        llm_facts={
            llm_id: load_llm(row["config"], config["engine"]["dtype"])
            for llm_id, row in by_id["llms"].items()
        },
        profiles=_profiles(rows["gpu_profiles"], config["gpus"]),
        scenarios={
            row["scenario_id"]: scenario_from_row(row, paths["scenarios"])
            for row in rows["scenarios"]
        },
        variants=variants,
        slos={name: slo for name, slo in slos.items() if slo.trace_id is None},
        trace_slos={name: slo for name, slo in slos.items() if slo.trace_id is not None},
        cells=tuple(
            archived_cells(archive["cells"], ids, config["decision"]) if archive else asked
        ),
        adaptive=adaptive,
        chosen=chosen,
        studies={study: cells for study, cells in studies.items() if study},
        datasets=load_registry(config["registry"]),
        features={
            name: load_sheet(path, *_FEATURES[name])
            for name, path in config.get("features", {}).items()
        },
        endpoints={} if archive else load_endpoints(paths.get("endpoints")),
        demands=demands,
    )
    check_experiment(experiment, config, file)
    return experiment


def check_config(config: Mapping[str, Any], file: str | Path) -> None:
    """Raise InputError if a key of a configuration is unknown, missing or wrong."""
    check(Configuration, config, file)
    given = config["sheets"].keys() & {"demands", "supply"}
    if len(given) == 1:
        problem, fix = f"{min(given)} alone is given", "give the sheets of demands and of supply"
        raise InputError(problem, file=file, field="sheets", fix=fix)


def _profiles(rows: list[Row], folder: str) -> dict[str, GPUProfile]:
    profiles = {}
    for row in rows:
        try:
            gpu = load_gpu(folder, row["gpu_id"])
        except InputError as error:
            problem = f"profile {row['gpu_profile_id']}: {error}"
            raise row.error(problem, "gpu_id", None) from None
        profiles[row["gpu_profile_id"]] = profile_from_row(row, gpu)
    return profiles
