"""What a cell's measurement depends on: only a change of this makes the measurement stale."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from sextant.base.files import sha256_file
from sextant.base.sheets import Row
from sextant.experiment.cells import CellKey
from sextant.experiment.experiment import Experiment
from sextant.experiment.scenarios import WINDOWS_FILE, Burst, plain
from sextant.experiment.servers import engine_facts, engine_settings, without_defaults
from sextant.workload.request_model import N_BINS


def cell_definition(
    experiment: Experiment, key: CellKey, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that a cell's measurement depends on, as plain data.

    Prices, SLOs, limits of time and the path of the interpreter are not in it.
    """
    llm, workload = experiment.llms[key.llm_id], experiment.workloads[key.workload_id]
    scenario = experiment.scenario(key)
    is_burst = isinstance(scenario, Burst)
    mirrored = {"windows_sha256": _sha256_once(WINDOWS_FILE)} if is_burst else {}
    return {
        "source": config["source"],
        **asdict(key),
        "config_path": llm["config"],
        "model": llm.get("model"),
        "devices": asdict(experiment.profiles[key.gpu_profile_id].devices),
        "max_input_tokens": workload["max_input_tokens"],
        "max_output_tokens": workload["max_output_tokens"],
        "scenario": plain(scenario),
        "variant": without_defaults(experiment.variants[key.variant_id]),
        "seed": config["seed"],
        "sampler": workload.get("sampler", "joint"),
        "prompts": workload.get("prompts"),
        "workload": _workload_facts(experiment, workload),
        "engine": engine_facts(engine_settings(config, experiment.endpoint(key))),
        **mirrored,
    }


def _workload_facts(experiment: Experiment, workload: Row) -> dict[str, Any]:
    """Return what a workload is made from."""
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
        # Left out where they are not given: cells from before these columns stay valid.
        **{name: trace[name] for name in ("columns", "time_unit") if name in trace},
        "sha256": trace_sha256(experiment, workload["trace_id"]),
    }


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
