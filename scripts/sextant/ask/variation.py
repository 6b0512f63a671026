"""`--vary`: other values of a question's numbers, and all combinations of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from sextant.base.errors import InputError
from sextant.base.numbers import number_of
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import METRICS, SLO
from sextant.workload.lengths import MOST_TOKENS, Length, RequestLengths

MOST_COMBINATIONS = 64
TRAFFIC = "traffic"
_LENGTHS = ("input-tokens", "output-tokens")
_LIMITS = {f"{metric}-ms": metric for metric in METRICS}
_PRICE = "price:"
_FIELD = "--vary"
_LEAST_VALUE = 1e-9
_MOST_VALUE = 1e9
"""Of any value: no limit, price or factor on the load is outside."""
_EXAMPLE = "--vary traffic=0.8,1,1.5 or --vary price:H200=0.8,1"


@dataclass(frozen=True)
class Variant:
    """One combination of values; what it does not name stays as asked."""

    values: Mapping[str, float] = field(default_factory=dict)
    """By name: `traffic` and `price:NAME` are factors, the others are what the option of that name
    would state."""

    @property
    def traffic(self) -> float:
        """The factor on the load."""
        return self.values.get(TRAFFIC, 1.0)

    @property
    def has_lengths(self) -> bool:
        """Whether requests of other lengths are asked about."""
        return any(name in self.values for name in _LENGTHS)

    def slo(self, slo: SLO) -> SLO:
        """Return an SLO with this load and these limits.

        Raises InputError: a limit is not asked, or the load or a limit is out of range.

        Percentiles stay as they are.
        """
        limits_ms = {}
        for name, metric in _LIMITS.items():
            if name not in self.values:
                continue
            if metric not in slo.limits:
                problem = f"no limit on {METRICS[metric]} is asked for"
                raise InputError(problem, field=f"{_FIELD} {name}", fix=f"give --{name} too")
            limits_ms[f"{metric}_ms"] = self.values[name]
        if not limits_ms and self.traffic == 1:
            return slo
        try:
            return SLO(**slo.facts() | limits_ms).scaled(load=self.traffic)
        except InputError as error:
            raise error.at(field=_FIELD) from None

    def requests(self, requests: RequestLengths | None) -> RequestLengths | None:
        """Return requests of these mean lengths. Raises InputError: no lengths are stated.

        A long request stays as many times as long as the mean one.
        """
        if not self.has_lengths:
            return requests
        if requests is None:
            fix = "give --input-tokens and --output-tokens too"
            raise InputError("no lengths are stated", field=f"{_FIELD} {_LENGTHS[0]}", fix=fix)
        sides = []
        for name, length in zip(_LENGTHS, requests, strict=True):
            mean = self.values.get(name, length.mean)
            if not 1 <= mean <= MOST_TOKENS:
                fix = f"give 1 to {MOST_TOKENS:,.0f}"
                problem = f"{mean:g} tokens are no length"
                raise InputError(problem, field=f"{_FIELD} {name}", fix=fix)
            sides.append(Length(mean, mean * length.high / length.mean))
        return RequestLengths(*sides)

    def priced(self, gpu_profiles: Mapping[str, GPUProfile]) -> dict[str, GPUProfile]:
        """Return GPU profiles at these prices. Raises InputError: a name is none of them.

        A name is that of a GPU profile, or how the name of a GPU begins.
        """
        priced = dict(gpu_profiles)
        for name, factor in self.values.items():
            if not name.startswith(_PRICE):
                continue
            asked = name.removeprefix(_PRICE)
            named = [
                profile_id
                for profile_id, profile in priced.items()
                if profile_id == asked or profile.gpu.gpu_id.startswith(asked)
            ]
            if not named:
                gpu_ids = sorted({profile.gpu.gpu_id for profile in priced.values()})
                problem = f"{asked!r} is none of the candidates"
                fix = f"name a GPU profile, or a GPU: {', '.join(gpu_ids)}"
                raise InputError(problem, field=f"{_FIELD} {name}", fix=fix)
            for profile_id in named:
                usd_per_hour = priced[profile_id].usd_per_hour * factor
                priced[profile_id] = replace(priced[profile_id], usd_per_hour=usd_per_hour)
        return priced


def parse_variants(texts: Sequence[str]) -> list[Variant]:
    """Return all combinations of what `--vary` lists, the last one's values next to each other.

    Args:
        texts: each `NAME=VALUE,VALUE`, as `traffic=0.8,1`.

    Raises:
        InputError: a name is not known or given twice, a value is not a number above 0, or there
            are too many combinations.
    """
    values_of: dict[str, list[float]] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        _check_name(name.strip(), text, values_of)
        values = [_number(value, text) for value in listed.split(",")]
        if len(set(values)) < len(values):
            problem = f"{text!r} lists a value twice"
            raise InputError(problem, field=_FIELD, fix="list each value once")
        values_of[name.strip()] = values
    n = math.prod(map(len, values_of.values()))
    if n > MOST_COMBINATIONS:
        fix = f"give fewer values: {MOST_COMBINATIONS} combinations at most"
        raise InputError(f"{n} combinations", field=_FIELD, fix=fix)
    combinations = product(*values_of.values()) if values_of else ()
    return [Variant(dict(zip(values_of, values, strict=True))) for values in combinations]


def _check_name(name: str, text: str, names: Mapping[str, object]) -> None:
    if name in names:
        raise InputError(f"{name} is varied twice", field=_FIELD, fix="list all values in one")
    is_price = name.startswith(_PRICE) and len(name) > len(_PRICE)
    if is_price or name in (TRAFFIC, *_LENGTHS, *_LIMITS):
        return
    names_known = ", ".join([TRAFFIC, *_LIMITS, *_LENGTHS, f"{_PRICE}GPU"])
    problem = f"{text!r} does not say what is varied"
    raise InputError(problem, field=_FIELD, fix=f"use one of {names_known}, as in {_EXAMPLE}")


def _number(value: str, text: str) -> float:
    try:
        number = number_of(value)
    except ValueError:
        number = math.nan
    if not _LEAST_VALUE <= number <= _MOST_VALUE:
        problem = f"{value.strip()!r} in {text!r} is not a number above 0, up to {_MOST_VALUE:,.0f}"
        raise InputError(problem, field=_FIELD, fix=f"list numbers, as in {_EXAMPLE}")
    return number
