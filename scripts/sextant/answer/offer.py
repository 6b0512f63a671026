"""Which GPU profiles are on offer and what they cost; what was probed on them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.sheets import SCHEMAS, Row, load_sheet
from sextant.facts.gpu import GPUProfile, profile_of_id
from sextant.facts.prices import priced, providers
from sextant.points.characterizations.points import IDENTIFIERS, LATENCIES, LENGTHS


def offered(
    known: Mapping[str, GPUProfile],
    wanted: tuple[str, ...],
    prices: Path | None,
    *,
    need_prices: bool = True,
    field: str = "--gpu-profiles",
) -> dict[str, GPUProfile]:
    """Return the GPU profiles on offer, with the prices that hold.

    Args:
        known: profiles of the characterization, with its prices.
        wanted: the profiles to consider, `<n>x<gpu_id>`; if empty all known ones, of those of a
            provider the ones that it sells. Others than the known need a price.
        prices: in place of the known prices CSV or TSV `gpu_profile_id, usd_per_hour`; or a
            provider whose table ships, which prices all profiles or none.
        need_prices: whether a profile without a price is an error.
        field: the option that names the wanted profiles.

    Raises:
        InputError: a profile is unknown or has no price, or the table is wrong.
    """
    is_provider = prices is not None and str(prices) in providers()
    found = {} if prices is None or is_provider else _given(prices, known)
    chosen = {}
    for name in dict.fromkeys(wanted or known):
        each = found.get(name) or profile(name, known, field=field)
        if is_provider:
            each = priced(each, str(prices)) or replace(each, usd_per_hour=math.nan)
        if not math.isnan(each.usd_per_hour) or not need_prices:
            chosen[name] = each
        elif wanted or not is_provider:
            fix = "give it a row in --prices" if prices is None else f"add a row to {prices}"
            if is_provider:
                fix = "leave it out, or give a CSV of gpu_profile_id, usd_per_hour as --prices"
            raise InputError(f"{name} has no price", field="--gpu-profiles", fix=fix)
    if not chosen:
        problem = f"{prices} sells none of the GPU profiles that were measured"
        fix = "name what it sells (--gpu-profiles), or give other prices"
        raise InputError(problem, field="--prices", fix=fix)
    return dict(sorted(chosen.items()))


def _given(prices: Path, known: Mapping[str, GPUProfile]) -> dict[str, GPUProfile]:
    """Return the GPU profiles of the user's table, at its prices."""
    if not prices.exists():
        fix = f"give a CSV or TSV, or one of the tables that ship: {', '.join(providers())}"
        problem = "neither a file nor a provider"
        raise InputError(problem, file=prices, field="--prices", fix=fix)
    found = {}
    for row in _table(prices, "prices", "gpu_profile_id"):
        name = row["gpu_profile_id"]
        each = profile(name, known, file=prices, row=row.line, field="gpu_profile_id")
        price = row["usd_per_hour"]
        found[name] = replace(
            each, usd_per_hour=price, price_source=prices.name, price_as_of=row.get("as_of")
        )
    return found


def profile(
    name: str,
    known: Mapping[str, GPUProfile],
    *,
    file: Path | None = None,
    row: int | None = None,
    field: str,
) -> GPUProfile:
    """Return a known GPU profile, or one of a device whose facts are known, without a price.

    Raises:
        InputError: neither; names the given place.
    """
    if name in known:
        return known[name]
    try:
        return profile_of_id(name)
    except InputError as error:
        raise error.at(file=file, row=row, field=field) from None


def read_probe(
    path: Path, llm_id: str, known: Mapping[str, GPUProfile], lengths: Sequence[float]
) -> pd.DataFrame:
    """Return measurements of an LLM.

    Columns: `llm_id, gpu_profile_id, users`, the mean `input_tokens, output_tokens`, and `nttft_ms,
    itl_ms, e2e_ms`; NaN where it was not measured, nor follows. nTTFT is TTFT / input tokens, TPOT
    is taken for ITL, and of TTFT, ITL and E2E two give the third.

    Args:
        path: CSV or TSV.
        llm_id: the LLM.
        known: GPU profiles of the characterization.
        lengths: mean input and output tokens of the asked requests: those of a row without any.

    Raises:
        InputError: a row is wrong, is repeated, has no latency or names an unknown profile.
    """
    rows = _table(path, "probe")
    seen: dict[tuple, int] = {}
    for row in rows:
        field = "gpu_profile_id"
        profile(row[field], known, file=path, row=row.line, field=field)
        key = row[field], row["users"]
        if key in seen:
            problem = f"{key[0]} with {key[1]} users is already in line {seen[key]}"
            raise InputError(problem, file=path, row=row.line, field=field, fix="keep one of them")
        seen[key] = row.line
    columns = [*IDENTIFIERS[1:], "users", *LENGTHS, *LATENCIES]
    frame = pd.DataFrame(rows).reindex(columns=columns).assign(llm_id=llm_id)
    return _targets(frame.fillna(dict(zip(LENGTHS, lengths, strict=True))), path, rows)


def _targets(frame: pd.DataFrame, path: Path, rows: Sequence[Row]) -> pd.DataFrame:
    """Return a probe with the latencies that the others follow from."""
    steps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    ttft = frame["ttft_ms"].fillna(frame["nttft_ms"] * frame["input_tokens"])
    itl, e2e = frame["itl_ms"].fillna(frame["tpot_ms"]), frame["e2e_ms"]
    for wrong, field, problem, fix in (
        (
            ttft.fillna(itl).fillna(e2e).isna(),
            ", ".join(LATENCIES),
            "no latency",
            "give one or more of them, in milliseconds",
        ),
        (
            (e2e <= ttft) | (e2e <= itl * steps),
            "e2e_ms",
            "E2E is not above TTFT, or not above ITL × (output tokens - 1)",
            "correct it, or give input_tokens and output_tokens of the requests",
        ),
    ):
        if wrong.any():
            line = rows[int(wrong.to_numpy().argmax())].line
            raise InputError(problem, file=path, row=line, field=field, fix=fix)
    ttft, itl = ttft.fillna(e2e - itl * steps), itl.fillna((e2e - ttft) / steps)
    names = ["llm_id", "gpu_profile_id", "users", *LENGTHS, "e2e_ms"]
    return frame[names].assign(nttft_ms=ttft / frame["input_tokens"], itl_ms=itl)


def _table(path: Path, name: str, key: str | None = None) -> list[Row]:
    """Read a table of the user's, separated by commas or tabs."""
    try:
        has_tab = "\t" in path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):  # `load_sheet` says it better
        has_tab = True
    schema = SCHEMAS / f"{name}.schema.yaml"
    return load_sheet(path, schema, key, delimiter="\t" if has_tab else ",")
