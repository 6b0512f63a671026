"""What must hold between sheets, and between a sheet and the files that it names."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.sheets import Row
from sextant.experiment.cells import check_known
from sextant.experiment.experiment import Experiment
from sextant.experiment.servers import ENDPOINT, check_endpoint
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.trace.date_times import check_start_time
from sextant.trace.mapping import named_format
from sextant.workload.published import use_case_names


def check_experiment(experiment: Experiment, config: Mapping[str, Any], file: str | Path) -> None:
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
    for row in experiment.demands:
        for name, known in (("trace_id", experiment.traces), ("llm_id", experiment.llms)):
            if name in row:
                check_known(row[name], known, row, name)
    _check_contexts(experiment)
    _check_arrivals(experiment)
    for llm in experiment.llms.values():
        if "model" in llm:
            _check_weights(llm)


def _check_origin(row: Row, traces: Collection[str]) -> None:
    """Check that a workload is made from one thing, and that it is there."""
    given = [name for name in ("trace_id", "use_case", "input_tokens") if name in row]
    if len(given) != 1 or ("input_tokens" in row) != ("output_tokens" in row):
        fix = "give a trace, a use case that ships, or input_tokens and output_tokens, and not both"
        problem = f"{' and '.join(given) or 'nothing'} to make the workload from"
        raise row.error(problem, "trace_id", fix)
    if given == ["input_tokens"]:
        for name in ("input_tokens", "output_tokens"):
            if row[name] > row[f"max_{name}"]:
                raise row.error(f"{row[name]} is above max_{name}", name, "raise the cap")
    else:
        known = traces if given == ["trace_id"] else use_case_names()
        check_known(row[given[0]], known, row, given[0])
    if "trace_id" not in row and "n_bins" in row:
        raise row.error("only traces are binned", "n_bins", "leave the cell empty")
    if "prompts" in row and not Path(row["prompts"]).is_file():
        fix = "give a file of text, or leave the cell empty for random token ids"
        raise row.error(f"{row['prompts']!r} is not a file", "prompts", fix)


def _check_decision(experiment: Experiment, decision: Mapping[str, str], file: str | Path) -> None:
    without_users = {name for name, each in experiment.scenarios.items() if not each.has_users}
    measured = {
        (cell.workload_id, cell.scenario_id)
        for cell in (*experiment.cells, *experiment.adaptive)
        if cell.variant_id == DEFAULT_VARIANT and cell.scenario_id not in without_users
    }
    if (decision["workload_id"], decision["scenario_id"]) not in measured:
        pairs = "; ".join(f"{workload}, {scenario}" for workload, scenario in sorted(measured))
        problem = "no row of benchmarks.tsv measures this workload and closed-loop scenario"
        fix = (
            f"use one pair of: {pairs}" if pairs else "add a row with a closed-loop scenario there"
        )
        raise InputError(problem, file=file, field="decision", fix=fix)


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
        row = Row({}, given.line or 0, path)
        check_known(llm_id, experiment.llms, row, "llm_id")
        check_known(profile_id, experiment.profiles, row, "gpu_profile_id")
    for key in (*experiment.cells, *experiment.adaptive):
        gpu = experiment.profiles[key.gpu_profile_id].gpu
        if endpoint := experiment.endpoint(key):
            check_endpoint(endpoint, experiment.variants[key.variant_id], path)
        elif gpu.kind == "accelerator":
            problem = f"servers on {gpu.gpu_id} cannot be started: neither CUDA nor ROCm drives it"
            fix = "start them yourself and name them in endpoints.tsv, or leave the profile out"
            sheets = config["sheets"]
            raise InputError(problem, file=sheets["gpu_profiles"], field="gpu_id", fix=fix)
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


def _check_contexts(experiment: Experiment) -> None:
    cells = (*experiment.cells, *experiment.adaptive)
    for cell in cells if experiment.workloads else ():
        workload, llm = experiment.workloads[cell.workload_id], experiment.llm_facts[cell.llm_id]
        longest = workload["max_input_tokens"] + workload["max_output_tokens"]
        if longest > llm.context_tokens:
            problem = (
                f"{cell.workload_id} has requests of up to {longest} tokens, "
                f"{cell.llm_id} a context of {llm.context_tokens}"
            )
            fix = "lower its caps, or benchmark this LLM with another workload"
            raise workload.error(problem, "max_input_tokens", fix)


def _check_arrivals(experiment: Experiment) -> None:
    """Check that a scenario which asks for a workload's arrivals has a workload with some."""
    for cell in experiment.cells if experiment.workloads else ():
        scenario = experiment.scenarios[cell.scenario_id]
        row = experiment.workloads[cell.workload_id]
        if isinstance(getattr(scenario, "arrivals", None), str) and "trace_id" not in row:
            problem = f"the scenario {cell.scenario_id!r} asks for the workload's arrivals"
            fix = "fit the workload to a trace, or give the scenario a burstiness instead"
            raise row.error(problem, "trace_id", fix)


def _check_weights(row: Row) -> None:
    """Check that a folder has weights as safetensors: to unpickle others would run their code."""
    if not Path(row["model"]).is_dir():
        fix = "give the folder of the weights, or leave the cell empty for random ones"
        raise row.error(f"{row['model']!r} is not a folder", "model", fix)
    if not any(Path(row["model"]).glob("*.safetensors")):
        fix = "fetch or convert the weights as safetensors; pickled ones (.bin, .pt) are not loaded"
        raise row.error(f"{row['model']!r} has no *.safetensors", "model", fix)
