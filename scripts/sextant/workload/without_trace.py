"""A workload from requests without arrivals: a use case, a published histogram, a text file.

Its load is given when it is run: a rate for latency-critical inference, everything at once
for best effort (Papaioannou and Doudali).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import pandas as pd

from sextant.base.files import provenance, sha256_file, write_json
from sextant.workload.arrivals import arrivals_to_json, fit_arrivals
from sextant.workload.fitted_arrivals import write_times
from sextant.workload.request_model import WEIGHT_COLUMNS, RequestModel, check_cap
from sextant.workload.use_cases import load_use_case


class Caps(TypedDict, total=False):
    """Most tokens of a request's input and output; None or absent: no cap."""

    max_input_tokens: int | None
    max_output_tokens: int | None


def write_workload(
    model: RequestModel,
    requests_out: str | Path,
    arrivals_out: str | Path,
    validation_out: str | Path,
    *,
    origin: dict[str, Any],
    max_input_tokens: int | None = None,
    max_output_tokens: int | None = None,
) -> dict[str, Any]:
    """Write the three files of a workload for a model that comes without a trace (`origin`).

    Longer requests are cut to the caps. The files are those of `fit_workload`; `arrivals.json` has
    no parameters, `arrivals.parquet` no row. The figures of `validation.json` are returned.

    Raises:
        InputError: a cap below 1.
    """
    caps = {"input_tokens": max_input_tokens, "output_tokens": max_output_tokens}
    capped, clipped_fraction = cap_model(model, caps)
    facts = {**origin, **{f"max_{name}": cap for name, cap in caps.items()}}
    has_counts = "count" in capped.frame
    validation = {
        "n_requests": int(capped.weights.sum()) if has_counts else None,
        "clipped_fraction": clipped_fraction,
        "n_joint_bins": len(capped.frame),
        # There is no trace to differ from.
        "ks": {},
        "provenance": provenance(fit=facts),
    }
    capped.save(requests_out, facts)
    unknown = replace(fit_arrivals(np.empty(0), seed=0), reason="the requests came without times")
    sha256 = sha256_file(requests_out)
    write_times(arrivals_out, np.empty(0), facts)
    write_json(arrivals_out, arrivals_to_json(unknown, requests_sha256=sha256, **facts))
    write_json(validation_out, validation)
    return validation


def write_use_case(name: str, *files: str | Path, **caps: Unpack[Caps]) -> dict[str, Any]:
    """Write a use case that ships as a workload; `files` and `caps` as in `write_workload`.

    Raises:
        InputError: no such use case, or a cap below 1.
    """
    use_case = load_use_case(name)
    origin = {"use_case": name, "sources": list(use_case.sources)}
    return write_workload(use_case.model, *files, origin=origin, **caps)


def write_fixed_lengths(
    input_tokens: int, output_tokens: int, *files: str | Path, **caps: Unpack[Caps]
) -> dict[str, Any]:
    """Write a workload whose requests all have the same lengths; `files`, `caps` as above.

    Batch sweeps use them (Recasens et al., section 3.2: 512 in, 256 out).
    """
    lengths = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    model = RequestModel(pd.DataFrame([{**lengths, "count": 1}]))
    return write_workload(model, *files, origin=lengths, **caps)


def cap_model(
    model: RequestModel, caps: dict[str, int | None]
) -> tuple[RequestModel, dict[str, float]]:
    """Return a model with its lengths cut to caps, and the share of requests each cap shortened.

    Raises:
        InputError: a cap below 1.
    """
    frame, weights, shares = model.frame.copy(), model.weights, {}
    for name, cap in caps.items():
        check_cap(name, cap)
        over = (frame[name] > cap).to_numpy(bool) if cap else np.zeros(len(frame), bool)
        shares[name] = float(weights[over].sum() / weights.sum())
        if over.any():
            frame[name] = frame[name].clip(upper=cap)
    weight = next(name for name in WEIGHT_COLUMNS if name in frame)
    merged = frame.groupby(model.parameters, dropna=False, sort=False)[weight].sum()
    return RequestModel(merged.reset_index()), shares
