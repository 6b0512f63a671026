"""The candidates of a question: GPU profiles, and the prices that hold for them."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sextant.ask.question import Question
from sextant.ask.source import Source
from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet
from sextant.facts import gpu
from sextant.facts.gpu import GPUProfile, cheapest, has_own_price
from sextant.pages.words import joined

_MOST_NODES = 8
"""Nodes of a replica on which another number of GPUs is looked for."""


class Prices(NamedTuple):
    """The prices that a question names."""

    table: Mapping[str, GPUProfile]
    """GPU profiles of the user's table, at its prices."""
    providers: Sequence[str]
    priced_by_sheet: Collection[str] = ()
    """GPU profiles that have the price of a pipeline's sheet."""

    def is_own(self, gpu_profile: GPUProfile) -> bool:
        """Return whether the source's price is its own: a sheet's, or from no table that ships."""
        return gpu_profile.gpu_profile_id in self.priced_by_sheet or has_own_price(gpu_profile)

    def apply_to(self, gpu_profile: GPUProfile) -> GPUProfile:
        """Return a GPU profile at the price that holds; its price is NaN if none is known.

        The user's table comes first, then the named providers, then the source's own price, then
        the lowest of all tables that ship.
        """
        if (in_table := self.table.get(gpu_profile.gpu_profile_id)) is not None:
            return in_table
        at_provider = cheapest(gpu_profile, self.providers) if self.providers else None
        if at_provider is not None or self.is_own(gpu_profile):
            return at_provider or gpu_profile
        return cheapest(gpu_profile) or gpu_profile


def read_prices(
    prices: Path | None,
    gpu_profiles: Mapping[str, GPUProfile],
    priced_by_sheet: Collection[str] = (),
) -> Prices:
    """Return the prices that `--prices` names: a table, providers, or both with commas between.

    Raises:
        InputError: a part is neither a table nor a provider, or the table is wrong.
    """
    if prices is None:
        return Prices({}, (), priced_by_sheet)
    parts = [str(prices)] if prices.exists() else str(prices).split(",")
    if "" in parts:
        fix = "name a table or a provider between the commas"
        raise InputError("a part of it is empty", field="--prices", fix=fix)
    providers = [part for part in parts if part in gpu.providers()]
    table: dict[str, GPUProfile] = {}
    for file in (Path(part) for part in parts if part not in providers):
        if not file.exists():
            fix = f"give a CSV or TSV, or one of the tables that ship: {', '.join(gpu.providers())}"
            problem = "neither a file nor a provider"
            raise InputError(problem, file=file, field="--prices", fix=fix)

        field = "gpu_profile_id"
        for row in load_sheet(file, gpu.PriceRow, field, delimiter=None):
            price = gpu.PriceRow(**row)
            gpu_profile = find_gpu_profile(
                price.gpu_profile_id, gpu_profiles, file=file, row=row.line, field=field
            )
            table[price.gpu_profile_id] = replace(
                gpu_profile,
                usd_per_hour=price.usd_per_hour,
                price_source=file.name,
                price_as_of=price.as_of,
            )
    return Prices(table, providers, priced_by_sheet)


def find_candidates(
    gpu_profiles: Mapping[str, GPUProfile],
    wanted: Sequence[str],
    prices: Path | None,
    *,
    need_prices: bool = True,
    field: str = "--gpu-profiles",
    priced_by_sheet: Collection[str] = (),
) -> dict[str, GPUProfile]:
    """Return the candidate GPU profiles, at the prices that hold (`Prices.apply_to`).

    Args:
        gpu_profiles: GPU profiles of the source.
        wanted: the candidates, as `<n>x<gpu_id>`. If empty, the profiles of the user's table, and
            what the named providers sell of the source's; without `prices` all of the source's.
        prices: as `read_prices` takes them.
        need_prices: whether a wanted profile without a price is an error.
        field: the option that names the wanted ones.
        priced_by_sheet: those of `gpu_profiles` at the price of a pipeline's sheet.

    Raises:
        InputError: a profile is unknown or has no price, or the table is wrong.
    """
    named_prices = read_prices(prices, gpu_profiles, priced_by_sheet)
    offered = {} if prices and not named_prices.providers else gpu_profiles
    candidates = {}
    for profile_id in dict.fromkeys(wanted or [*named_prices.table, *offered]):
        gpu_profile = named_prices.apply_to(find_gpu_profile(profile_id, gpu_profiles, field=field))
        if need_prices and math.isnan(gpu_profile.usd_per_hour):
            if wanted:
                fix = f"leave it out, or give it a row in {prices or '--prices'}"
                raise InputError(f"{profile_id} has no price", field=field, fix=fix)
            continue
        is_unsold = named_prices.providers and cheapest(gpu_profile, named_prices.providers) is None
        if wanted or profile_id in named_prices.table or not is_unsold:
            candidates[profile_id] = gpu_profile

    if not candidates:
        problem = f"{prices or 'no table'} has a price of none of the GPU profiles"
        fix = "name what is sold (--gpu-profiles), or give other prices"
        raise InputError(problem, field="--prices", fix=fix)
    return dict(sorted(candidates.items()))


def candidates_of(
    question: Question, source: Source, *, need_prices: bool, field: str
) -> dict[str, GPUProfile]:
    """Return the candidates of a question. Raises InputError as `find_candidates`."""
    candidates = find_candidates(
        source.characterization.profiles,
        question.gpu_profile_ids,
        question.prices,
        need_prices=need_prices,
        field=field,
        priced_by_sheet=source.characterization.priced_by_sheet,
    )
    if not question.measured_only:
        return candidates
    measured = {
        profile_id: gpu_profile
        for profile_id, gpu_profile in candidates.items()
        if gpu_profile.gpu.gpu_id in source.gpu_ids
    }
    if not measured:
        problem = f"{source.characterization.source} has points of none of these GPUs"
        raise InputError(problem, field="--measured-only", fix="leave it out, or name others")
    return measured


def unmeasured_candidates(
    question: Question, source: Source, candidates: Mapping[str, GPUProfile]
) -> dict[str, GPUProfile]:
    """Return the GPU profiles that are sold of GPUs without points, beside the candidates.

    None where the user names the candidates, or has prices of his own: these say what there is to
    choose from.
    """
    characterization = source.characterization
    named_prices = read_prices(
        question.prices, characterization.profiles, characterization.priced_by_sheet
    )
    is_chosen = question.gpu_profile_ids or named_prices.table or question.measured_only
    if is_chosen or all(map(named_prices.is_own, candidates.values())):
        return {}
    return {
        profile_id: gpu_profile
        for profile_id, gpu_profile in gpu.offered_profiles(named_prices.providers).items()
        if gpu_profile.gpu.gpu_id not in source.gpu_ids
    }


def nearest_that_serves(
    gpu_profile: GPUProfile, can_serve: Callable[[GPUProfile], bool]
) -> str | None:
    """Return which other number of the same GPU can serve, e.g. `16xH100-80GB (2 nodes)`.

    Of 1, 2, 4 … GPUs on up to 8 nodes it is the nearest; None: none can.
    """
    gpu_id = gpu_profile.gpu.gpu_id
    most_gpus = _MOST_NODES * gpu_profile.gpu.n_gpus_per_node
    numbers = (2**power for power in range(most_gpus.bit_length()))
    for n_gpus in sorted(numbers, key=lambda n: abs(math.log2(n / gpu_profile.n_gpus))):
        other = replace(gpu_profile, gpu_profile_id=f"{n_gpus}x{gpu_id}", n_gpus=n_gpus)
        if can_serve(other):
            nodes = f" ({other.n_nodes} nodes)" * (other.n_nodes > 1)
            return f"{other.gpu_profile_id}{nodes}"
    return None


def price_notes(question: Question, gpu_profiles: Mapping[str, GPUProfile]) -> list[str]:
    """Return where the user's table and the named candidates differ."""
    prices = read_prices(question.prices, gpu_profiles)
    table = prices.table
    wanted = question.gpu_profile_ids
    if not table or (prices.providers and not wanted):
        return []
    if not wanted:
        text = f"The candidates are those of {question.prices}: {joined(sorted(table))}"
        return [f"{text}; `--prices FILE,aws` adds what a provider sells."]
    unused = [profile_id for profile_id in table if profile_id not in wanted]
    unpriced = sorted({*wanted} - {*table})
    notes = [f"Not among --gpu-profiles, so left out: {joined(unused)}."] if unused else []
    if unpriced:
        notes.append(f"{question.prices} has no price of {joined(unpriced)}.")
    return notes


def find_gpu_profile(
    profile_id: str,
    gpu_profiles: Mapping[str, GPUProfile],
    *,
    file: Path | None = None,
    row: int | None = None,
    field: str,
) -> GPUProfile:
    """Return a GPU profile of this mapping, or one of a known device, without a price.

    Raises:
        InputError: the device is unknown; the error names `file`, `row` and `field`.
    """
    if profile_id in gpu_profiles:
        return gpu_profiles[profile_id]
    try:
        return gpu.profile_of_id(profile_id)
    except InputError as error:
        raise error.at(file=file, row=row, field=field) from None
