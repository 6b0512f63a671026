"""What a page needs to answer again for another load, other limits, prices and GPU profiles.

`what_if.js` decides from it as `decide.decision` and `recommend.weighing` do from the draws, and as
eq. 1-3 do from measurements, which are one draw. A draw's latencies matter only through which
limits they keep. So the page holds, by draw and load, the first of the limits to choose from that
is kept: exact, and much smaller than latencies. Of a request rate it holds what a replica bears
within each of the limits to choose from, as `BorneRates` does.
"""

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.rate_sizer import RateSizer
from sextant.base.files import jsonable
from sextant.decide.decision import FAIR, LISTED, MOST_COUNTS, REWARD, SAFE
from sextant.decide.latency_surface import ANCHOR_STEP
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.decide.sizing import RATE_STEPS, curves, in_steps
from sextant.facts.gpu import HOURS_PER_MONTH
from sextant.facts.slo import METRICS, SLO
from sextant.law.calibration import BROKEN_MS
from sextant.pages.blocks import Widget
from sextant.pages.page import render
from sextant.points.frame import is_refused, limited
from sextant.predict.predictor import Draws

_TEMPLATE = Path(__file__).with_name("what_if.html.j2")
_WIDEST = 4.0
"""Limits go from the asked one / 4 to the asked one × 4; loads go further."""
_WIDEST_LOAD = 20.0
_COMPRESSION = 6
_N_LIMITS = 17
"""Limits of a request rate to choose from, each times the same factor."""
_DIGITS = 4


class RateBasis(NamedTuple):
    """What replicas bear of a request rate, by GPU profile."""

    first_anchor: int
    """Of the rates of all requests at which it was read: powers of `ANCHOR_STEP`."""
    steps: np.ndarray | None
    """Steps that a replica bears within each limit to choose from, metric by metric, (profiles,
    limits, rates, draws); -inf: nothing is borne. None: replicas were simulated, at the asked rate
    alone."""
    needs: np.ndarray
    """Fewest replicas at the asked rate, (profiles, draws), without steps."""
    limits_ms: Mapping[str, list[float]]
    """To choose from, by metric."""


class WhatIfBasis(NamedTuple):
    """What an answer rests on, by GPU profile and users of a replica."""

    slo: SLO
    prices: Mapping[str, float]  # USD per hour of each of the profiles
    users: np.ndarray
    """In rising order, shape (profiles, loads); where a profile has fewer loads, the last again."""
    limited_ms: Mapping[str, np.ndarray]
    """By metric, (draws, profiles, loads); NaN, also of too many failures, breaks the limit."""
    carried: np.ndarray  # what a replica carries in the SLO's unit, in the same shape
    usual_load: np.ndarray  # the same at median latencies, shape (profiles, loads)
    broken: Sequence[Mapping[str, Any]] = ()
    """Measured latencies of a predicted LLM. Where one breaks a limit, its load
    and larger loads are not served."""
    is_measured: bool = False  # Whether the one draw is what was measured, as eq. 1-3 decide.
    rate: RateBasis | None = None
    """Of a simulated rate, in place of latencies."""

    def offered_loads(self) -> list[float] | list[int]:
        """Return the loads to choose from."""
        if self.rate is not None and self.rate.steps is None:
            return [self.slo.load]
        loads = _two_digits(self.slo.load, _WIDEST_LOAD)
        if self.slo.users is None:
            return loads
        return sorted({round(load) for load in loads if load >= 1})

    def offered_limits(self) -> Mapping[str, list[float]]:
        """Return the limits to choose from, by metric."""
        if self.rate is not None:
            return self.rate.limits_ms
        limits = self.slo.limits.items()
        return {metric: _two_digits(limit.limit_ms, _WIDEST) for metric, limit in limits}


def of_draws(
    draws: Draws, prices: Mapping[str, float], slo: SLO, measured_points: pd.DataFrame | None
) -> WhatIfBasis:
    """Return what a predicted answer rests on: draws of one LLM, each profile at the same loads.
    `prices` are USD per hour of the profiles; `measured_points` are those of the LLM."""
    names, users = (np.unique(draws.X[of]) for of in ("gpu_profile_id", "users"))
    shape = len(names), len(users)
    limited_ms = slo.latencies(draws.samples_ms, draws.lengths)
    broken = []
    if measured_points is not None:
        is_bad = is_refused(measured_points, slo)
        measured_ms = {
            n: np.where(is_bad, BROKEN_MS, values_ms)
            for n, values_ms in limited(measured_points, slo).items()
        }
        for index, row in enumerate(measured_points.to_dict("records")):
            ms = [jsonable(values[index]) for values in measured_ms.values()]
            broken.append({"profile": row["gpu_profile_id"], "users": int(row["users"]), "ms": ms})
    return WhatIfBasis(
        slo,
        {name: prices[name] for name in names.tolist()},
        np.broadcast_to(users, shape),
        {name: values.reshape(-1, *shape) for name, values in limited_ms.items()},
        np.broadcast_to(draws.carried(slo), draws.samples_ms.shape[:2]).reshape(-1, *shape),
        draws.usual_load(slo).reshape(shape),
        broken,
    )


def of_arrivals(
    sizer: RateSizer, profile_ids: Sequence[str], prices: Mapping[str, float], slo: SLO
) -> WhatIfBasis:
    """Return what the answer to a request rate rests on: what a replica bears, at any rate.

    Where requests have to be simulated, it is the replicas at the asked rate.
    """
    none = np.empty(0)
    by_profile = {name: prices[name] for name in profile_ids}
    if sizer.is_read(slo):
        rate = _read_rate(sizer, profile_ids, slo)
    else:
        limits_ms = {metric: [limit.limit_ms] for metric, limit in slo.limits.items()}
        needs = sizer.needed(slo, profile_ids).to_numpy(float).T
        rate = RateBasis(0, None, needs, limits_ms)
    return WhatIfBasis(slo, by_profile, none, {}, none, none, rate=rate)


def _read_rate(sizer: RateSizer, profile_ids: Sequence[str], slo: SLO) -> RateBasis:
    """Return what replicas bear at rates and within limits around the asked ones."""
    ends = np.log([slo.load / _WIDEST_LOAD, slo.load * _WIDEST_LOAD]) / np.log(ANCHOR_STEP)
    anchors = range(int(np.floor(ends[0])), int(np.ceil(ends[1])) + 1)
    limits_ms = {metric: _spread_limits(limit.limit_ms) for metric, limit in slo.limits.items()}
    offered_ms = [*limits_ms.values()]
    by_profile = []
    for name in profile_ids:
        borne = sizer.borne_by(slo, name)
        by_rate = [np.stack(borne.steps_by_limit(anchor, offered_ms)) for anchor in anchors]
        steps = np.stack(by_rate, axis=1)[..., 1:]
        by_profile.append(np.full_like(steps, -np.inf) if sizer.is_refusing(slo, name) else steps)
    return RateBasis(anchors[0], np.stack(by_profile), np.empty(0), limits_ms)


def _spread_limits(limit_ms: float) -> list[float]:
    """Return limits of two digits around the asked one, and the asked one."""
    factors = np.geomspace(1 / _WIDEST, _WIDEST, _N_LIMITS)
    return sorted({*(float(f"{limit_ms * factor:.2g}") for factor in factors), limit_ms})


def of_points(latencies: pd.DataFrame, prices: Mapping[str, float], slo: SLO) -> WhatIfBasis | None:
    """Return what an answer from an LLM's points (`judged`) rests on, None without candidates."""
    latencies = latencies[latencies["gpu_profile_id"].isin(prices)]
    profile_curves = {name: curve for (_, name), curve in sorted(curves(latencies, slo).items())}
    if not profile_curves:
        return None
    n_loads = max(len(curve.users) for curve in profile_curves.values())

    def padded(rows: Iterable[np.ndarray], **how: Any) -> np.ndarray:
        return np.stack([np.pad(row, (0, n_loads - len(row)), **how) for row in rows])

    limited_ms = {}
    for name in slo.limits:  # a load that fails keeps no limit, however loose
        rows = [
            np.where(curve.failed_share > slo.allowed_failures, np.nan, curve.latencies_ms[name])
            for curve in profile_curves.values()
        ]
        limited_ms[name] = padded(rows, constant_values=np.nan)[None]
    users = padded([curve.users for curve in profile_curves.values()], mode="edge").astype(int)
    carried = padded([curve.carried for curve in profile_curves.values()], mode="edge")
    profile_prices = {name: prices[name] for name in profile_curves}
    return WhatIfBasis(
        slo, profile_prices, users, limited_ms, carried[None], carried, is_measured=True
    )


def what_if(basis: WhatIfBasis, risk: float | None) -> dict[str, Any]:
    """Return what the page's controls offer, and what its script decides from; JSON can hold it."""
    slo = basis.slo
    offered_ms = basis.offered_limits()
    facts = {
        "is_rate": slo.users is None,
        "is_measured": basis.is_measured,
        "load": {
            "value": slo.load if slo.load % 1 else int(slo.load),
            "offered": basis.offered_loads(),
        },
        "risk": risk,
        "limits": [
            {
                "key": metric,
                "label": METRICS[metric],
                "percentile": limit.percentile,
                "value": limit.limit_ms,
                "offered": offered_ms[metric],
            }
            for metric, limit in slo.limits.items()
        ],
        "profiles": basis.prices,
        "borne": None,
        "needed": None,
        "hours_per_month": HOURS_PER_MONTH,
        "most_counts": MOST_COUNTS,
        "worth": 1 + REWARD,
        "fair": FAIR,
        "safe": SAFE,
        "listed": LISTED,
        "users": basis.users.tolist(),
        "broken": basis.broken,
        "n_draws": len(basis.carried),
        "curves": "",
    }
    if basis.rate is not None:
        return facts | _rate_facts(basis.rate)
    return facts | _curves(basis, offered_ms)._asdict()


def _rate_facts(rate: RateBasis) -> dict[str, Any]:
    """Return what the page decides a request rate from."""
    if rate.steps is None:  # by profile and draw; null: no number is enough
        needed = [[int(n) if np.isfinite(n) else None for n in counts] for counts in rate.needs]
        return {"needed": needed, "users": [[0]], "n_draws": len(needed[0])}
    is_borne = np.isfinite(rate.steps)
    lowest = int(np.min(rate.steps, initial=0, where=is_borne))
    codes = np.where(is_borne, rate.steps - lowest + 1, 0).astype(int)  # 0: nothing is borne
    n_profiles, n_limits, n_anchors, n_draws = codes.shape
    # Draws in a common order, similar ones side by side, take fewer bytes.
    codes = codes[..., np.argsort(codes.mean(axis=(0, 1, 2)), kind="stable")]
    borne = {
        "first_anchor": rate.first_anchor,
        "anchor_step": ANCHOR_STEP,
        "n_anchors": n_anchors,
        "n_limits": n_limits,
        "steps_from": lowest - 1,
        "rate_steps": RATE_STEPS,
        "most_replicas": MOST_REPLICAS,
    }
    packed = _packed(codes.reshape(n_profiles * n_limits, n_anchors, n_draws))
    return {"borne": borne, "users": [[0]], "n_draws": n_draws, "curves": packed}


def _packed(values: np.ndarray) -> str:
    """Return whole numbers of (rows, columns, draws) as text.

    Kept are differences to the column before, and of first columns to the row before, modulo
    2**16: all low bytes, then all high ones, compressed.
    """
    differences = values.astype(np.uint16)
    differences[:, 1:] -= differences[:, :-1].copy()
    differences[1:, 0] = np.diff(differences[:, 0], axis=0)
    planes = (differences & 255).astype("u1"), (differences >> 8).astype("u1")
    data = b"".join(plane.tobytes() for plane in planes)
    return base64.b64encode(gzip.compress(data, _COMPRESSION, mtime=0)).decode()


class _LoadCurves(NamedTuple):
    """What the page decides from, of latencies: its fields are keys of the page's JSON."""

    medians_ms: Mapping[str, list[list[float]]]
    """By metric, profile and load."""
    carried: list[list[float]] | None
    """What a replica carries, by profile and load; None: the load is users."""
    steps_from: int | None
    """The lowest step of what a replica carries, which packed steps start from."""
    rate_steps: int
    curves: str
    """By draw, profile and load, packed."""


def _curves(basis: WhatIfBasis, offered_ms: Mapping[str, list[float]]) -> _LoadCurves:
    """Return latencies by draw, profile and load, packed, and their medians.

    The packed curves are small whole numbers that rise over the loads.
    """
    latencies_ms = basis.limited_ms
    carried = None
    steps_from = None
    # A load is served if all smaller ones are too, so the worst of these counts.
    rising = [
        np.searchsorted(offered_ms[metric], np.maximum.accumulate(latencies_ms[metric], axis=2))
        for metric in basis.slo.limits
    ]
    if basis.slo.users is None:
        # What a replica carries: of points as it is, of draws in steps, and at their median.
        carried = np.nan_to_num(np.maximum.accumulate(basis.usual_load, axis=1)).tolist()
        if not basis.is_measured:
            steps = in_steps(np.maximum.accumulate(basis.carried, axis=2)).astype(int)
            steps_from = int(steps.min())
            rising.append(steps - steps_from)
    by_profile = np.stack(rising).transpose(0, 2, 3, 1)
    packed = _packed(by_profile.reshape(-1, *by_profile.shape[2:]))

    medians_ms = {
        metric: [
            [float(f"{value:.{_DIGITS}g}") for value in row]
            for row in np.nan_to_num(np.median(values, axis=0))
        ]
        for metric, values in latencies_ms.items()
    }
    return _LoadCurves(medians_ms, carried, steps_from, RATE_STEPS, packed)


def what_if_widget(
    basis: WhatIfBasis, risk: float | None = None, id_prefix: str = "what-if", fold: str = ""
) -> Widget:
    """Return the part of a page in which a question is changed. Ids in it begin with
    `id_prefix`; where it is folded at first, `fold` says whose answer it is."""
    facts = {"what_if": what_if(basis, risk), "place": id_prefix, "fold": fold}
    html = render(_TEMPLATE, facts | {"as_script_data": as_script_data})
    files = (_TEMPLATE.with_name(name).read_text() for name in ("what_if.css", "what_if.js"))
    return Widget(html, *files)


def _two_digits(centre: float, widest: float) -> list[float]:
    """Return the numbers of two digits around the asked one, and the asked one."""
    low, high = np.log10([centre / widest, centre * widest])
    decades = range(int(np.floor(low)), int(np.floor(high)) + 1)
    numbers = {float(f"{digits}e{decade - 1}") for decade in decades for digits in range(10, 100)}
    return sorted(
        {number for number in numbers if centre / widest <= number <= centre * widest} | {centre}
    )


def as_script_data(data: Any) -> str:
    """Return JSON that can stand in a `<script>`: it has no `<`."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
