"""The energy of an output token, as an answer states it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sextant.answer.predicted import Forecast, draws_of
from sextant.base.rows import Row, frame_rows
from sextant.pages.wording import number, plural
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import at_percentile
from sextant.predict.draws import JOULES
from sextant.predict.roofline.energy import Energy

_WH_PER_MILLION = 1e6 / 3600
"""Watt-hours of a million tokens that take a joule each."""
_SEED = 42


def learned(made: Forecast) -> Energy | None:
    """Return what devices draw, from all points that have energy and ITL; TTFT is not needed."""
    subject, slo = made.subject, made.slo
    points = at_percentile(subject.source.known.points, slo.percentiles)
    points = points[points["users"].notna()]
    measured = points[["itl_ms", "energy_j_per_token"]]
    facts = Facts(subject.measured, subject.source.known.profiles)
    return Energy.fitted(subject.measured_keys(points).join(measured), facts)


def with_joules(made: Forecast, power: Energy | None, rows: Sequence[Row]) -> list[Row]:
    """Return rows of options, each with the joules per output token of its replicas.

    Medians and 90% intervals `energy_j_per_token, energy_lo_j_per_token, energy_hi_j_per_token`;
    None where the source has no energy, the device no TDP, or the LLM does not fit.
    """
    served = [row for row in rows if row["users_per_replica"] is not None]
    joules: dict[str, Row] = {}
    if power is not None and served:
        subject = made.subject
        loads = pd.DataFrame(served).rename(columns={"users_per_replica": "users"})
        keys = loads[["gpu_profile_id", "users"]].assign(llm_id=subject.llm_id)
        X = subject.asked(made.model, keys, subject.profiles)
        itl_ms = draws_of(made.model, subject, made.own, X).samples_ms[..., 1]
        asked = keys.assign(**subject.serving.columns())
        found = power.predict(asked, Facts(subject.llms, subject.profiles), itl_ms, _SEED)
        joules = dict(zip(keys["gpu_profile_id"], frame_rows(found), strict=True))
    unknown = dict.fromkeys(JOULES)
    return [row | joules.get(row["gpu_profile_id"], unknown) for row in rows]


def energy(
    made: Forecast, power: Energy | None, profile_id: str, users: int
) -> dict[str, Any] | None:
    """Return joules per output token of a replica with these users, and what they rest on.

    None where the source has no energy, or the device's TDP is not known. Beside `JOULES` it has
    `wh_per_million_output_tokens`, `n_llms` and the `sources` that measured energy.
    """
    row = {"gpu_profile_id": profile_id, "users_per_replica": users}
    (found,) = with_joules(made, power, [row])
    if power is None or found["energy_j_per_token"] is None:
        return None
    points = made.subject.source.known.points
    return {
        **{name: found[name] for name in JOULES},
        "wh_per_million_output_tokens": _WH_PER_MILLION * found["energy_j_per_token"],
        "n_llms": power.n_llms,
        "sources": sorted(points.loc[points["energy_j_per_token"] > 0, "source"].unique()),
    }


def energy_line(found: Mapping[str, Any]) -> str:
    """Return the energy of a token in one line."""
    low, high = (number(found[f"energy_{end}_j_per_token"]) for end in ("lo", "hi"))
    return (
        f"{number(found['energy_j_per_token'])} J per output token (90% interval {low} to {high}), "
        f"{number(found['wh_per_million_output_tokens'])} Wh per million, of the devices alone "
        f"under this load; from {plural(found['n_llms'], 'LLM')} of "
        f"{' + '.join(found['sources'])}."
    )
