"""What engines call their Prometheus metrics: `resources/traces/metrics.yaml`, read once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

from sextant.base.resources import resource
from sextant.base.sheets import read_yaml

HISTOGRAMS = ("input_tokens", "output_tokens", "ttft_s", "itl_s", "tpot_s", "e2e_s")
GAUGES = ("running", "waiting")
PARTS = ("bucket", "sum", "count")
"""Series that a histogram consists of, by the end of their names."""
_RAY = "ray_"


@dataclass(frozen=True, kw_only=True)
class EngineNames:
    """Names of an engine's metrics by quantity, as `metrics.yaml` describes them."""

    finished: Sequence[str] = ()
    failed: Sequence[str] = ()
    input_tokens: Sequence[str] = ()
    output_tokens: Sequence[str] = ()
    input_total: Sequence[str] = ()
    output_total: Sequence[str] = ()
    cached: Sequence[str] = ()
    looked_up: Sequence[str] = ()
    missed: Sequence[str] = ()
    ttft_s: Sequence[str] = ()
    itl_s: Sequence[str] = ()
    tpot_s: Sequence[str] = ()
    e2e_s: Sequence[str] = ()
    running: Sequence[str] = ()
    waiting: Sequence[str] = ()

    def names(self) -> Iterator[tuple[str, int, str]]:
        """Yield quantity, rank among the names of this quantity, and name."""
        for quantity in fields(self):
            for rank, name in enumerate(getattr(self, quantity.name)):
                yield quantity.name, rank, name


class Meaning(NamedTuple):
    """What a series of a metric says."""

    engine: str
    quantity: str  #: A field of `EngineNames`.
    rank: int  #: Of several names of the quantity the lowest counts.
    part: str  #: Of a histogram, one of `PARTS`; else empty.


@dataclass(frozen=True, kw_only=True)
class MetricSheet:
    """`metrics.yaml`: the names, and what labels mean."""

    reasons: Mapping[str, Sequence[str]]
    model_labels: Sequence[str]
    process_labels: Sequence[str]
    engine_labels: Sequence[str]
    rank_labels: Sequence[str]
    engines: Mapping[str, EngineNames]
    telemetry: Mapping[str, Mapping[str, str]]
    """By engine, further metrics that are read while a server is measured."""

    def has_failed(self, reason: str) -> bool:
        """Return whether a request that finished for this reason failed."""
        return reason in self.reasons["failed"]

    def is_known(self, reason: str) -> bool:
        """Return whether it is known what a reason means."""
        return self.has_failed(reason) or reason in self.reasons["answered"]

    def selector(self) -> str:
        """Return a regular expression of the names of all series, for a query."""
        ends = "|".join(PARTS)
        parts = []
        for engine in self.engines.values():
            for quantity, _, name in engine.names():
                base = name.removesuffix("_total").replace(":", "[:_]")
                is_histogram = quantity in HISTOGRAMS
                parts.append(f"{base}_({ends})" if is_histogram else f"{base}(_total)?")
        return f"({_RAY})?({'|'.join(dict.fromkeys(parts))})"


@cache
def metric_sheet() -> MetricSheet:
    """Return the sheet that ships."""
    content = read_yaml(resource("traces/metrics.yaml"))
    engines = {name: EngineNames(**names) for name, names in content.pop("engines").items()}
    return MetricSheet(engines=engines, **content)


@cache
def _meanings() -> dict[str, tuple[Meaning, ...]]:
    meanings: dict[str, tuple[Meaning, ...]] = {}
    for engine, names in metric_sheet().engines.items():
        for quantity, rank, name in names.names():
            for part in PARTS if quantity in HISTOGRAMS else ("",):
                key = _plain(f"{name}_{part}" if part else name)
                meaning = Meaning(engine, quantity, rank, part)
                meanings[key] = (*meanings.get(key, ()), meaning)
    return meanings


def meanings_of(name: str) -> tuple[Meaning, ...]:
    """Return what the series of a metric say; nothing where the metric is not in the sheet."""
    return _meanings().get(_plain(name), ())


def _plain(name: str) -> str:
    return name.replace(":", "_").removeprefix(_RAY).removesuffix("_total")
