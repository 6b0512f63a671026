"""Fit a workload to a trace, and judge the fit."""

from pathlib import Path
from typing import Any

from sextant.base.files import provenance, read_provenance, sha256_file, write_json
from sextant.workload.arrival_choice import ArrivalChoice, fit_trace_arrivals
from sextant.workload.arrivals import arrivals_to_json
from sextant.workload.fidelity import exact_fidelity
from sextant.workload.fitted_arrivals import choice_to_json, write_times
from sextant.workload.request_model import N_BINS, check_cap
from sextant.workload.trace_requests import TraceRequests
from sextant.workload.trace_stream import TraceTimes


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

    The trace is read in batches, several times, so that memory does not grow with it. Beside
    `arrivals_out`, `arrivals.parquet` keeps the trace's own times, for a replay.

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
    for name, cap in caps.items():
        check_cap(name, cap)
    served = TraceRequests(trace, caps)
    requests, of_trace = served.fit(n_bins)
    arrivals, choice = fit_trace_arrivals(trace, seed)
    facts = {
        "inputs_sha256": read_provenance(trace).get("inputs_sha256", {}),
        "max_input_tokens": max_input_tokens,
        "max_output_tokens": max_output_tokens,
        "n_bins": n_bins,
        "seed": seed,
    }
    validation = {
        "n_requests": served.counts.n_served,
        "n_failed": served.counts.n_failed,
        "n_clipped_input": served.counts.n_clipped.get("input_tokens", 0),
        "n_clipped_output": served.counts.n_clipped.get("output_tokens", 0),
        "n_joint_bins": len(requests.frame),
        "n_bins": {name: requests.frame[name].nunique(False) for name in requests.parameters},
        **exact_fidelity(
            {name: served.counts.with_null(name) for name in requests.parameters},
            of_trace,
            requests,
        ),
        "ks_gaps": arrivals.ks,
        "arrivals": _arrival_fidelity(choice),
        "seed": seed,
        "provenance": provenance({"trace": trace}, fit=facts, **provenance_facts),
    }
    requests.save(requests_out, facts)
    times_out = write_times(arrivals_out, TraceTimes(trace), facts)
    contents = {"requests_sha256": requests_out, "times_sha256": times_out}
    hashes = {name: sha256_file(path) for name, path in contents.items()}
    write_json(arrivals_out, arrivals_to_json(arrivals, choice_to_json(choice), **facts, **hashes))
    write_json(validation_out, validation)
    return validation


def _arrival_fidelity(choice: ArrivalChoice) -> dict[str, Any]:
    """Return how bursty the trace and the samples of each model are."""
    models = {
        name: {"reason": fit.reason, "measures": fit.measures, "errors": fit.errors}
        for name, fit in choice.fits.items()
    }
    found = {"model": choice.model, "why": choice.why, "not_judged": list(choice.left_out)}
    return found | {"trace": choice.trace, "models": models}
