"""Draw a trace from a workload: requests from its model, arrivals from a process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet
from sextant.ingest.trace_format import TRACE_COLUMNS, require_trace
from sextant.workload.arrivals import load_arrivals
from sextant.workload.generators import arrival_times
from sextant.workload.lengths import zipf_request_model
from sextant.workload.published import load_request_model, require_lengths
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
    return require_lengths(load_request_model(name), name)


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
        **given: `rate_rps`, `alpha`, `beta_s`, `over`, `every`, `time_factor`, `llm`, `service`;
            those that a process does not know are refused, None is as good as absent.

    Raises:
        InputError: an unknown process, a parameter that it lacks or does not know, or a
            workload without arrivals.
    """
    if arrivals not in ARRIVALS:
        fix = f"use one of {', '.join(ARRIVALS)}"
        raise InputError(f"unknown arrivals {arrivals!r}", field="--arrivals", fix=fix)
    given = {name: value for name, value in given.items() if value is not None}
    _check_options(arrivals, trace, given)
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
    return {"inf": "at_once"}.get(arrivals, arrivals), given


_OPTIONS = {
    "rate_rps": "--request-rate",
    "alpha": "--burstiness",
    "beta_s": "--beta-s",
    "over": "--over",
    "every": "--every",
    "time_factor": "--time-factor",
    "llm": "--llm",
    "service": "--service",
}
_TAKES = {
    "fitted": {"rate_rps"},
    "constant": {"rate_rps"},
    "poisson": {"rate_rps"},
    "gamma": {"rate_rps", "alpha"},
    "windows": {"time_factor", "llm", "service"},
    "replay": {"time_factor", "llm", "service"},
    "varying": {"alpha", "beta_s", "over", "every"},
    "inf": set(),
}
_NEEDS = {name: {"rate_rps"} for name in ("constant", "poisson", "gamma")}
_NEEDS |= {"gamma": {"rate_rps", "alpha"}, "varying": {"alpha", "beta_s"}}


def _check_options(arrivals: str, trace: str | Path | None, given: dict[str, Any]) -> None:
    """Refuse options that a process needs and lacks, and those that it would not heed."""
    options = _OPTIONS | ({"alpha": "--alpha"} if arrivals == "varying" else {})
    for name in sorted(set(given) - _TAKES[arrivals]):
        known = ", ".join(options[known] for known in sorted(_TAKES[arrivals])) or "no option"
        problem = f"{arrivals} arrivals have no use for it"
        raise InputError(problem, field=options[name], fix=f"leave it out; they take {known}")
    for name in sorted(_NEEDS.get(arrivals, set()) - set(given)):
        fix = "give it, or choose other --arrivals"
        raise InputError(f"{arrivals} arrivals need it", field=options[name], fix=fix)
    if trace is not None and arrivals not in ("windows", "replay"):
        fix = "leave it out, or choose --arrivals windows or replay"
        problem = f"{arrivals} arrivals come from no trace"
        raise InputError(problem, field="--arrivals-from", fix=fix)


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
    table = read_parquet(trace, ["arrival_s", *group], fix=MAKE_TRACE_AGAIN)
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
    requests: Callable[..., pd.DataFrame],
    arrivals: tuple[str, dict[str, Any]],
    *,
    seed: int,
    n: int | None = None,
    duration_s: float | None = None,
) -> pd.DataFrame:
    """Draw requests and their arrivals, in the trace contract's columns.

    The two come from independent streams of `seed`; times are rounded to nanoseconds.

    Args:
        requests: draws requests when called with their number and `seed=`, as
            `RequestModel.sample` does.
        arrivals: what `process` returns.
        seed: same seed, same trace.
        n: most requests.
        duration_s: no request arrives later.

    Raises:
        InputError: neither `n` nor `duration_s` ends the process, or a parameter is wrong.
    """
    request_seed, arrival_seed = np.random.SeedSequence(seed).spawn(2)
    name, parameters = arrivals
    if n is None and duration_s is None and name not in ("piecewise", "replay"):
        raise InputError("the arrivals have no end", field="-n", fix="give -n or --duration")
    times = arrival_times(name, parameters, n=n, duration_s=duration_s, seed=arrival_seed)
    drawn = requests(len(times), seed=request_seed)
    ids = [str(number) for number in range(len(times))]
    drawn = drawn.assign(request_id=ids, arrival_s=times.round(9), status="ok")
    return drawn.reindex(columns=list(TRACE_COLUMNS))
