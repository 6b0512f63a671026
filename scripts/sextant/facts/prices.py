"""Prices: tables of providers that ship, and where the prices of GPU profiles come from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from sextant import PROJECT
from sextant.base.sheets import Row, load_sheet
from sextant.facts.gpu import (
    GPUS,
    GpuId,
    GPUProfile,
    NGpus,
    Price,
    PriceDate,
    gpu_path,
    profile_of_id,
)

PRICES = PROJECT / "resources" / "prices"
"""One file per provider, `<provider>.csv`; its README says where the prices were read."""
_OLD_MONTHS = 12
_ON_DEMAND = " on demand, "
"""Between provider and region where a price is said to be of a table."""


@dataclass(frozen=True, kw_only=True)
class PriceRow:
    """`sextant recommend --prices`: each row is the price of one GPU profile."""

    gpu_profile_id: str
    """a GPU profile, e.g. 2xA100-40GB"""
    usd_per_hour: Price
    """give the price of the whole profile in USD per hour, above 0: 0.0001 to 1,000,000"""
    as_of: PriceDate | None = None
    """date of the price, which answers say: YYYY, YYYY-MM or YYYY-MM-DD"""


@dataclass(frozen=True, kw_only=True)
class ProviderPriceRow:
    """resources/prices/<provider>.csv: each row is a machine to rent, at its price on demand."""

    instance: str
    """what the provider calls the machine, e.g. p5.48xlarge"""
    gpu_id: GpuId
    """a device type with a facts file resources/gpus/<gpu_id>.yaml"""
    n_gpus: NGpus
    """devices of the machine, 1 to 9,999"""
    region: str
    """where the price holds, as the provider calls it, or: all regions"""
    usd_per_hour: Price
    """price of the whole machine in USD per hour, above 0: 0.0001 to 1,000,000"""
    as_of: Annotated[PriceDate, Field(min_length=10)]
    """the day on which the source had this price: YYYY-MM-DD"""
    source: Annotated[str, Field(pattern="^https?://[^/]")]
    """the page that has the price, https://…"""


class PriceOrigin(NamedTuple):
    """Where prices come from, and from when they are."""

    source: str | None
    """Provider and region, or the user's file; None: not said."""
    first: str | None
    """Oldest date, `YYYY`, `YYYY-MM` or `YYYY-MM-DD`; None: not said."""
    last: str | None
    is_old: bool
    """Whether the oldest is more than a year before the newest price of the tables that ship: no
    clock is read, so that an answer stays the same."""


def providers() -> list[str]:
    """Return the names of the tables that ship."""
    return sorted(path.stem for path in PRICES.glob("*.csv"))


def load_prices(path: Path) -> list[Row]:
    """Read a provider's table.

    Raises InputError: a row is wrong, names a device without facts, or is of a machine that is
    already there.
    """
    rows = load_sheet(path, ProviderPriceRow, delimiter=",")
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        line = seen.setdefault((row["instance"], row["region"]), row.line)
        if line != row.line:
            problem = f"{row['instance']} in {row['region']} is already in line {line}"
            raise row.error(problem, "instance", "keep one of them")
        if not gpu_path(GPUS, row["gpu_id"]).is_file():
            fix = f"write its facts, {gpu_path(GPUS, row['gpu_id'])}, or correct the name"
            raise row.error(f"no facts of GPU {row['gpu_id']!r}", "gpu_id", fix)
    return rows


def priced(profile: GPUProfile, provider: str) -> GPUProfile | None:
    """Return a GPU profile at a provider's price; None if no machine there has its devices.

    The smallest machine with enough devices counts, the cheapest of these; of a larger one the
    profile pays the share of its devices.
    """
    row = _machine(profile, provider)
    if row is None:
        return None
    return replace(
        profile,
        usd_per_hour=round(row["usd_per_hour"] * profile.n_gpus / row["n_gpus"], 6),
        price_source=f"{provider}{_ON_DEMAND}{row['region']}",
        price_as_of=row["as_of"],
    )


def cheapest(profile: GPUProfile, among: Iterable[str] = ()) -> GPUProfile | None:
    """Return a GPU profile at its lowest price among providers, by default all whose tables ship.

    None if none of them has a machine with its devices; of equal prices the first by name counts.
    """
    found = [priced(profile, name) for name in among or providers()]
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.usd_per_hour, default=None)


def has_own_price(profile: GPUProfile) -> bool:
    """Return whether a profile's price is its source's own: not of a table that ships."""
    provider, _, region = (profile.price_source or "").partition(_ON_DEMAND)
    regions = {row["region"] for row in _rows(provider)} if region else set()
    return not math.isnan(profile.usd_per_hour) and region not in regions


def offered_profiles(among: Iterable[str] = ()) -> dict[str, GPUProfile]:
    """Return what providers sell, by default all whose tables ship, each at its lowest price.

    A machine is offered whole, and in halves down to one of its devices.
    """
    among, names = [*among] or providers(), set()
    for row in (row for name in among for row in _rows(name)):
        n_gpus = row["n_gpus"]
        while n_gpus >= 1:
            names.add(f"{n_gpus}x{row['gpu_id']}")
            n_gpus //= 2
    found = {name: cheapest(profile_of_id(name), among) for name in sorted(names)}
    return {name: each for name, each in found.items() if each is not None}


def share_lines(profile: GPUProfile, replicas: int) -> list[str]:
    """Return a warning if replicas leave devices of the machines unused that a provider rents."""
    provider, _, region = (profile.price_source or "").partition(_ON_DEMAND)
    row = _machine(profile, provider) if provider in providers() else None
    if row is None or row["region"] != region:
        return []
    machines = -(-replicas // (row["n_gpus"] // profile.n_gpus))
    if replicas * profile.n_gpus == machines * row["n_gpus"]:
        return []
    return [
        f"The price is that of the GPUs in use: {provider} rents them {row['n_gpus']} at a time as "
        f"{row['instance']}, {machines} of which cost {machines * row['usd_per_hour']:,.2f} USD/h. "
        "Others have to use the rest."
    ]


def _machine(profile: GPUProfile, provider: str) -> Row | None:
    """Return the smallest machine with enough devices, the cheapest of these."""
    rows = [
        row
        for row in _rows(provider)
        if row["gpu_id"] == profile.gpu.gpu_id and row["n_gpus"] >= profile.n_gpus
    ]
    return min(rows, key=lambda row: (row["n_gpus"], row["usd_per_hour"]), default=None)


def _rows(provider: str) -> list[Row]:
    return _table(PRICES / f"{provider}.csv") if provider in providers() else []


def price_origins(prices: Iterable[tuple[str | None, str | None]]) -> list[PriceOrigin]:
    """Return where prices come from, `price_source, price_as_of`, one entry per source."""
    ordered = sorted({(source or "", as_of or "") for source, as_of in prices})
    origins = []
    for source, group in groupby(ordered, key=lambda price: price[0]):
        dates = [as_of for _, as_of in group if as_of]
        first, last = (dates[0], dates[-1]) if dates else (None, None)
        is_old = first is not None and _month(first) < _month(_newest()) - _OLD_MONTHS
        origins.append(PriceOrigin(source or None, first, last, is_old))
    return origins


def origin_line(origins: Iterable[PriceOrigin]) -> str:
    """Return in one line where prices come from, and which are old."""
    parts = []
    for each in origins:
        # A day is more than a reader has to know.
        months = dict.fromkeys(date[:7] for date in (each.first, each.last) if date)
        span = " to ".join(months) + (", old" if each.is_old else "")
        parts.append(f"{each.source or 'as given'} ({span or 'no date'})")
    return f"Prices: {'; '.join(parts)}."


def old_price_lines(origins: Iterable[PriceOrigin]) -> list[str]:
    """Return a warning for each source with old prices."""
    newer = f"--prices {' or '.join(providers())} has prices of {_newest()[:4]}"
    return [
        f"The prices are old: {each.source or 'as given'}, {each.first}. {newer}."
        for each in origins
        if each.is_old
    ]


_table = cache(load_prices)


@cache
def _newest() -> str:
    return max(str(row["as_of"]) for name in providers() for row in _table(PRICES / f"{name}.csv"))


def _month(date: str) -> int:
    """Return the month of a date as a number; a year alone counts as its last month."""
    year, month = (*map(int, date.split("-")[:2]), 12)[:2]
    return 12 * year + month


HOURS_PER_MONTH = 730
_HOUR_S = 3600


def token_prices(
    usd_per_hour: float, rate_rps: float, lengths: Sequence[float], input_share: float | None = None
) -> tuple[float, float]:
    """Return USD per million input and per million output tokens.

    Args:
        usd_per_hour: of all replicas.
        rate_rps: requests a second that they serve.
        lengths: mean input and output tokens of a request.
        input_share: part of the price that the input bears; that of its tokens by default.
    """
    inputs, outputs = lengths
    share = inputs / (inputs + outputs) if input_share is None else input_share
    usd_per_request = usd_per_hour / _HOUR_S / rate_rps
    return float(1e6 * share * usd_per_request / inputs), float(
        1e6 * (1 - share) * usd_per_request / outputs
    )
