"""Reads the configuration and all sheets, and checks them against each other and their files."""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import Row, check_fields, load_sheet
from sextant.experiment import experiment as of_cells
from sextant.experiment import servers, sheets
from sextant.experiment.downloads import load_registry
from sextant.experiment.experiment import (
    ADAPTIVE,
    AdaptiveCells,
    Experiment,
    FleetRows,
    check_known,
)
from sextant.experiment.scenarios import scenario_from_row
from sextant.experiment.servers import (
    ENDPOINT,
    SIMULATED,
    EngineSettings,
    Variant,
    engine_settings,
    load_endpoints,
)
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey
from sextant.facts.gpu import GPUProfile, load_gpu, profile_from_row
from sextant.facts.llm import load_llm
from sextant.facts.slo import SLO, slo_of
from sextant.trace.date_times import check_start_time
from sextant.trace.mapping import named_format, read_columns
from sextant.workload.published import use_case_names

SHEETS: dict[str, tuple[type, str | None]] = {
    "traces": (sheets.TraceRow, "trace_id"),
    "workloads": (sheets.WorkloadRow, "workload_id"),
    "llms": (sheets.LlmRow, "llm_id"),
    "gpu_profiles": (sheets.GpuProfileRow, "gpu_profile_id"),
    "scenarios": (sheets.ScenarioRow, "scenario_id"),
    "benchmarks": (sheets.BenchmarkRow, None),
    "slos": (SLO, "slo_id"),
    "variants": (servers.VariantRow, "variant_id"),
    "supply": (sheets.SupplyRow, "pool_id"),
    "demands": (sheets.DemandRow, "demand_id"),
}
"""What the rows of each sheet may hold, and the column of their ids."""
_FEATURES = {"llms": (sheets.LlmFeatureRow, "llm_id"), "gpus": (sheets.GpuFeatureRow, "gpu_id")}
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

    `check_engine` checks the engine's settings and returns warnings; None leaves them unchecked.
    `known_predictors` is as of `check_config`. Raises InputError: it names the
    first file, line and field that is wrong.
    """
    check_config(config, file, known_predictors)
    for warning in check_engine(engine_settings(config), file) if check_engine else ():
        log.warning("%s: %s", file, warning)

    paths = config["sheets"]
    dtype = config["engine"]["dtype"]
    rows = _read_sheets(config)
    by_id = {
        name: {row[key]: row for row in rows[name]} for name, (_, key) in SHEETS.items() if key
    }
    variants = {DEFAULT_VARIANT: Variant()}
    variants |= {name: Variant(**row) for name, row in by_id["variants"].items()}
    ids: dict[str, Collection[str]] = {**by_id, "variants": variants}
    cells, adaptive, studies = _select_cells(config, rows["benchmarks"], ids)
    slos = [slo_of(row, paths["slos"], row.line) for row in rows["slos"]]
    slos.sort(key=lambda slo: slo.trace_id is not None)  # those for a trace's traffic last

    experiment = Experiment(
        traces=by_id["traces"],
        workloads=by_id["workloads"],
        llms=by_id["llms"],
        # Weights and KV cache have the type they are served in, whatever was published.
        llm_facts={name: load_llm(row["config"], dtype) for name, row in by_id["llms"].items()},
        profiles=_load_profiles(by_id["gpu_profiles"], config["gpus"]),
        scenarios={name: scenario_from_row(row) for name, row in by_id["scenarios"].items()},
        variants=variants,
        slos={slo.slo_id: slo for slo in slos},
        cells=cells,
        adaptive=adaptive,
        studies=studies,
        datasets=load_registry(config["registry"]),
        features={
            name: load_sheet(path, *_FEATURES[name])
            for name, path in config.get("features", {}).items()
        },
        endpoints={} if config.get("archive") else load_endpoints(paths.get("endpoints")),
        fleet=FleetRows(rows["demands"], rows["supply"]),
    )
    _check_experiment(experiment, config, file)

    return experiment


def _read_sheets(config: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Return the rows of each sheet; none of a sheet that the configuration does not name."""
    paths = config["sheets"]
    left_out = _NOT_OF_ARCHIVES if config.get("archive") else ()
    rows = {
        name: load_sheet(paths[name], *spec) if name in paths and name not in left_out else []
        for name, spec in SHEETS.items()
    }
    for row in rows["traces"]:
        if "columns" in row:
            row["columns"] = read_columns(row["columns"])
    return rows


def _select_cells(
    config: Mapping[str, Any], benchmarks: list[Row], ids: Mapping[str, Collection[str]]
) -> tuple[tuple[CellKey, ...], AdaptiveCells, dict[str, tuple[CellKey, ...]]]:
    """Return all cells to measure, the adaptive ones, and the cells of each study."""
    of_cells.check_adaptive(benchmarks, config["decision"])
    by_study = of_cells.cells_of_studies(benchmarks, ids)
    adaptive_cells = by_study.pop(ADAPTIVE, ())
    cells = dict.fromkeys(cell for of_study in by_study.values() for cell in of_study)
    candidates = tuple(cell for cell in adaptive_cells if cell not in cells)
    chosen = of_cells.chosen_cells(config, candidates)
    cells |= dict.fromkeys(chosen)

    if archive := config.get("archive"):
        archived = of_cells.archived_cells(archive["cells"], ids, config["decision"])
        cells = dict.fromkeys(archived)

    studies = {study: of_study for study, of_study in by_study.items() if study}

    return tuple(cells), AdaptiveCells(candidates, chosen), studies


def _load_profiles(rows: Mapping[str, Row], gpu_folder: str) -> dict[str, GPUProfile]:
    profiles = {}
    for name, row in rows.items():
        try:
            profiles[name] = profile_from_row(row, load_gpu(gpu_folder, row["gpu_id"]))
        except InputError as error:
            raise row.error(f"profile {name}: {error}", "gpu_id", None) from None
    return profiles


def check_config(
    config: Mapping[str, Any],
    file: str | Path,
    known_predictors: Collection[str] | None = None,
) -> None:
    """Raise InputError if a key of a configuration is unknown, missing or wrong.

    Names of predictors are compared with `known_predictors`; None leaves them unchecked.
    """
    for name in sorted(config.keys() & {"results", "logs", "benchmarks"}):
        fix = f"set it below pathvars, in a --configfile: pathvars: {{{name}: {config[name]}}}; "
        fix += "results, logs and benchmarks go together"
        raise InputError("it is no key of its own", file=file, field=name, fix=fix)
    check_fields(sheets.Configuration, config, file)
    _check_source(config, file)
    fleet_sheets = config["sheets"].keys() & {"demands", "supply"}
    if len(fleet_sheets) == 1:
        problem = f"{min(fleet_sheets)} alone is given"
        fix = "give the sheets of demands and of supply"
        raise InputError(problem, file=file, field="sheets", fix=fix)
    for name in config["predictors"]:
        if known_predictors is not None and name not in known_predictors:
            fix = f"use some of {', '.join(known_predictors)}"
            raise InputError(f"unknown predictor {name!r}", file=file, field="predictors", fix=fix)


def _check_experiment(experiment: Experiment, config: Mapping[str, Any], file: str | Path) -> None:
    """Raise InputError at the first place where the sheets do not fit together."""
    paths = config["sheets"]
    for workload in experiment.workloads.values():
        _check_origin(workload, experiment.traces)

    for slo_id, slo in experiment.trace_slos.items():
        if slo.trace_id not in experiment.traces:
            problem = f"{slo_id}: unknown trace {slo.trace_id!r}"
            fix = f"use one of {', '.join(experiment.traces) or 'traces.tsv, which has no row'}"
            raise InputError(problem, file=paths["slos"], field="trace_id", fix=fix)

    _check_decision(experiment, config["decision"], file)
    if "archive" in config:
        _check_archive(experiment, config, file)
    else:
        _check_endpoints(experiment, config, file)

    for trace in experiment.traces.values():
        _check_trace(trace, experiment)

    for row in experiment.fleet.demands:
        for name, defined_ids in (("trace_id", experiment.traces), ("llm_id", experiment.llms)):
            if name in row:
                check_known(row[name], defined_ids, row, name)

    _check_cells(experiment)
    for row in (row for row in experiment.llms.values() if "model" in row):
        if not Path(row["model"]).is_dir():
            fix = "give the folder of the weights, or leave the cell empty for random ones"
            raise row.error(f"{row['model']!r} is not a folder", "model", fix)
        # To unpickle other weights than safetensors would run their code.
        if not any(Path(row["model"]).glob("*.safetensors")):
            fix = "fetch or convert the weights as safetensors; pickled ones (.bin, .pt) are not "
            raise row.error(f"{row['model']!r} has no *.safetensors", "model", f"{fix}loaded")


def _check_origin(row: Row, traces: Collection[str]) -> None:
    """Check that a workload is made from one thing, and that it is there."""
    origins = [name for name in ("trace_id", "use_case", "input_tokens") if name in row]
    if len(origins) != 1 or ("input_tokens" in row) != ("output_tokens" in row):
        fix = "give a trace, a use case that ships, or input_tokens and output_tokens, and not both"
        problem = f"{' and '.join(origins) or 'nothing'} to make the workload from"
        raise row.error(problem, "trace_id", fix)
    if origins == ["input_tokens"]:
        for name in ("input_tokens", "output_tokens"):
            if row[name] > row[f"max_{name}"]:
                raise row.error(f"{row[name]} is above max_{name}", name, "raise the cap")
    else:
        defined_ids = traces if origins == ["trace_id"] else use_case_names()
        check_known(row[origins[0]], defined_ids, row, origins[0])
    for name in ("llm", "service"):
        if name in row and "trace_id" not in row:
            fix = "leave the cell empty, or give trace_id"
            raise row.error("only a trace has LLMs and services", name, fix)
    if "trace_id" not in row and "n_bins" in row:
        raise row.error("only traces are binned", "n_bins", "leave the cell empty")
    if "prompts" in row and not Path(row["prompts"]).is_file():
        fix = "give a file of text, or leave the cell empty for random token ids"
        raise row.error(f"{row['prompts']!r} is not a file", "prompts", fix)


def _check_decision(experiment: Experiment, decision: Mapping[str, str], file: str | Path) -> None:
    without_users = {
        name for name, scenario in experiment.scenarios.items() if not scenario.has_users
    }
    measured = {
        (cell.workload_id, cell.scenario_id)
        for cell in (*experiment.cells, *experiment.adaptive.candidates)
        if cell.variant_id == DEFAULT_VARIANT and cell.scenario_id not in without_users
    }
    if (decision["workload_id"], decision["scenario_id"]) not in measured:
        pairs = "; ".join(map(", ".join, sorted(measured)))
        problem = "no row of benchmarks.tsv measures this workload and closed-loop scenario"
        add = "add a row with a closed-loop scenario there"
        fix = f"use one pair of: {pairs}" if pairs else add
        raise InputError(problem, file=file, field="decision", fix=fix)


def _check_source(config: Mapping[str, Any], file: str | Path) -> None:
    """Raise InputError unless the name of the source says whether its points are simulated."""
    is_rehearsal = config["engine"].get("name") == SIMULATED
    if is_rehearsal != config["source"].startswith(SIMULATED):
        problem = "the points of a rehearsal are called simulated, and no others"
        fix = f"write `source: {SIMULATED}`, with a folder of results of its own; config/"
        raise InputError(problem, file=file, field="source", fix=f"{fix}rehearsal.yaml does so")


def _check_archive(experiment: Experiment, config: Mapping[str, Any], file: str | Path) -> None:
    name = config["archive"]["data"]
    if name not in experiment.datasets and not Path(name).exists():
        problem = f"{name!r} is neither in the registry nor a file or folder"
        fix = "give the id of a data set, or the path of the archive or of its unpacked folder"
        raise InputError(problem, file=file, field="archive.data", fix=fix)

    missing = set(experiment.llms) - {row["llm_id"] for row in experiment.features.get("llms", [])}
    if experiment.features and missing:
        path = config["features"]["llms"]
        fix = "add a row for it, or take it from the LLMs"
        raise InputError(f"no features of {min(missing)!r}", file=path, field="llm_id", fix=fix)
    if not config["source"].startswith("archive:"):
        fix = "call it archive:NAME, so that nobody takes it for measurements of this machine"
        raise InputError("the source is an archive", file=file, field="source", fix=fix)


def _check_endpoints(experiment: Experiment, config: Mapping[str, Any], file: str | Path) -> None:
    path = config["sheets"].get("endpoints")
    for (llm_id, profile_id), running_server in experiment.endpoints.items():
        row = Row({}, running_server.line or 0, path)
        check_known(llm_id, experiment.llms, row, "llm_id")
        check_known(profile_id, experiment.profiles, row, "gpu_profile_id")

    for key in (*experiment.cells, *experiment.adaptive.candidates):
        gpu = experiment.profiles[key.gpu_profile_id].gpu
        if endpoint := experiment.endpoint(key):
            servers.check_endpoint(endpoint, experiment.variants[key.variant_id], path)
        elif gpu.kind == "accelerator":
            problem = f"servers on {gpu.gpu_id} cannot be started: neither CUDA nor ROCm drives it"
            fix = "start them yourself and name them in endpoints.tsv, or leave the profile out"
            sheet = config["sheets"]["gpu_profiles"]
            raise InputError(problem, file=sheet, field="gpu_id", fix=fix)
        elif config["engine"].get("name") == SIMULATED and gpu.kind == "cpu":
            problem = f"{gpu.gpu_id} cannot be rehearsed: the law of a step was learned on GPUs, "
            problem += "and no measurement of processor cores ships"
            sheet = config["sheets"]["gpu_profiles"]
            fix = "leave the profile out, or measure it; config/cluster.yaml has GPUs to rehearse"
            raise InputError(problem, file=sheet, field="gpu_id", fix=fix)
        elif config["engine"].get("name") == ENDPOINT:
            problem = f"{key.llm_id} on {key.gpu_profile_id} has no row in endpoints.tsv"
            fix = "add its row (`sheets.endpoints`), or remove engine.name: vLLM is then started"
            raise InputError(problem, file=file, field="engine.name", fix=fix)


def _check_trace(row: Row, experiment: Experiment) -> None:
    name = row["dataset"]
    if name not in experiment.datasets and not Path(name).is_file():
        fix = "add it to the registry, or give the path of a file that exists"
        raise row.error(f"{name!r} is neither in the registry nor a file", "dataset", fix)
    try:
        form = named_format(row["format"], name, row.get("columns"), row.get("time_unit"))
    except InputError as error:
        raise error.at(file=row.file, row=row.line) from None
    if "start_time" in row:
        check_start_time(row["start_time"], form, file=row.file, row=row.line)


def _check_cells(experiment: Experiment) -> None:
    """Check each LLM's context against its requests, and that asked-for arrivals are there."""
    cells = (*experiment.cells, *experiment.adaptive.candidates)
    for cell in cells if experiment.workloads else ():
        workload = experiment.workloads[cell.workload_id]
        llm = experiment.llm_facts[cell.llm_id]
        longest = workload["max_input_tokens"] + workload["max_output_tokens"]
        if longest > llm.context_tokens:
            problem = f"{cell.workload_id} has requests of up to {longest} tokens"
            problem += f", {cell.llm_id} a context of {llm.context_tokens}"
            fix = "lower its caps, or benchmark this LLM with another workload"
            raise workload.error(problem, "max_input_tokens", fix)
        scenario = experiment.scenarios[cell.scenario_id]
        if isinstance(getattr(scenario, "arrivals", None), str) and "trace_id" not in workload:
            problem = f"the scenario {cell.scenario_id!r} asks for the workload's arrivals"
            fix = "fit the workload to a trace, or give the scenario a burstiness instead"
            raise workload.error(problem, "trace_id", fix)
