"""Own GPUs or an API: what providers ask by the token for the traffic that an answer is about."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import Row, load_sheet
from sextant.facts import gpu
from sextant.pages import blocks
from sextant.pages.words import DAY_S, HOUR_S, chance, duration_words, number, per_second, percent

if TYPE_CHECKING:
    from sextant.workload.requests import RequestStream

API_PRICES = resource("api_prices.csv")
MEAN_NOTE = "The rate is taken as the mean of a month: it has to count nights and weekends."
_NEARLY = 0.99  # of a day or a week: a trace ends with its last request
_SERVED_AS = re.compile(r"(-(fp8|fp4|nvfp4|mxfp4|bf16|int[48]|awq|gptq|w[48]a\d+|dynamic))+$")
_UsdPerMtok = Annotated[float, Field(gt=0, le=1e4)]


@dataclass(frozen=True, kw_only=True)
class ApiPriceRow:
    """`sextant recommend --api-prices`: each row is what a provider asks for an LLM's tokens."""

    llm_id: str
    """the LLM; its organisation and precision do not count: Qwen/Qwen3-32B-FP8 is qwen3-32b"""
    provider: str  #: who sells the tokens, e.g. deepinfra
    model_key: str | None = None  #: what the provider, or a gateway, calls the LLM
    input_usd_per_mtok: _UsdPerMtok  #: give USD per million input tokens, above 0 and up to 10,000
    output_usd_per_mtok: _UsdPerMtok
    """give USD per million output tokens, above 0 and up to 10,000"""
    cached_input_usd_per_mtok: Annotated[float, Field(ge=0, le=1e4)] | None = None
    """USD per million input tokens found in the provider's cache; left out: as other input"""
    as_of: gpu.PriceDate | None = None  #: date of the price: YYYY, YYYY-MM or YYYY-MM-DD
    source: str | None = None  #: the page that has the price, https://…


def plain_name(llm_id: str) -> str:
    """Return the name of an LLM without its organisation and the precision of its weights."""
    return _SERVED_AS.sub("", re.split("/|__", llm_id)[-1].lower()).removeprefix("meta-")


@cache
def load_api_prices(path: Path) -> list[Row]:
    """Read a table of prices. Raises InputError for a wrong row, or an LLM's price twice."""
    rows, seen = load_sheet(path, ApiPriceRow, delimiter=None), dict[tuple[str, str], int]()
    for row in rows:
        line = seen.setdefault((plain_name(row["llm_id"]), row["provider"]), row.line)
        if line != row.line:
            problem = f"{row['provider']} has a price of {row['llm_id']} already in line {line}"
            raise row.error(problem, "llm_id", "keep one of them")
        field = "cached_input_usd_per_mtok"
        if row.get(field, 0.0) > (full := row["input_usd_per_mtok"]):
            fix = "give what it costs to read the cache, not to write it"
            raise row.error(f"{row[field]:g} is above the price of input, {full:g}", field, fix)
    return rows


def find_api_prices(given: str, llm_id: str) -> list[Row]:
    """Return an LLM's prices, one a provider, that `--api-prices` names: tables of the user's,
    which come first, providers that ship, or `all` of these. Raises InputError: a part is neither,
    a table is wrong, or none has a price of the LLM."""
    name, shipped = plain_name(llm_id), load_api_prices(API_PRICES)
    sellers = {row["provider"] for row in shipped}
    parts = [given] if Path(given).is_file() else [part.strip() for part in given.split(",")]
    rows: list[Row] = []
    for part in (part for part in parts if part not in {*sellers, "all"}):
        if not Path(part).is_file():
            fix = f"give a CSV or TSV, all, or one that ships: {', '.join(sorted(sellers))}"
            problem = "neither a file nor a provider"
            raise InputError(problem, file=part, field="--api-prices", fix=fix)
        rows += load_api_prices(Path(part))
    rows += [row for row in shipped if "all" in parts or row["provider"] in parts]
    rows = [row for row in rows if plain_name(row["llm_id"]) == name]
    if not rows:
        own = [row["provider"] for row in shipped if plain_name(row["llm_id"]) == name]
        fix = f"give all, or some of {', '.join(own)}" if own else "give a table with a row of it"
        raise InputError(f"{given} has no price of {name}", field="--api-prices", fix=fix)
    return [*{row["provider"]: row for row in reversed(rows)}.values()]


class Billed(NamedTuple):
    """Traffic as an API bills it."""

    rate_rps: float  # the mean of a month
    input_tokens: float  # mean of a request
    output_tokens: float
    cached_share: float  # of the input, found in a prefix cache
    note: str = MEAN_NOTE  # what the mean is of

    @classmethod
    def of(cls, demand: "RequestStream", prefix_hit_rate: float) -> "Billed":
        """Return a demand at its mean rate. What repeats in its input counts as cached."""
        days, lasts = demand.duration_s / DAY_S, duration_words(demand.duration_s)
        what = "not of a whole week" if days >= _NEARLY else "without nights and weekends"
        what = "nights and weekends included" if days >= 7 * _NEARLY else what
        note = f"The rate is the mean of the trace, {lasts}: {what}."
        note = MEAN_NOTE if demand.origin.mean_lengths is None else note
        cached_share = demand.repeated_share or prefix_hit_rate
        return cls(demand.rate_rps, *demand.mean_lengths, cached_share, note)

    def usd_per_request(self, price: Mapping[str, Any]) -> float:
        """Return what a request costs in USD: tokens × price, cached input at its own price."""
        full, share = price["input_usd_per_mtok"], self.cached_share
        of_input = (1 - share) * full + share * price.get("cached_input_usd_per_mtok", full)
        of_output = price["output_usd_per_mtok"]
        return float(self.input_tokens * of_input + self.output_tokens * of_output) / 1e6


def compare_with_api(
    given: str,
    llm_id: str,
    billed: Billed,
    profile: gpu.GPUProfile,
    replicas: int,
    most_rps: float | None,
    probability: Callable[[int], float | None],
    saved: float = 0.0,
) -> dict[str, Any]:
    """Return what own GPUs and each provider (`find_api_prices`) cost a month, cheapest first. Own
    GPUs cost USD per hour × 730 h, of all that has to be rented. They break even at the request
    rate for which a provider asks as much; `break_even_utilisation` is that rate over `most_rps`,
    the most that they serve within the limits (None: not known). They are cheaper in the draws of
    law and traffic that need no more replicas than a provider's bill would pay for; `probability`
    is that so many are enough. `saved` is the share of replica hours that a schedule saves."""
    _, room, usd = gpu.rental(profile)
    usd_per_hour, rows = -(-replicas // room) * usd, []
    for price in find_api_prices(given, llm_id):
        usd_per_request = billed.usd_per_request(price)
        bill = HOUR_S * billed.rate_rps * usd_per_request  # USD per hour
        even_rps = usd_per_hour / HOUR_S / usd_per_request
        paid = room * (math.ceil(bill / usd) - 1)  # replicas that cost less
        row = {
            **{each.name: price.get(each.name) for each in fields(ApiPriceRow)},
            "table": Path(price.file or "").name,
            "usd_per_request": usd_per_request,
            "usd_per_month": gpu.HOURS_PER_MONTH * bill,
            "break_even_requests_per_day": DAY_S * even_rps,
            "break_even_utilisation": even_rps / most_rps if most_rps else None,
            "probability_own_is_cheaper": probability(paid) if paid else 0.0,
        }
        rows.append(row)
    month = gpu.HOURS_PER_MONTH * usd_per_hour
    # A machine for several replicas is not given back with one of them.
    is_saved = saved > 0 and room == 1
    return {
        **billed._asdict(),
        "own_usd_per_hour": usd_per_hour,
        "own_usd_per_month": month,
        "own_scheduled_usd_per_month": (1 - saved) * month if is_saved else None,
        "own_most_rps": most_rps,
        "providers": sorted(rows, key=lambda row: (row["usd_per_month"], row["provider"])),
    }


def api_section(answer: Mapping[str, Any]) -> list[blocks.Block]:
    """Return the part of an answer that compares with an API; nothing where nobody asked."""
    if (api := answer.get("api")) is None:
        return []
    cells = [
        [
            row["provider"],
            number(row["usd_per_month"]),
            number(row["break_even_requests_per_day"]),
            percent(row["break_even_utilisation"]),
            "–" if (p := row["probability_own_is_cheaper"]) is None else chance(p),
            *(number(row[f"{name}_usd_per_mtok"]) for name in ("input", "cached_input", "output")),
        ]
        for row in api["providers"]
    ]
    (provider, asks, even, utilisation, probability, *_), *_ = cells
    own, scheduled = number(api["own_usd_per_month"]), api["own_scheduled_usd_per_month"]
    verdict = f"{provider} bills {asks} USD a month, own GPUs cost {own}"
    if api["own_usd_per_month"] < api["providers"][0]["usd_per_month"]:
        verdict = f"Own GPUs are cheaper: {own} USD a month, the cheapest API {asks} ({provider})"
    cached = f" ({percent(api['cached_share'])} of them cached)" if api["cached_share"] else ""
    verdict += f"; own GPUs pay from {even} requests a day"
    verdict += f" ({utilisation} of what they can serve)" * (utilisation != "–")
    sure = f"; as many of this GPU profile as needed are cheaper with probability {probability}"
    verdict += sure * (probability != "–")
    lines = [
        f"{verdict}.",
        f"An API bills {per_second(api['rate_rps'])} of {number(api['input_tokens'])} input "
        f"tokens{cached} and {number(api['output_tokens'])} output tokens. {api['note']}",
        f"Own GPUs are rented for {api['own_usd_per_hour']:,.2f} USD/h"
        + (f"; by the schedule {number(scheduled)} USD a month." if scheduled else "."),
    ]
    header = ["Provider", "USD a month", "Own GPUs pay from", "Utilisation", "Probability"]
    header += ["USD/M input", "Cached", "Output"]
    origins = gpu.price_origins((row["table"], row["as_of"]) for row in api["providers"])
    note = "Own GPUs pay from so many requests a day. " + gpu.origin_line(origins)
    table = blocks.Table(header, cells, note=note, n_rows_in_text=6)
    return [blocks.Section("Own GPUs or an API", [blocks.Facts(lines), table])]
