"""Draw a trace from a workload: requests from its model, arrivals from a process."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.trace.trace_format import TRACE_COLUMNS
from sextant.workload.fitted_arrivals import arrivals_at_rate, fitted_arrivals
from sextant.workload.generators import Arrivals, AtOnce, Constant, Gamma, Varying, poisson
from sextant.workload.lengths import zipf_request_model
from sextant.workload.published import load_request_model, require_lengths
from sextant.workload.request_model import RequestModel
from sextant.workload.servegen import read_clients
from sextant.workload.trace_arrivals import FITTED, Replay, Windows
from sextant.workload.use_cases import load_use_case, use_case_names

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


def _fitted(workload: str | Path, rate_rps: float | None = None) -> Arrivals:
    """Return a workload's own arrivals; with a rate, these in more or less time."""
    try:
        if not Path(workload).is_dir():
            reason = "only the folder of a fitted workload has them"
            raise InputError(f"the workload has no arrivals ({reason})")
        if rate_rps is None:
            return fitted_arrivals(workload)
        return arrivals_at_rate(workload, FITTED, rate_rps)
    except InputError as error:
        if error.field not in (None, "arrivals"):
            raise
        fix = "give --request-rate, or another --arrivals"
        raise InputError(error.problem, file=error.file, field="--arrivals", fix=fix) from None


def _clients(trace: str | Path, rate_rps: float | None = None) -> Arrivals:
    """Return the clients of one of ServeGen's services, of which `trace` is the folder."""
    clients = read_clients(trace)
    return clients if rate_rps is None else clients.scaled(rate_rps / clients.mean_rate_rps)


ARRIVALS: dict[str, Callable[..., Arrivals]] = {
    "fitted": _fitted,
    "constant": Constant,
    "poisson": poisson,
    "gamma": Gamma,
    "windows": Windows,
    "varying": Varying,
    "replay": Replay,
    "clients": _clients,
    "inf": AtOnce,
}
"""Where arrival times come from, as the command line names it; the parameters are its options."""


def chosen_arrivals(name: str, workload: str | Path | None, **given: Any) -> Arrivals:
    """Return the arrival process that the options of a command describe.

    `name` is one of `ARRIVALS`, `workload` a folder for `fitted`. Of the parameters `given`, None
    is as good as absent.

    Raises:
        InputError: an unknown process, a parameter that it lacks, does not know or refuses, or a
            workload without arrivals.
    """
    if name not in ARRIVALS:
        fix = f"use one of {', '.join(ARRIVALS)}"
        raise InputError(f"unknown arrivals {name!r}", field="--arrivals", fix=fix)
    chosen = {key: value for key, value in given.items() if value is not None}
    known = dict(inspect.signature(ARRIVALS[name]).parameters)
    options = {key: _option(key, name) for key in (*given, *known)}
    if name == "fitted":
        if workload is None:
            fix = "give --workload, or other --arrivals"
            raise InputError("fitted arrivals are a workload's", field="--arrivals", fix=fix)
        chosen["workload"] = workload
    for key in sorted(set(chosen) - set(known)):
        taken = ", ".join(options[each] for each in sorted(set(known) - {"workload"}))
        fix = f"leave it out; they take {taken or 'no option'}"
        raise InputError(f"{name} arrivals do not use it", field=options[key], fix=fix)
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in chosen:
            fix = "give it, or choose other --arrivals"
            raise InputError(f"{name} arrivals need it", field=options[key], fix=fix)
    try:
        return ARRIVALS[name](**chosen)
    except InputError as error:
        raise error.at(field=options.get(str(error.field))) from None


def _option(parameter: str, arrivals: str) -> str:
    if parameter == "alpha" and arrivals != "varying":
        return "--burstiness"
    names = {"rate_rps": "--request-rate", "trace": "--arrivals-from"}
    return names.get(parameter, "--" + parameter.replace("_", "-"))


def draw_trace(
    requests: Callable[..., pd.DataFrame],
    arrivals: Arrivals,
    *,
    seed: int,
    n: int | None = None,
    duration_s: float | None = None,
) -> pd.DataFrame:
    """Draw requests and their arrivals, in the trace contract's columns.

    The two come from independent streams of `seed`; times are rounded to nanoseconds. `requests`
    draws when called with a number and `seed=`, as `RequestModel.sample` does. There are at most
    `n`, and none after `duration_s`.

    Raises:
        InputError: neither `n` nor `duration_s` ends the process, or a parameter is wrong.
    """
    request_seed, arrival_seed = np.random.SeedSequence(seed).spawn(2)
    if n is None and duration_s is None and not arrivals.ends_itself:
        raise InputError("the arrivals have no end", field="-n", fix="give -n or --duration")
    times = arrivals.times(n=n, duration_s=duration_s, seed=arrival_seed)
    drawn = requests(len(times), seed=request_seed)
    ids = [str(number) for number in range(len(times))]
    drawn = drawn.assign(request_id=ids, arrival_s=times.round(9), status="ok")
    return drawn.reindex(columns=list(TRACE_COLUMNS))
