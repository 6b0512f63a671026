"""The arrivals of a fitted workload: the model that was chosen, or another that was fitted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sextant.base.errors import InputError
from sextant.base.files import MAKE_WORKLOAD_AGAIN, PROVENANCE_KEY, atomic_path
from sextant.workload.arrival_measures import Times, batches_of
from sextant.workload.arrivals import load_arrivals, read_stored
from sextant.workload.generators import Arrivals
from sextant.workload.trace_arrivals import (
    FITTED,
    NAMES,
    REPLAY,
    Recorded,
    arrivals_from_plain,
    arrivals_to_plain,
)

if TYPE_CHECKING:
    from sextant.workload.arrival_choice import ArrivalChoice

TIMES_FILE = "arrivals.parquet"
"""The trace's own times, in a workload's folder."""


def write_times(arrivals_out: str | Path, times: Times, origin: Mapping[str, Any]) -> Path:
    """Write a trace's times beside `arrivals.json`, and return where."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(arrivals_out).with_name(TIMES_FILE)
    metadata = {PROVENANCE_KEY: json.dumps(origin).encode()}
    schema = pa.schema([("arrival_s", pa.float64())], metadata)
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False}
    options["column_encoding"] = {"arrival_s": "BYTE_STREAM_SPLIT"}
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        for batch in batches_of(times):
            writer.write_table(pa.table([batch], schema=schema))
    return path


def choice_to_json(choice: "ArrivalChoice") -> dict[str, Any]:
    """Return what `arrivals.json` says of the models of a trace's arrivals."""
    models = {
        name: {
            "process": arrivals_to_plain(fit.process) if fit.process else None,
            "reason": fit.reason,
        }
        for name, fit in choice.fits.items()
    }
    return {"model": choice.model, "why": choice.why, "models": models}


def fitted_arrivals(folder: str | Path, name: str = FITTED) -> Arrivals:
    """Return the arrivals of a workload, which `times` draws.

    Args:
        folder: a workload's folder.
        name: one of `NAMES`; `fitted` is the model that the fit has chosen, the others are used
            whether they passed or not.

    Raises:
        InputError: the workload has no such arrivals (it says why), or its files are malformed.
    """
    folder = Path(folder)
    if name not in NAMES:
        fix = f"use one of {', '.join(NAMES)}"
        raise InputError(f"unknown arrivals {name!r}", field="arrivals", fix=fix)
    stored = read_stored(folder)
    model = stored["model"] if name == FITTED else name
    if stored["model"] is None:
        raise _without(folder, name, stored["why"])
    if model == REPLAY and not (folder / TIMES_FILE).is_file():
        raise _without(folder, name, "its trace's times are not in its folder")
    if model == REPLAY:
        return Recorded(folder / TIMES_FILE)
    try:
        found = stored["models"].get(model, {})
        if found.get("process"):
            return arrivals_from_plain(found["process"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"{model} is not an arrival process ({error!r})"
        raise InputError(problem, file=folder / "arrivals.json", fix=MAKE_WORKLOAD_AGAIN) from None
    raise _without(folder, name, _reason(found, model))


def _reason(found: Mapping[str, Any], model: str) -> str:
    if model == "clients" and not found:
        return "its trace names one LLM and service, or none"
    return found.get("reason") or "its trace has no such model"


def _without(folder: Path, name: str, why: str) -> InputError:
    fix = "use other arrivals, or a rate with a burstiness; or fit the workload to a trace"
    return InputError(f"it has no {name} arrivals ({why})", file=folder, field="arrivals", fix=fix)


def arrivals_at_rate(
    folder: str | Path, name: str, rate_rps: float, scale_by: str = "time"
) -> Arrivals:
    """Return the arrivals of a workload at another mean rate (see `fitted_arrivals`, `Scaled`).

    Raises:
        InputError: as `fitted_arrivals`; the workload's own rate is not known (all requests arrive
            at once), or a thinning would have to add requests.
    """
    own_rps = load_arrivals(folder).rate_rps
    if not own_rps:
        raise _without(Path(folder), name, "all at once has no rate to scale")
    return fitted_arrivals(folder, name).scaled(rate_rps / own_rps, scale_by)
