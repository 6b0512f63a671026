"""Own GPUs or an API: what providers ask by the token for the traffic that an answer is about."""

import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import load_sheet
from sextant.facts import gpu
from sextant.pages import blocks
from sextant.pages.words import (
    DAY_S,
    HOUR_S,
    chance,
    duration_words,
    number,
    per_second,
    percent,
    plural,
    usd_words,
)

if TYPE_CHECKING:
    from sextant.workload.requests import RequestStream

API_PRICES = resource("api_prices.csv")
MEAN_NOTE = "The rate is taken as the mean of a month: it has to count nights and weekends."
_N_IN_TEXT = 6
"""Providers that the text lists, the cheapest; a page lists all."""
_NEARLY = 0.99
"""Share of a day or a week that counts as whole: a trace ends with its last request."""
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


class ListedPrice(NamedTuple):
    """A provider's price of an LLM, and the file name of its table."""

    price: ApiPriceRow
    table: str


@cache
def load_api_prices(path: Path) -> list[ListedPrice]:
    """Read a table of prices. Raises InputError for a wrong row, or an LLM's price twice."""
    prices = []
    lines: dict[tuple[str, str], int] = {}
    for row in load_sheet(path, ApiPriceRow, delimiter=None):
        price = ApiPriceRow(**row)
        line = lines.setdefault((plain_name(price.llm_id), price.provider), row.line)
        if line != row.line:
            problem = f"{price.provider} has a price of {price.llm_id} already in line {line}"
            raise row.error(problem, "llm_id", "keep one of them")

        cached = price.cached_input_usd_per_mtok
        full = price.input_usd_per_mtok
        if cached is not None and cached > full:
            problem = f"{cached:g} is above the price of input, {full:g}"
            fix = "give what it costs to read the cache, not to write it"
            raise row.error(problem, "cached_input_usd_per_mtok", fix)
        prices.append(ListedPrice(price, path.name))
    return prices


def find_api_prices(stated: str, llm_id: str) -> list[ListedPrice]:
    """Return an LLM's prices, one per provider.

    Args:
        stated: value of `--api-prices`: tables of the user's, which come first, providers that
            ship, or `all` of these.
        llm_id: the LLM.

    Raises:
        InputError: a part is neither, a table is wrong, or none has a price of the LLM.
    """
    name = plain_name(llm_id)
    shipped = load_api_prices(API_PRICES)
    providers = {listed.price.provider for listed in shipped}
    parts = [stated] if Path(stated).is_file() else [part.strip() for part in stated.split(",")]
    if "" in parts:
        fix = "name a table or a provider between the commas"
        raise InputError("a part of it is empty", field="--api-prices", fix=fix)
    prices: list[ListedPrice] = []
    for part in parts:
        if part in {*providers, "all"}:
            continue
        if not Path(part).is_file():
            fix = f"give a CSV or TSV, all, or one that ships: {', '.join(sorted(providers))}"
            problem = "neither a file nor a provider"
            raise InputError(problem, file=part, field="--api-prices", fix=fix)
        prices += load_api_prices(Path(part))

    prices += [listed for listed in shipped if "all" in parts or listed.price.provider in parts]
    prices = [listed for listed in prices if plain_name(listed.price.llm_id) == name]
    if not prices:
        sellers = [
            listed.price.provider for listed in shipped if plain_name(listed.price.llm_id) == name
        ]
        fix = "give a table with a row of it"
        if sellers:
            fix = f"give all, or some of {', '.join(sellers)}"
        raise InputError(f"{stated} has no price of {name}", field="--api-prices", fix=fix)
    return [*{listed.price.provider: listed for listed in reversed(prices)}.values()]


class Billed(NamedTuple):
    """Traffic as an API bills it."""

    rate_rps: float
    """The mean of a month."""
    input_tokens: float
    """Mean of a request."""
    output_tokens: float
    cached_share: float
    """Share of the input that a prefix cache holds."""
    note: str = MEAN_NOTE
    """What the mean is of."""

    @classmethod
    def of(cls, requests: "RequestStream", prefix_hit_rate: float) -> "Billed":
        """Return requests at their mean rate. What repeats in their input counts as cached."""
        days = requests.duration_s / DAY_S
        coverage = "not of a whole week" if days >= _NEARLY else "without nights and weekends"
        if days >= 7 * _NEARLY:
            coverage = "nights and weekends included"
        note = MEAN_NOTE
        if requests.origin.is_trace:
            duration = duration_words(requests.duration_s)
            note = f"The rate is the mean of the trace, {duration}: {coverage}."
        cached_share = requests.repeated_share or prefix_hit_rate
        return cls(requests.rate_rps, *requests.mean_lengths, cached_share, note)

    def usd_per_request(self, price: ApiPriceRow) -> float:
        """Return what a request costs in USD: tokens × price, cached input at its own price."""
        full = price.input_usd_per_mtok
        cached = (
            full if price.cached_input_usd_per_mtok is None else price.cached_input_usd_per_mtok
        )
        input_usd = (1 - self.cached_share) * full + self.cached_share * cached
        output_usd = price.output_usd_per_mtok
        return float(self.input_tokens * input_usd + self.output_tokens * output_usd) / 1e6


class OwnDeployment(NamedTuple):
    """Own GPUs, as they are compared with an API."""

    gpu_profile: gpu.GPUProfile
    replicas: int
    most_rps: float | None
    """The most that all replicas serve within the limits; None: not known."""
    probability: Callable[[int], float | None]
    """Returns the probability that a number of replicas is enough."""
    saved: float = 0.0
    """Share of the replica hours that a schedule saves."""


@dataclass(frozen=True)
class ApiOffer:
    """What one provider asks for the same traffic, and where own GPUs break even."""

    price: ApiPriceRow
    table: str
    usd_per_request: float
    usd_per_month: float
    break_even_requests_per_day: float
    break_even_utilisation: float | None
    """The break-even rate over the most that own GPUs serve; None: not known."""
    probability_own_is_cheaper: float | None


@dataclass(frozen=True)
class ApiComparison:
    """Own GPUs beside what providers ask by the token."""

    billed: Billed
    own_usd_per_hour: float
    own_usd_per_month: float
    own_scheduled_usd_per_month: float | None
    own_most_rps: float | None
    providers: tuple[ApiOffer, ...]
    """Cheapest first."""

    def verdict(self) -> str:
        """Return which is cheaper, the cheapest provider or own GPUs, and where they break even."""
        cheapest = self.providers[0]
        provider = cheapest.price.provider
        asks = number(cheapest.usd_per_month)
        own_usd = number(self.own_usd_per_month)
        text = f"{provider} bills {asks} USD a month, own GPUs cost {own_usd}"
        if self.own_usd_per_month < cheapest.usd_per_month:
            text = (
                f"Own GPUs are cheaper: {own_usd} USD a month, the cheapest API {asks} ({provider})"
            )
        text += f"; own GPUs pay from {number(cheapest.break_even_requests_per_day)} requests a day"
        if cheapest.break_even_utilisation is not None:
            text += f" ({percent(cheapest.break_even_utilisation)} of what they can serve)"
        if (probability := cheapest.probability_own_is_cheaper) is not None:
            text += "; with probability "
            text += f"{chance(probability)} the replicas that are needed cost less than the API"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return its entry in an answer; a provider's row has the columns of its price first."""
        providers = [asdict(offer) for offer in self.providers]
        return {
            **self.billed._asdict(),
            "own_usd_per_hour": self.own_usd_per_hour,
            "own_usd_per_month": self.own_usd_per_month,
            "own_scheduled_usd_per_month": self.own_scheduled_usd_per_month,
            "own_most_rps": self.own_most_rps,
            "providers": [{**offer.pop("price"), **offer} for offer in providers],
        }


def compare_with_api(
    stated: str, llm_id: str, billed: Billed, deployment: OwnDeployment
) -> ApiComparison:
    """Return what own GPUs and each provider cost a month, cheapest first.

    Own GPUs cost USD per hour × 730 h, of all that has to be rented. They break even at the request
    rate for which a provider asks as much. They are cheaper in the draws of law and traffic that
    need no more replicas than a provider's bill would pay for.

    Args:
        stated: value of `--api-prices`, as `find_api_prices` takes it.
        llm_id: the LLM.
        billed: the traffic.
        deployment: the own GPUs.
    """
    rented = gpu.rental(deployment.gpu_profile)
    usd_per_hour = rented.times(deployment.replicas) * rented.usd_per_hour
    offers = []
    for price, table in find_api_prices(stated, llm_id):
        usd_per_request = billed.usd_per_request(price)
        bill_usd_per_hour = HOUR_S * billed.rate_rps * usd_per_request
        even_rps = usd_per_hour / HOUR_S / usd_per_request
        # Replicas that cost less than the bill.
        n_rentals = math.ceil(bill_usd_per_hour / rented.usd_per_hour) - 1
        affordable = rented.replicas * n_rentals
        most_rps = deployment.most_rps
        offers.append(
            ApiOffer(
                price,
                table,
                usd_per_request,
                usd_per_month=gpu.HOURS_PER_MONTH * bill_usd_per_hour,
                break_even_requests_per_day=DAY_S * even_rps,
                break_even_utilisation=even_rps / most_rps if most_rps else None,
                probability_own_is_cheaper=(
                    deployment.probability(affordable) if affordable else 0.0
                ),
            )
        )
    month_usd = gpu.HOURS_PER_MONTH * usd_per_hour
    # A machine for several replicas is not given back with one of them.
    is_saved = deployment.saved > 0 and rented.replicas == 1
    return ApiComparison(
        billed,
        usd_per_hour,
        month_usd,
        (1 - deployment.saved) * month_usd if is_saved else None,
        deployment.most_rps,
        tuple(sorted(offers, key=lambda offer: (offer.usd_per_month, offer.price.provider))),
    )


def api_section(api: ApiComparison | None) -> list[blocks.Block]:
    """Return the part of an answer that compares with an API; nothing where nobody asked."""
    if api is None:
        return []
    header = ["Provider", "USD a month", "Own GPUs pay from", "Utilisation", "Probability"]
    header += ["USD/M input", "Cached", "Output"]
    origins = gpu.price_origins((offer.table, offer.price.as_of) for offer in api.providers)
    note = "Own GPUs pay from so many requests a day. " + gpu.origin_line(origins)
    cells = []
    for offer in api.providers:
        probability = offer.probability_own_is_cheaper
        cells.append(
            [
                offer.price.provider,
                number(offer.usd_per_month),
                number(offer.break_even_requests_per_day),
                percent(offer.break_even_utilisation),
                "–" if probability is None else chance(probability),
                number(offer.price.input_usd_per_mtok),
                number(offer.price.cached_input_usd_per_mtok),
                number(offer.price.output_usd_per_mtok),
            ]
        )
    if (n_more := len(cells) - _N_IN_TEXT) > 0:
        note += f" {plural(n_more, 'more provider')}, each dearer, in JSON and on the page."
    table = blocks.Table(header, cells, note=note, n_rows_in_text=_N_IN_TEXT)

    billed = api.billed
    cached = f" ({percent(billed.cached_share)} of them cached)" if billed.cached_share else ""
    rented = f"Own GPUs are rented for {usd_words(api.own_usd_per_hour)}"
    if api.own_scheduled_usd_per_month:
        rented += f"; by the schedule {number(api.own_scheduled_usd_per_month)} USD a month"
    lines = [
        f"{api.verdict()}.",
        f"An API bills {per_second(billed.rate_rps)} of {number(billed.input_tokens)} input "
        f"tokens{cached} and {number(billed.output_tokens)} output tokens. {billed.note}",
        f"{rented}.",
    ]
    return [blocks.Section("Own GPUs or an API", [blocks.Facts(lines), table])]
