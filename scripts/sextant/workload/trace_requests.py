"""The requests of a trace, read in batches: their values, joint bins and rank correlations.

Two readings: the first counts the values of each parameter, which say where the bins lie and which
rank a value has; the second counts the joint bins and sums the products of ranks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from sextant.base.errors import InputError
from sextant.trace.trace_format import require_trace
from sextant.workload.request_model import (
    BOOLEANS,
    INTEGERS,
    N_BINS,
    PARAMETERS,
    RequestModel,
    bin_starts,
    typed,
)
from sextant.workload.windows import read_batches

_MOST_BINS, _MOST_PENDING = 2**62, 1 << 21

Counted = tuple[np.ndarray, np.ndarray]
"""Values, and how often each occurs."""
Values = dict[str, tuple[np.ndarray, np.ndarray]]
"""Of each parameter the distinct values of a batch, null (NaN) the last, and each request's place
in them."""


class TraceRequests:
    """The requests of a trace that did not fail, from a frame or a file in the trace contract."""

    def __init__(
        self, trace: pd.DataFrame | str | Path, caps: Mapping[str, int | None] | None = None
    ) -> None:
        """Count the values; longer lengths than `caps` are clipped.

        Raises InputError: no request that succeeded.
        """
        self._trace, self._caps = trace, {name: cap for name, cap in (caps or {}).items() if cap}
        self.n_served = self.n_failed = 0
        self.n_clipped = Counter[str]()
        """Requests above the cap on a parameter."""
        parts: dict[tuple[frozenset[str], str], list[Counted]] = defaultdict(list)
        for batch in self._read(is_counting=True):
            for known, rows in _by_known(batch):
                for name in known:
                    values, place = batch[name]
                    counts = np.bincount(place[rows], minlength=len(values))[:-1]
                    parts[known, name].append((self._clipped(name, values[:-1]), counts))
            for name, cap in self._caps.items():
                values, place = batch[name]
                self.n_clipped[name] += int((values > cap)[place].sum())
        names = [name for name in PARAMETERS if any(own == name for _, own in parts)]
        if not names:
            fix = "give a trace with requests that succeeded"
            file = None if isinstance(trace, pd.DataFrame) else trace
            raise InputError("no request succeeded", file=file, fix=fix)
        merged = {key: _summed(own) for key, own in parts.items()}
        self.values: dict[str, np.ndarray] = {}
        """Distinct values of each parameter that is ever known, ascending and clipped."""
        for name in names:
            of_name = [values for (_, one), (values, _) in merged.items() if one == name]
            self.values[name] = np.unique(np.concatenate(of_name))
        self._by_known: dict[tuple[frozenset[str], str], np.ndarray] = {}
        """Requests with each value, of those in which exactly these parameters are known."""
        for (known, name), (values, counts) in merged.items():
            place = np.searchsorted(self.values[name], values)
            self._by_known[known, name] = np.bincount(place, counts, len(self.values[name]))

    def counts(self, name: str, *others: str) -> np.ndarray:
        """Return the requests with each value, of those in which `others` are known too."""
        total = np.zeros(len(self.values[name]))
        for (known, own), counts in self._by_known.items():
            if own == name and known.issuperset(others):
                total += counts
        return total

    def with_null(self, name: str) -> Counted:
        """Return the values of a parameter, null (NaN) the last, and the requests with each."""
        counts = self.counts(name)
        return np.append(self.values[name], np.nan), np.append(counts, self.n_served - counts.sum())

    def fit(self, n_bins: int = N_BINS) -> tuple[RequestModel, pd.DataFrame]:
        """Return the joint histogram, and the requests' matrix of rank correlations (Spearman).

        Each parameter is cut into at most `n_bins` intervals of about equal count, or one per value
        where it has no more values than that; truth values are never merged. A request's value
        becomes the mean of the requests in its interval, whole numbers rounded, halves up
        (docs/workloads.md says why not its centre).
        """
        if n_bins < 1:
            raise InputError(f"{n_bins} bins", field="n_bins", fix="give 1 or more, as a rule 64")
        names = list(self.values)
        starts = {
            name: bin_starts(
                self.counts(name).astype(np.int64), max(n_bins, 2) if name in BOOLEANS else n_bins
            )
            for name in names
        }
        n_own = [len(starts[name]) + 1 for name in names]
        if np.prod([float(n) for n in n_own]) > _MOST_BINS:
            raise InputError("too many joint bins", field="n_bins", fix="give fewer, as a rule 64")
        ranks = {(a, b): (self._ranks(a, b), self._ranks(b, a)) for a, b in combinations(names, 2)}
        products = dict.fromkeys(ranks, 0.0)
        joint: list[Counted] = []
        for batch in self._read():
            place = {name: self._places(name, *batch[name]) for name in names}
            key = np.zeros(len(place[names[0]]), np.int64)
            for name, n in zip(names, n_own, strict=True):
                # Null has the place after the last value, and the last bin.
                bins = np.arange(len(self.values[name]) + 1)
                bins = np.searchsorted(starts[name], bins, side="right") - 1
                bins[-1] = n - 1
                key = key * n + bins[place[name]]
            joint.append(np.unique(key, return_counts=True))
            if sum(len(own) for own, _ in joint) > _MOST_PENDING:
                joint = [_summed(joint)]
            for (a, b), (of_a, of_b) in ranks.items():
                products[a, b] += float(of_a[place[a]] @ of_b[place[b]])
        matrix = pd.DataFrame(np.nan, index=names, columns=names)
        for name in names:
            matrix.loc[name, name] = 1.0 if len(self.values[name]) > 1 else np.nan
        for (a, b), (of_a, of_b) in ranks.items():
            spread_a = float(self.counts(a, b) @ of_a[:-1] ** 2)
            spread_b = float(self.counts(b, a) @ of_b[:-1] ** 2)
            correlation = rank_correlation(products[a, b], spread_a, spread_b)
            matrix.loc[a, b] = matrix.loc[b, a] = correlation
        rest, counts = _summed(joint)
        columns = {}
        for name, n in zip(reversed(names), reversed(n_own), strict=True):
            rest, bins = np.divmod(rest, n)
            means = np.append(self._means(name, starts[name]), np.nan)
            columns[name] = typed(pd.Series(means[bins], name=name))
        frame = pd.DataFrame({name: columns[name] for name in names})
        return RequestModel(frame.assign(count=counts)), matrix

    def _read(self, *, is_counting: bool = False) -> Iterator[Values]:
        """Yield the served requests of each batch; count them in the first reading."""
        for batch in self._batches():
            n_all = len(batch)
            if "status" in batch.schema.names:
                is_served = pc.fill_null(pc.not_equal(batch.column("status"), "failed"), True)
                batch = batch.filter(is_served)
            if is_counting:
                self.n_served += len(batch)
                self.n_failed += n_all - len(batch)
            if len(batch):
                known = [name for name in PARAMETERS if name in batch.schema.names]
                yield {name: _encoded(batch.column(name)) for name in known}

    def _batches(self) -> Iterator[pa.RecordBatch]:
        wanted = (*PARAMETERS, "status")
        if isinstance(self._trace, pd.DataFrame):
            # A column without any value has no type of its own.
            own = self._trace.dropna(axis="columns", how="all")
            frame = own[[name for name in wanted if name in own]]
            yield from pa.Table.from_pandas(frame, preserve_index=False).to_batches()
            return
        stored = require_trace(self._trace).schema_arrow.names
        yield from read_batches(self._trace, [name for name in wanted if name in stored])

    def _clipped(self, name: str, values: np.ndarray) -> np.ndarray:
        return np.minimum(values, self._caps[name]) if name in self._caps else values

    def _places(self, name: str, own: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return the places of requests' values in `values`; null has the place after the last."""
        places = np.searchsorted(self.values[name], self._clipped(name, own))
        places[-1] = len(self.values[name])
        return places[place]

    def _ranks(self, name: str, other: str) -> np.ndarray:
        """Return the centred mid-ranks of a parameter's values where both are known; 0 for null."""
        return np.append(centred_ranks(self.counts(name, other)), 0.0)

    def _means(self, name: str, starts: np.ndarray) -> np.ndarray:
        values, counts = self.values[name], self.counts(name)
        means = np.add.reduceat(values * counts, starts) / np.add.reduceat(counts, starts)
        # Summing may move the mean of equal values by a rounding error.
        means = np.where(np.diff(starts, append=len(values)) == 1, values[starts], means)
        return np.floor(means + 0.5) if name in INTEGERS else means


def fit_request_model(trace: pd.DataFrame | str | Path, n_bins: int = N_BINS) -> RequestModel:
    """Fit the joint histogram to the requests of a trace that did not fail (`TraceRequests.fit`).

    A parameter that is null in all of the trace is left out.

    Args:
        trace: a frame in the trace contract, or the path of its Parquet file.
        n_bins: most intervals per parameter.

    Raises:
        InputError: no bins, or no request that succeeded.
    """
    return TraceRequests(trace).fit(n_bins)[0]


def _encoded(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    encoded = column.dictionary_encode()
    values = np.append(encoded.dictionary.cast(pa.float64()).to_numpy(), np.nan)
    return values, encoded.indices.fill_null(len(values) - 1).to_numpy(zero_copy_only=False)


def _by_known(batch: Values) -> Iterator[tuple[frozenset[str], np.ndarray | slice]]:
    """Yield the requests of a batch by the parameters that are known of them."""
    code = np.zeros(len(next(iter(batch.values()))[1]), np.int64)
    for number, (values, place) in enumerate(batch.values()):
        code |= (place < len(values) - 1).astype(np.int64) << number
    codes = np.unique(code)
    for one in codes:
        known = frozenset(name for number, name in enumerate(batch) if one >> number & 1)
        yield known, slice(None) if len(codes) == 1 else code == one


def _summed(parts: Sequence[Counted]) -> Counted:
    """Return the distinct values of all parts, ascending, and how often each occurs."""
    values, counts = (np.concatenate(own) for own in zip(*parts, strict=True))
    distinct, place = np.unique(values, return_inverse=True)
    total = np.bincount(place, counts).astype(np.int64)
    return distinct[total > 0], total[total > 0]


def rank_correlation(together: float, spread_a: float, spread_b: float) -> float:
    """Return the correlation of centred ranks by the sum of their products and of their squares."""
    # A constant has all its ranks at their mean, 0, exactly.
    if not spread_a or not spread_b:
        return float("nan")
    return float(np.clip(together / np.sqrt(spread_a * spread_b), -1, 1))


def centred_ranks(mass: np.ndarray) -> np.ndarray:
    """Return the mid-rank of each value less the mean rank, by the weight of each, ascending."""
    middle = np.cumsum(mass) - mass / 2
    return middle - mass.sum() / 2
