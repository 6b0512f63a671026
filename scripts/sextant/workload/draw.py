"""Draw a trace from a workload: requests from its model, arrivals from a process."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.errors import InputError
from sextant.trace_format import TRACE_COLUMNS, require_trace
from sextant.workload.arrivals import load_arrivals
from sextant.workload.generators import arrival_times
from sextant.workload.lengths import zipf_request_model
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel
from sextant.workload.use_cases import load_use_case, use_case_names
from sextant.workload.windows import fit_windows

ARRIVALS = ("fitted", "constant", "poisson", "gamma", "windows", "varying", "replay", "inf")
"""Where arrival times come from; see `process`."""
_ZIPF_OUTPUTS = 100_000
"""Outputs that stand for a model's distribution beside Zipf inputs."""


def open_workload(name: str | Path) -> RequestModel:
    """Return the requests of a use case that ships, or of a folder or file by its path."""
    if str(name) in use_case_names() and not Path(name).exists():
        return load_use_case(str(name)).model
    if not Path(name).exists():
        fix = f"give a workload's folder, a histogram, or one of {', '.join(use_case_names())}"
        raise InputError("there is no such workload", file=name, fix=fix)
    return load_request_model(name)


def with_zipf_inputs(model: RequestModel, theta: float) -> RequestModel:
    """Return a model whose inputs follow Zipf's law instead (BurstGPT, IV-B).

    The law's bounds are the model's shortest and longest input; outputs keep their
    distribution, independently of the inputs.
    """
    inputs = model.frame["input_tokens"]
    outputs = model.sample(_ZIPF_OUTPUTS, seed=0)["output_tokens"].to_numpy()
    return zipf_request_model(theta, int(inputs.min()), int(inputs.max()), outputs)


def process(
    arrivals: str, workload: str | Path, trace: str | Path | None, **given: Any
) -> tuple[str, dict[str, Any]]:
    """Return a generator's name and its parameters (see `generators`).

    Args:
        arrivals: one of `ARRIVALS`. `fitted` is the workload's own Gamma process, `windows`
            mirrors a trace window by window, `replay` repeats its arrivals, `inf` is all at once.
        workload: folder of the workload, for `fitted`.
        trace: normalised trace, for `windows` and `replay`.
        **given: `rate_rps`, `alpha`, `beta_s`, `every`, `time_factor`, `llm`, `service`; those
            that a process does not know are refused, those that are None are as good as absent.

    Raises:
        InputError: an unknown process, a parameter that it lacks or does not know, or a
            workload without arrivals.
    """
    if arrivals not in ARRIVALS:
        fix = f"use one of {', '.join(ARRIVALS)}"
        raise InputError(f"unknown arrivals {arrivals!r}", field="--arrivals", fix=fix)
    given = {name: value for name, value in given.items() if value is not None}
    if arrivals in ("windows", "replay"):
        if trace is None:
            fix = "name a normalised trace with --arrivals-from"
            raise InputError(f"{arrivals} needs a trace", field="--arrivals-from", fix=fix)
        require_trace(trace)
        group = {name: given.pop(name) for name in ("llm", "service") if name in given}
        factor = given.pop("time_factor", 1.0)
        if arrivals == "windows":
            return "piecewise", given | {"windows": _windows(trace, group), "beta_factor": factor}
        return "replay", given | {"arrival_s": _arrival_s(trace, group), "time_factor": factor}
    if arrivals == "fitted":
        # A rate that is given puts the same burstiness at another scale.
        return "gamma", _fitted(workload) | given
    if arrivals == "varying":
        given["over"] = "steps"
    return {"inf": "at_once"}.get(arrivals, arrivals), given


def _fitted(workload: str | Path) -> dict[str, float]:
    reason = "only the folder of a fitted workload has them"
    if Path(workload).is_dir():
        model = load_arrivals(workload)
        if model.alpha is not None and model.beta_s is not None:
            return {"alpha": model.alpha, "rate_rps": 1 / (model.alpha * model.beta_s)}
        reason = str(model.reason)
    fix = "give --request-rate, or another --arrivals"
    raise InputError(f"the workload has no arrivals ({reason})", field="--arrivals", fix=fix)


def _arrival_s(trace: str | Path, group: dict[str, str]) -> np.ndarray:
    """Return the arrival times of a trace, or of one LLM's or service's requests."""
    table = pq.read_table(trace, columns=["arrival_s", *group])
    for name, value in group.items():
        table = table.filter(pc.equal(table[name], value))
    if not len(table):
        problem = "no request of " + ", ".join(f"{n} {v!r}" for n, v in group.items())
        raise InputError(problem, file=trace, fix="leave --llm and --service out, or correct them")
    return table["arrival_s"].to_numpy()


def _windows(trace: str | Path, group: dict[str, str]) -> pd.DataFrame:
    """Return the windows of one LLM and service of a trace."""
    windows = fit_windows(trace)
    for name, value in group.items():
        windows = windows[windows[name] == value]
    found = windows[["llm", "service"]].drop_duplicates()
    if len(found) != 1:
        listed = "; ".join(f"{row.llm}, {row.service}" for row in found.itertuples())
        problem = f"{len(found)} pairs of LLM and service"
        fix = f"choose one with --llm and --service: {listed or 'none matches'}"
        raise InputError(problem, file=trace, field="--llm", fix=fix)
    return windows


def draw_trace(
    model: RequestModel,
    arrivals: tuple[str, dict[str, Any]],
    *,
    seed: int,
    n: int | None = None,
    duration_s: float | None = None,
    sampler: str = "joint",
) -> pd.DataFrame:
    """Draw requests and their arrivals, in the trace contract's columns.

    The two come from independent streams of `seed`; times are rounded to microseconds.

    Args:
        model: the requests.
        arrivals: what `process` returns.
        seed: same seed, same trace.
        n: most requests.
        duration_s: no request arrives later.
        sampler: see `RequestModel.sample`.

    Raises:
        InputError: neither `n` nor `duration_s` ends the process, or a parameter is wrong.
    """
    request_seed, arrival_seed = np.random.SeedSequence(seed).spawn(2)
    name, parameters = arrivals
    times = arrival_times(name, parameters, n=n, duration_s=duration_s, seed=arrival_seed)
    drawn = model.sample(len(times), seed=request_seed, sampler=sampler)
    ids = [str(number) for number in range(len(times))]
    drawn = drawn.assign(request_id=ids, arrival_s=times.round(6), status="ok")
    return drawn.reindex(columns=list(TRACE_COLUMNS))
