"""The requests of a trace: which parameters go together, how often, and the model of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet
from sextant.trace.trace_format import require_trace
from sextant.workload.generators import Seed
from sextant.workload.request_model import (
    BOOLEANS,
    INTEGERS,
    N_BINS,
    PARAMETERS,
    RequestModel,
    bin_starts,
    typed,
)


@dataclass(frozen=True)
class ServedRequests:
    """The requests of a trace that did not fail, counted."""

    frame: pd.DataFrame
    """One row per combination, in ascending order: each parameter that is ever known as float64
    (NaN: null)."""
    counts: np.ndarray
    """(rows,) requests of each."""
    n_failed: int
    n_clipped: Mapping[str, int]
    """Requests above the cap on a parameter, which were cut to it."""

    @classmethod
    def of(
        cls, trace: pd.DataFrame | str | Path, caps: Mapping[str, int | None] | None = None
    ) -> "ServedRequests":
        """Count the requests of a frame or a file; longer lengths than `caps` are cut to them.

        Raises InputError: no request that succeeded.
        """
        table, n_failed = _served_table(trace)
        grouped = table.group_by(table.column_names).aggregate([([], "count_all")])
        counts = grouped["count_all"].to_numpy()
        columns = {name: grouped[name].cast(pa.float64()) for name in table.column_names}
        frame = pd.DataFrame({name: column.to_numpy() for name, column in columns.items()})
        n_clipped = {}
        for name, cap in (caps or {}).items():
            is_over = frame[name] > (cap or np.inf)
            n_clipped[name] = int(counts[is_over].sum())
            frame.loc[is_over, name] = cap
        order = np.lexsort([frame[name] for name in reversed(frame.columns)])
        return cls(frame.iloc[order].reset_index(drop=True), counts[order], n_failed, n_clipped)

    def fit(self, n_bins: int = N_BINS) -> RequestModel:
        """Return the joint histogram.

        Each parameter is cut into at most `n_bins` intervals of about equal count, or one per value
        where it has no more values than that; truth values are never merged. A request's value
        becomes the mean of the requests in its interval, whole numbers rounded, halves up
        (docs/workloads.md says why not its centre).
        """
        if n_bins < 1:
            raise InputError(f"{n_bins} bins", field="n_bins", fix="give 1 or more, as a rule 64")
        bins, means = pd.DataFrame({"count": self.counts}), {}
        for name, column in self.frame.items():
            place, values = pd.factorize(column, sort=True)
            counts = np.bincount(place[place >= 0], self.counts[place >= 0]).astype(np.int64)
            starts = bin_starts(counts, max(n_bins, 2) if name in BOOLEANS else n_bins)
            own = np.add.reduceat(values * counts, starts) / np.add.reduceat(counts, starts)
            # Summing may move the mean of equal values by a rounding error.
            own = np.where(np.diff(starts, append=len(values)) == 1, values[starts], own)
            own = np.floor(own + 0.5) if name in INTEGERS else own
            # Null is the last bin.
            means[name] = np.append(own, np.nan)
            found = np.searchsorted(starts, place, side="right") - 1
            bins[name] = np.where(place >= 0, found, len(starts))
        joint = bins.groupby(list(means), as_index=False)["count"].sum()
        columns = {
            name: typed(pd.Series(own[joint[name]], name=name)) for name, own in means.items()
        }
        return RequestModel(pd.DataFrame(columns).assign(count=joint["count"]))


def _served_table(trace: pd.DataFrame | str | Path) -> tuple[pa.Table, int]:
    """Return the parameters that are ever known of requests that did not fail; and how many did."""
    wanted, file = (*PARAMETERS, "status"), None
    if isinstance(trace, pd.DataFrame):
        # A column without any value has no type of its own.
        own = trace[[name for name in wanted if name in trace]].dropna(axis="columns", how="all")
        table = pa.Table.from_pandas(own, preserve_index=False)
    else:
        file, stored = trace, require_trace(trace).schema_arrow.names
        table = read_parquet(trace, [n for n in wanted if n in stored], fix=MAKE_TRACE_AGAIN)
    served = table
    if "status" in table.column_names:
        served = table.filter(pc.fill_null(pc.not_equal(table["status"], "failed"), True))
    names = [name for name in PARAMETERS if name in served.column_names]
    names = [name for name in names if served[name].null_count < len(served)]
    if not names:
        fix = "give a trace with requests that succeeded"
        raise InputError("no request succeeded", file=file, fix=fix)
    return served.select(names), len(table) - len(served)


def served_requests(trace: pd.DataFrame | str | Path) -> pd.DataFrame:
    """Return the requests that did not fail: a typed column per parameter that is ever known.

    Raises InputError: no request that succeeded.
    """
    frame = _served_table(trace)[0].to_pandas()
    return pd.DataFrame({name: typed(frame[name]) for name in frame})


def resample_trace(trace: pd.DataFrame | str | Path, n: int, *, seed: Seed) -> pd.DataFrame:
    """Draw `n` served requests of a trace with replacement, whole rows (LLM-Pilot, V-A).

    The columns and the errors are those of `served_requests`.
    """
    served = served_requests(trace)
    rows = np.random.default_rng(seed).integers(len(served), size=n)
    return served.take(rows).reset_index(drop=True)


def fit_request_model(trace: pd.DataFrame | str | Path, n_bins: int = N_BINS) -> RequestModel:
    """Fit the joint histogram to the requests of a trace that did not fail.

    Raises InputError: no bins, or no request that succeeded.
    """
    return ServedRequests.of(trace).fit(n_bins)
