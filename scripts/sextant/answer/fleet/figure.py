"""The figure of a fleet: devices in use by pool and team."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from sextant.answer.fleet.problem import FleetPlan, PoolUse
from sextant.pages.charts import WIDTH_IN
from sextant.pages.figure import COLOURS, Axis, draw_panels, style

_OTHERS = "other teams"
_FREE = "#999999"
Uses = Mapping[tuple[str, str], np.ndarray]
"""Devices in use by pool and team, shape (slots,)."""


def draw_devices(plan: FleetPlan) -> str:
    """Draw devices in use by pool and team: bars, or areas over the day where they change."""
    uses, n_slots = devices_used(plan), len(plan.pools[0].devices_used)
    totals: Counter[str] = Counter()
    for (_, team), devices in uses.items():
        totals[team] += int(devices.sum())
    named = [team for team, _ in totals.most_common(len(COLOURS))]
    if len(totals) > len(COLOURS):
        named[-1] = _OTHERS
    colours = dict(zip(named, COLOURS, strict=False))
    look = {"marker": "s", "linestyle": "none"}
    legend = [(team, {"color": colour, **look}) for team, colour in colours.items()]
    draw = _draw_hours if n_slots > 1 else _draw_bar
    return draw_panels(
        [partial(draw, use, uses, colours) for use in plan.pools],
        "Devices in use by pool and team",
        width_in=WIDTH_IN,
        height_in=1.6 if n_slots > 1 else 0.75,
        margin_in=0.6,
        n_columns=1,
        legend=legend,
        labels=("Hour of the day" if n_slots > 1 else "Devices", ""),
    )


def devices_used(plan: FleetPlan) -> Uses:
    """Return devices in use by pool and team."""
    served = {each.demand.demand_id: each for each in plan.served}
    n_slots = len(plan.pools[0].devices_used)
    uses: defaultdict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(n_slots, int))
    for place in plan.placements:
        each = served[place.demand_id]
        uses[place.pool_id, each.demand.team][place.slot] += place.replicas * each.n_gpus
    return uses


def _by_colour(
    use: PoolUse, uses: Uses, colours: Mapping[str, str]
) -> Sequence[tuple[str, np.ndarray]]:
    """Return the devices of a pool by colour, the free ones last."""
    parts: defaultdict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(use.devices_used), int))
    for (pool_id, team), devices in uses.items():
        if pool_id == use.pool.pool_id:
            parts[colours.get(team) or colours[_OTHERS]] += devices
    n_devices = use.pool.nodes * use.pool.devices_per_node
    return [*parts.items(), (_FREE, n_devices - np.array(use.devices_used))]


def _draw_bar(use: PoolUse, uses: Uses, colours: Mapping[str, str], axes: Axes) -> None:
    left = 0
    for colour, (devices,) in _by_colour(use, uses, colours):
        is_free = colour == _FREE
        axes.barh(0, devices, 0.6, left, color=colour, alpha=0.3 if is_free else 0.9)
        left += devices
    style(axes, Axis("", low=0), Axis("", ticks=[0], names=[use.pool.pool_id]))
    axes.grid(visible=False, axis="y")


def _draw_hours(use: PoolUse, uses: Uses, colours: Mapping[str, str], axes: Axes) -> None:
    n_slots = len(use.devices_used)
    hours, base = np.linspace(0, 24, n_slots + 1), np.zeros(n_slots + 1)
    for colour, devices in _by_colour(use, uses, colours):
        top = base + np.append(devices, devices[-1])
        alpha = 0.3 if colour == _FREE else 0.9
        axes.fill_between(hours, base, top, step="post", color=colour, alpha=alpha, linewidth=0)
        base = top
    style(axes, Axis("", low=0, high=24), Axis("Devices", low=0))
    axes.set_title(use.pool.pool_id, fontsize=8.5, loc="left")
