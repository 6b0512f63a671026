"""Loads at which a deployment was observed, and the probe that calibrates the law by them."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import write_text
from sextant.facts.answer_times import requests_in_flight
from sextant.rightsize.question import Deployed
from sextant.trace.observed import Observed, ObservedSlot, joined_slots

_MOST_POINTS = 3
_RATIO = 1.5
"""Ratio of the highest to the lowest rate, from which on loads are told apart."""
_ROUNDS = 10
"""Rounds in which groups of rates find their centres."""
_FEW = 30
"""Answered requests below which a slot's latencies say little."""
_MOST_WAITING = 0.2
"""Share of the requests in flight that wait, above which the servers are behind."""
MEANS = ("ttft", "itl", "tpot", "e2e")


@dataclass(frozen=True, eq=False)
class ObservedPoint:
    """A load at which the deployment was observed: slots of about the same rate."""

    slot: ObservedSlot
    replica_rps: float
    """Answered requests a second of a replica."""

    def mean_ms(self, metric: str) -> float | None:
        """Return the mean of a latency; None: not observed."""
        histogram = self.slot.latencies_ms.get(metric)
        mean = math.nan if histogram is None else histogram.mean
        return mean if math.isfinite(mean) else None

    @property
    def gap_ms(self) -> float | None:
        """The mean time between tokens: ITL, else TPOT; None: not observed."""
        itl_ms = self.mean_ms("itl")
        return self.mean_ms("tpot") if itl_ms is None else itl_ms

    @property
    def in_flight(self) -> float | None:
        """Requests that are answered at a time, by Little's law; None: E2E was not observed."""
        e2e_ms = self.mean_ms("e2e")
        return None if e2e_ms is None else requests_in_flight(self.slot.rate_rps, e2e_ms)


def observed_points(observed: Observed, deployed: Deployed) -> list[ObservedPoint]:
    """Return up to three loads, the lowest first; none without latencies.

    Times in which the servers were behind are left out: no load was steady then.

    Raises:
        InputError: nothing was answered.
    """
    slots = [slot for slot in observed.slots if slot.n_answered]
    if not slots:
        fix = "give metrics or a trace with answered requests"
        raise InputError("no request was answered", field="--trace", fix=fix)
    timed = [slot for slot in slots if slot.latencies_ms and not is_behind(slot)]
    if not timed:
        return []
    usable = [slot for slot in timed if slot.n_answered >= _FEW] or [joined_slots(timed)]

    group = _groups(np.array([slot.rate_rps for slot in usable]))
    points = []
    for number in np.unique(group).tolist():
        slot = joined_slots([it for it, of in zip(usable, group, strict=True) if of == number])
        points.append(ObservedPoint(slot, slot.rate_rps / deployed.replicas))
    return points


def is_behind(slot: ObservedSlot) -> bool:
    """Return whether many requests waited: then more may have come than were answered."""
    waiting = slot.waiting or 0.0
    return waiting > 1 and waiting > _MOST_WAITING * (waiting + (slot.running or 0.0))


def _groups(rates_rps: np.ndarray) -> np.ndarray:
    """Return the group of each rate, from 0 on: rates that are near each other share one."""
    if rates_rps.max() <= _RATIO * rates_rps.min():
        return np.zeros(len(rates_rps), int)
    logs = np.log(rates_rps)
    centres = np.linspace(logs.min(), logs.max(), _MOST_POINTS)
    group = np.zeros(len(logs), int)
    for _ in range(_ROUNDS):
        group = np.abs(logs[:, None] - centres).argmin(axis=1)
        for number in np.unique(group).tolist():
            centres[number] = logs[group == number].mean()
    return group


def write_probe(points: Sequence[ObservedPoint], deployed: Deployed, path: Path) -> None:
    """Write loads as a probe: a row per load, with the means of a replica's requests."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *("gpu_profile_id", "request_rate_rps", "input_tokens", "output_tokens"),
            *("ttft_ms", "itl_ms", "e2e_ms"),
        ]
    )
    for point in points:
        slot = point.slot
        figures = [point.mean_ms("ttft"), point.gap_ms, point.mean_ms("e2e")]
        if figures[0] is not None and figures[1] is not None:
            figures[2] = None  # that of requests of other lengths contradicts the two in part
        lengths = [slot.input_tokens, slot.output_tokens]
        cells = ["" if it is None else f"{it:.6g}" for it in (*lengths, *figures)]
        writer.writerow([deployed.gpu_profile_id, f"{point.replica_rps:.6g}", *cells])
    write_text(path, text.getvalue())
