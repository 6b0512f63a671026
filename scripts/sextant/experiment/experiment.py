"""An experiment: the configuration and all sheets, checked against each other."""

import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import sha256_file
from sextant.base.ids import file_name
from sextant.base.sheets import SCHEMAS, Row, load_sheet, validate
from sextant.experiment.downloads import Dataset, load_registry
from sextant.experiment.endpoints import ENDPOINT, Endpoint, check_endpoint, load_endpoints
from sextant.experiment.engine_settings import EngineSettings, engine_facts, engine_settings
from sextant.experiment.scenarios import (
    DEFAULT_VARIANT,
    WINDOWS_FILE,
    Scenario,
    Variant,
    plain,
    scenario_from_row,
    variant_from_row,
)
from sextant.hardware.gpu import GPUProfile, load_gpu, profile_from_row
from sextant.ingest.start import check_start_time
from sextant.ingest.trace_format import FORMATS
from sextant.llm import LLM, load_llm
from sextant.workload.request_model import N_BINS
from sextant.workload.use_cases import use_case_names

SHEET_KEYS = {
    "traces": "trace_id",
    "workloads": "workload_id",
    "llms": "llm_id",
    "gpu_profiles": "gpu_profile_id",
    "scenarios": "scenario_id",
    "benchmarks": None,
    "slos": "slo_id",
}
# What an archive was measured with stands in no sheet of ours.
_NOT_OF_ARCHIVES = ("traces", "workloads", "scenarios", "benchmarks")
# SLURM's executor makes one folder of a job's wildcards; file systems allow it 255 bytes.
_MAX_CELL_NAME_CHARACTERS = 230
log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell: an LLM × GPU profile × workload × scenario, on servers of a variant."""

    llm_id: str
    gpu_profile_id: str
    workload_id: str
    scenario_id: str
    variant_id: str = DEFAULT_VARIANT

    @property
    def folder(self) -> str:
        """Place of its results below those of its source; the default variant is not named."""
        *place, variant = map(file_name, asdict(self).values())
        return "/".join(place) + ("" if variant == DEFAULT_VARIANT else f"@{variant}")


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs to know, by id."""

    traces: dict[str, Row]
    workloads: dict[str, Row]
    llms: dict[str, Row]
    llm_facts: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    scenarios: dict[str, Scenario]
    variants: dict[str, Variant]
    slos: dict[str, Row]
    cells: tuple[CellKey, ...]
    studies: dict[str, tuple[CellKey, ...]]
    """The cells that feed each study, of those that benchmarks.tsv gives to one."""
    datasets: dict[str, Dataset]
    features: dict[str, list[Row]]
    """Rows of the sheets `llms` and `gpus` that replace features computed from facts, if any."""
    endpoints: dict[tuple[str, str], Endpoint]
    """Servers that run already, by LLM and GPU profile."""

    def endpoint(self, key: CellKey) -> Endpoint | None:
        """Return where the servers of a cell run already; None if the pipeline starts them."""
        return self.endpoints.get((key.llm_id, key.gpu_profile_id))


def load_experiment(
    config: Mapping[str, Any],
    file: str | Path = "config",
    known_predictors: Collection[str] | None = None,
    check_engine: Callable[[EngineSettings, str | Path], list[str]] | None = None,
) -> Experiment:
    """Read and check everything that a configuration names; paths are relative to here.

    This room knows neither predictors nor engines: `known_predictors` are the names that
    `predictors` may hold, `check_engine` checks the settings of the engine and returns warnings
    (`sextant.engine.registry.check_settings`). None leaves them unchecked.

    Raises:
        InputError: names the first file, line and field that is wrong, before anything runs.
    """
    validate(config, SCHEMAS / "config.schema.yaml", file)
    for name in config["predictors"]:
        if known_predictors is not None and name not in known_predictors:
            fix = f"use some of {', '.join(known_predictors)}"
            raise InputError(f"unknown predictor {name!r}", file=file, field="predictors", fix=fix)
    for warning in check_engine(engine_settings(config), file) if check_engine else ():
        log.warning("%s: %s", file, warning)
    paths, archive = config["sheets"], config.get("archive")
    rows = {
        name: []
        if archive and name in _NOT_OF_ARCHIVES
        else load_sheet(paths[name], SCHEMAS / f"{name}.schema.yaml", key)
        for name, key in SHEET_KEYS.items()
    }
    by_id = {name: {row[key]: row for row in rows[name]} for name, key in SHEET_KEYS.items() if key}
    for row in rows["workloads"]:
        _check_origin(row, by_id["traces"], paths["workloads"])
    by_id["variants"] = _variants(paths.get("variants"))
    studies = _cells(rows["benchmarks"], by_id, paths["benchmarks"])
    experiment = Experiment(
        traces=by_id["traces"],
        workloads=by_id["workloads"],
        llms=by_id["llms"],
        # Weights and KV cache have the type they are served in, whatever was published.
        llm_facts={
            llm_id: load_llm(row["config"], config["engine"]["dtype"])
            for llm_id, row in by_id["llms"].items()
        },
        profiles=_profiles(rows["gpu_profiles"], config["gpus"], paths["gpu_profiles"]),
        scenarios={
            row["scenario_id"]: scenario_from_row(row, paths["scenarios"])
            for row in rows["scenarios"]
        },
        variants=by_id["variants"],
        slos=by_id["slos"],
        cells=tuple(
            _archived_cells(archive["cells"], by_id, config["decision"])
            if archive
            else dict.fromkeys(cell for cells in studies.values() for cell in cells)
        ),
        studies={study: cells for study, cells in studies.items() if study},
        datasets=load_registry(config["registry"]),
        features={
            name: load_sheet(path, SCHEMAS / f"{name[:-1]}_features.schema.yaml", f"{name[:-1]}_id")
            for name, path in config.get("features", {}).items()
        },
        endpoints={} if archive else load_endpoints(paths.get("endpoints")),
    )
    _check_decision(experiment, config["decision"], file)
    if archive:
        _check_archive(experiment, config, file)
    else:
        _check_endpoints(experiment, config, file)
    _check_datasets(experiment, paths["traces"])
    for row in rows["traces"]:
        if "start_time" in row:
            form, where = FORMATS[row["format"]], {"file": paths["traces"], "row": row.line}
            check_start_time(row["start_time"], form, **where)
    _check_contexts(experiment, paths["workloads"])
    for row in rows["llms"]:
        if "model" in row:
            _check_weights(row, paths["llms"])
    return experiment


def _check_weights(row: Row, file: str) -> None:
    """Check that a folder has weights as safetensors: to unpickle others would run their code."""
    where = {"file": file, "row": row.line, "field": "model"}
    if not Path(row["model"]).is_dir():
        fix = "give the folder of the weights, or leave the cell empty for random ones"
        raise InputError(f"{row['model']!r} is no folder", **where, fix=fix)
    if not any(Path(row["model"]).glob("*.safetensors")):
        fix = "fetch or convert the weights as safetensors; pickled ones (.bin, .pt) are not loaded"
        raise InputError(f"{row['model']!r} has no *.safetensors", **where, fix=fix)


def trace_sha256(experiment: Experiment, trace_id: str) -> str:
    """Return the SHA-256 of a trace's source: the registry's, or that of a local file."""
    name = experiment.traces[trace_id]["dataset"]
    dataset = experiment.datasets.get(name)
    return dataset.sha256 if dataset else _sha256_once(name)


def _sha256_once(path: str | Path) -> str:
    """Return a file's SHA-256, read once while nobody changes the file."""
    state = Path(path).stat()
    return _sha256_at(Path(path).absolute(), state.st_mtime_ns, state.st_size)


@cache
def _sha256_at(path: Path, mtime_ns: int, size_bytes: int) -> str:
    return sha256_file(path)


def cell_definition(
    experiment: Experiment, key: CellKey, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that a cell's measurement depends on, as plain data.

    A change in it, and nothing else, makes a measurement stale: prices, SLOs, limits of
    time and the path of the interpreter are not in it.
    """
    llm, workload = experiment.llms[key.llm_id], experiment.workloads[key.workload_id]
    scenario = experiment.scenarios[key.scenario_id]
    mirrored = {"windows_sha256": _sha256_once(WINDOWS_FILE)} if scenario.kind == "burst" else {}
    return {
        "source": config["source"],
        **asdict(key),
        "config_path": llm["config"],
        "model": llm.get("model"),
        "devices": asdict(experiment.profiles[key.gpu_profile_id].devices),
        "max_input_tokens": workload["max_input_tokens"],
        "max_output_tokens": workload["max_output_tokens"],
        "scenario": plain(scenario),
        "variant": plain(experiment.variants[key.variant_id]),
        "seed": config["seed"],
        "sampler": workload.get("sampler", "joint"),
        "prompts": workload.get("prompts"),
        "workload": _workload_facts(experiment, workload),
        "engine": engine_facts(engine_settings(config, experiment.endpoint(key))),
        **mirrored,
    }


def _workload_facts(experiment: Experiment, workload: Row) -> dict[str, Any]:
    """Return what a workload is made from; its files tell the rest."""
    facts: dict[str, Any] = {"n_bins": workload.get("n_bins", N_BINS)}
    if "prompts" in workload:
        facts["prompts_sha256"] = _sha256_once(workload["prompts"])
    if "trace_id" not in workload:
        origin = ("use_case", "input_tokens", "output_tokens")
        return facts | {name: workload[name] for name in origin if name in workload}
    trace = experiment.traces[workload["trace_id"]]
    return facts | {
        "format": trace["format"],
        "max_rejected_fraction": trace.get("max_rejected_fraction", 0.01),
        "sha256": trace_sha256(experiment, workload["trace_id"]),
    }


def _profiles(rows: list[Row], folder: str, file: str) -> dict[str, GPUProfile]:
    profiles = {}
    for row in rows:
        try:
            gpu = load_gpu(folder, row["gpu_id"])
        except InputError as error:
            problem = f"profile {row['gpu_profile_id']}: {error}"
            raise InputError(problem, file=file, row=row.line, field="gpu_id") from None
        profiles[row["gpu_profile_id"]] = profile_from_row(row, gpu)
    return profiles


def _variants(path: str | None) -> dict[str, Variant]:
    rows = load_sheet(path, SCHEMAS / "variants.schema.yaml", "variant_id") if path else []
    return {DEFAULT_VARIANT: Variant()} | {row["variant_id"]: variant_from_row(row) for row in rows}


def _cells(
    rows: list[Row], by_id: Mapping[str, Mapping], file: str
) -> dict[str | None, tuple[CellKey, ...]]:
    """Return the cells of each study; None is the study of rows that name none."""
    cells: dict[str | None, dict[CellKey, None]] = {}
    for row in rows:
        _known(row["workload_id"], by_id["workloads"], file, row, "workload_id")
        _known(row["scenario_id"], by_id["scenarios"], file, row, "scenario_id")
        chosen = itertools.product(
            _selected(row, "llm_ids", by_id["llms"], file),
            _selected(row, "gpu_profile_ids", by_id["gpu_profiles"], file),
            [row["workload_id"]],
            [row["scenario_id"]],
            _selected(row, "variant_ids", by_id["variants"], file, DEFAULT_VARIANT),
        )
        cells.setdefault(row.get("study"), {}).update(
            dict.fromkeys(_short_enough(CellKey(*place), file, row) for place in chosen)
        )
    return {study: tuple(found) for study, found in cells.items()}


def _short_enough(cell: CellKey, file: str, row: Row) -> CellKey:
    if len(cell.folder) > _MAX_CELL_NAME_CHARACTERS:
        problem = f"the names of {cell.folder} have {len(cell.folder)} characters"
        fix = f"shorten one of its ids: {_MAX_CELL_NAME_CHARACTERS} together fit into a file name"
        raise InputError(problem, file=file, row=row.line, fix=fix)
    return cell


def _archived_cells(
    path: str, by_id: Mapping[str, Mapping], decision: Mapping[str, str]
) -> list[CellKey]:
    cells: dict[CellKey, None] = {}
    for row in load_sheet(path, SCHEMAS / "cells.schema.yaml"):
        _known(row["llm_id"], by_id["llms"], path, row, "llm_id")
        _known(row["gpu_profile_id"], by_id["gpu_profiles"], path, row, "gpu_profile_id")
        key = CellKey(row["llm_id"], row["gpu_profile_id"], **decision)
        if key in cells:
            problem = f"{key.llm_id} on {key.gpu_profile_id} stands twice"
            raise InputError(problem, file=path, row=row.line, fix="remove one of the rows")
        cells[key] = None
    return list(cells)


def _check_decision(experiment: Experiment, decision: Mapping[str, str], file: str | Path) -> None:
    measured = {
        (cell.workload_id, cell.scenario_id)
        for cell in experiment.cells
        if cell.variant_id == DEFAULT_VARIANT
        and (
            not experiment.scenarios or experiment.scenarios[cell.scenario_id].kind == "closed_loop"
        )
    }
    if (decision["workload_id"], decision["scenario_id"]) not in measured:
        pairs = "; ".join(f"{workload}, {scenario}" for workload, scenario in sorted(measured))
        problem = "no row of benchmarks.tsv measures this workload and closed-loop scenario"
        raise InputError(problem, file=file, field="decision", fix=f"use one pair of: {pairs}")


def _has_users(experiment: Experiment, cell: CellKey) -> bool:
    scenario = experiment.scenarios.get(cell.scenario_id)
    return scenario is None or scenario.kind == "closed_loop"  # an archive has no scenarios


def _check_archive(experiment: Experiment, config: Mapping[str, Any], file: str | Path) -> None:
    name = config["archive"]["data"]
    if name not in experiment.datasets and not Path(name).exists():
        problem = f"{name!r} is neither in the registry nor a file or folder"
        fix = "give the id of a data set, or the path of the archive or of its unpacked folder"
        raise InputError(problem, file=file, field="archive.data", fix=fix)
    missing = set(experiment.llms) - {row["llm_id"] for row in experiment.features.get("llms", [])}
    if experiment.features and missing:
        path, fix = config["features"]["llms"], "add a row for it, or take it from the LLMs"
        raise InputError(f"no features of {min(missing)!r}", file=path, field="llm_id", fix=fix)
    if not config["source"].startswith("archive:"):
        fix = "call it archive:NAME, so that nobody takes it for measurements of this machine"
        raise InputError("the source is an archive", file=file, field="source", fix=fix)


def _check_endpoints(experiment: Experiment, config: Mapping[str, Any], file: str | Path) -> None:
    path = config["sheets"].get("endpoints")
    for (llm_id, profile_id), given in experiment.endpoints.items():
        row = Row({}, given.line or 0)
        _known(llm_id, experiment.llms, path, row, "llm_id")
        _known(profile_id, experiment.profiles, path, row, "gpu_profile_id")
    for key in experiment.cells:
        if endpoint := experiment.endpoint(key):
            check_endpoint(endpoint, experiment.variants[key.variant_id], path)
        elif config["engine"].get("name") == ENDPOINT:
            problem = f"{key.llm_id} on {key.gpu_profile_id} has no row in endpoints.tsv"
            fix = "add its row (`sheets.endpoints`), or remove engine.name: vLLM is then started"
            raise InputError(problem, file=file, field="engine.name", fix=fix)


def _selected(
    row: Row, field: str, known: Mapping, file: str, default: str | None = None
) -> list[str]:
    text = row.get(field, default)
    if text == "*":
        return list(known)
    chosen = [part.strip() for part in text.split(",")]
    for value in chosen:
        _known(value, known, file, row, field)
    return chosen


def _check_origin(row: Row, traces: Mapping, file: str) -> None:
    """Check that a workload is made from one thing that is known, and its prompts from a file."""
    given = [name for name in ("trace_id", "use_case", "input_tokens") if name in row]
    where = {"file": file, "row": row.line}
    if len(given) != 1 or ("input_tokens" in row) != ("output_tokens" in row):
        fix = "give a trace, a use case that ships, or input_tokens and output_tokens, and not both"
        problem = f"{' and '.join(given) or 'nothing'} to make the workload from"
        raise InputError(problem, **where, field="trace_id", fix=fix)
    if given == ["input_tokens"]:
        for name in ("input_tokens", "output_tokens"):
            if row[name] > row[f"max_{name}"]:
                problem, fix = f"{row[name]} is above max_{name}", "raise the cap"
                raise InputError(problem, **where, field=name, fix=fix)
    else:
        known = traces if given == ["trace_id"] else use_case_names()
        _known(row[given[0]], known, file, row, given[0])
    if "trace_id" not in row and "n_bins" in row:
        fix = "leave the cell empty"
        raise InputError("only traces are binned", **where, field="n_bins", fix=fix)
    if "prompts" in row and not Path(row["prompts"]).is_file():
        fix = "give a file of text, or leave the cell empty for random token ids"
        raise InputError(f"{row['prompts']!r} is no file", **where, field="prompts", fix=fix)


def _known(value: str, known: Collection[str], file: str, row: Row, field: str) -> None:
    if value not in known:
        fix = f"use one of: {', '.join(known)}"
        raise InputError(f"unknown id {value!r}", file=file, row=row.line, field=field, fix=fix)


def _check_datasets(experiment: Experiment, file: str) -> None:
    for trace in experiment.traces.values():
        name = trace["dataset"]
        if name not in experiment.datasets and not Path(name).is_file():
            fix = "add it to the registry, or give the path of a file that exists"
            problem = f"{name!r} is neither in the registry nor a file"
            raise InputError(problem, file=file, row=trace.line, field="dataset", fix=fix)


def _check_contexts(experiment: Experiment, file: str) -> None:
    for cell in experiment.cells if experiment.workloads else ():
        workload, llm = experiment.workloads[cell.workload_id], experiment.llm_facts[cell.llm_id]
        longest = workload["max_input_tokens"] + workload["max_output_tokens"]
        if longest > llm.context_tokens:
            problem = (
                f"{cell.workload_id} has requests of up to {longest} tokens, "
                f"{cell.llm_id} a context of {llm.context_tokens}"
            )
            fix = "lower its caps, or benchmark this LLM with another workload"
            row = workload.line
            raise InputError(problem, file=file, row=row, field="max_input_tokens", fix=fix)
