"""Fit a workload to a trace, and judge the fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import (
    provenance,
    read_provenance,
    sha256_file,
    write_json,
)
from sextant.ingest.trace_format import require_trace
from sextant.workload.arrival_choice import ArrivalChoice, choose_arrivals
from sextant.workload.arrivals import arrivals_to_json, fit_arrivals
from sextant.workload.fidelity import exact_fidelity
from sextant.workload.fitted_arrivals import choice_to_json, write_times
from sextant.workload.request_model import N_BINS, check_cap, fit_request_model, read_requests
from sextant.workload.trace_stream import Group, read_arrivals


def fit_workload(
    trace: str | Path,
    requests_out: str | Path,
    arrivals_out: str | Path,
    validation_out: str | Path,
    *,
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
    n_bins: int = N_BINS,
    seed: int = 0,
    **provenance_facts: Any,
) -> dict[str, Any]:
    """Fit the request model and the arrival models of a trace; write them and their fidelity.

    Beside `arrivals_out`, `arrivals.parquet` keeps the trace's own times, for a replay.

    Requests above a cap are clipped to it before the fit, and counted. Failed requests take
    part in the arrivals only: they arrived, but say nothing of what a served request is like.

    `requests_out` and `arrivals_out` are a pure function of the trace's source and the
    parameters: no version and no commit is in them, so that code edits leave the benchmarks
    which depend on them alone. `validation_out` has the full provenance.

    Args:
        trace: Parquet in the trace contract.
        requests_out: `requests.parquet`, one row a joint bin.
        arrivals_out: `arrivals.json`.
        validation_out: `validation.json`, the returned figures.
        max_input_tokens: cap on the input of a request.
        max_output_tokens: cap on its output.
        n_bins: most bins per parameter.
        seed: see `fit_arrivals`.
        **provenance_facts: more facts for the provenance in `validation_out`.

    Raises:
        InputError: a cap below 1, or no request to fit.
    """
    caps = {"input_tokens": max_input_tokens, "output_tokens": max_output_tokens}
    require_trace(trace)
    every = read_requests(trace)
    served = every[every["status"] != "failed"]
    if served.empty:
        raise InputError(
            "no request succeeded", file=trace, fix="give a trace with served requests"
        )
    clipped, n_clipped = _clip(served, caps)
    requests = fit_request_model(clipped, n_bins)
    arrival_s = every["arrival_s"].to_numpy()
    arrivals = fit_arrivals(arrival_s, seed=seed)
    try:
        choice = choose_arrivals(arrival_s, arrivals, client=_clients(trace), seed=seed)
    except InputError as error:
        raise error.at(file=trace) from None
    facts = {
        "inputs_sha256": read_provenance(trace).get("inputs_sha256", {}),
        "max_input_tokens": max_input_tokens,
        "max_output_tokens": max_output_tokens,
        "n_bins": n_bins,
        "seed": seed,
    }
    validation = {
        "n_requests": len(served),
        "n_failed": len(every) - len(served),
        **n_clipped,
        "n_joint_bins": len(requests.frame),
        "n_bins": {name: requests.frame[name].nunique(False) for name in requests.parameters},
        **exact_fidelity(clipped, requests),
        "ks_gaps": arrivals.ks,
        "arrivals": _arrival_fidelity(choice),
        "seed": seed,
        "provenance": provenance({"trace": trace}, fit=facts, **provenance_facts),
    }
    requests.save(requests_out, facts)
    times_out = write_times(arrivals_out, arrival_s, facts)
    contents = {"requests_sha256": requests_out, "times_sha256": times_out}
    hashes = {name: sha256_file(path) for name, path in contents.items()}
    write_json(arrivals_out, arrivals_to_json(arrivals, choice_to_json(choice), **facts, **hashes))
    write_json(validation_out, validation)
    return validation


def _clients(trace: str | Path) -> np.ndarray:
    """Return whose each request is: a number for each pair of LLM and service."""
    groups: dict[Group, int] = {}
    return np.concatenate([rows.group for rows in read_arrivals(trace, groups, None)])


def _arrival_fidelity(choice: ArrivalChoice) -> dict[str, Any]:
    """Return how bursty the trace and the samples of each model are."""
    models = {
        name: {"reason": fit.reason, "measures": fit.measures, "errors": fit.errors}
        for name, fit in choice.fits.items()
    }
    return {"model": choice.model, "why": choice.why, "trace": choice.trace, "models": models}


def _clip(
    served: pd.DataFrame, caps: Mapping[str, int | None]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the requests with no value above its cap, and how many were changed by which."""
    clipped, n_clipped = served.copy(), {}
    for name, cap in caps.items():
        check_cap(name, cap)
        short = name.removesuffix("_tokens")
        n_clipped[f"n_clipped_{short}"] = 0 if cap is None else int((served[name] > cap).sum())
        if cap is not None:
            clipped[name] = served[name].clip(upper=cap)
    return clipped, n_clipped
