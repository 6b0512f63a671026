"""Sessions of a trace that start at a rate; `trace_arrivals.read_turns` reads their turns."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.pages.words import HOUR_S
from sextant.workload.requests import RequestStream


class SessionTraffic(NamedTuple):
    """Sessions of a trace that start at random at a steady rate; each draw picks other sessions.

    More traffic is more sessions an hour.
    """

    demand: RequestStream  # with turns
    per_hour: float
    duration_s: float
    seed: int

    def scaled(self, factor: float) -> "SessionTraffic":
        """Return the sessions with `factor` times as many of them an hour."""
        return self._replace(per_hour=factor * self.per_hour)

    def drawn(self, seed: int) -> RequestStream:
        """Return the turns of `duration_s`; sessions that began earlier are in their middle."""
        whole = self.demand
        assert whole.turns is not None
        session = whole.turns.session
        turn_rows = np.flatnonzero(session >= 0)
        rows_by_session = pd.Series(turn_rows).groupby(session[turn_rows]).agg(list)
        starts_s = {code: whole.arrival_s[rows[0]] for code, rows in rows_by_session.items()}
        longest_s = max(
            whole.arrival_s[rows[-1]] - whole.arrival_s[rows[0]] for rows in rows_by_session
        )
        rng = np.random.default_rng([self.seed, seed])
        span_s = self.duration_s + longest_s
        n = rng.poisson(self.per_hour * span_s / HOUR_S)
        taken = []
        offsets = []
        for copy in range(n):
            code = rng.choice(rows_by_session.index)
            offset_s = rng.uniform(-longest_s, self.duration_s) - starts_s[code]
            rows = np.array(rows_by_session[code])
            at_s = whole.arrival_s[rows] + offset_s
            rows = rows[(at_s >= 0) & (at_s < self.duration_s)]
            taken.append(np.stack([rows, np.full(len(rows), copy)]))
            offsets.append(np.full(len(rows), offset_s))
        picked, copies = np.concatenate(taken, axis=1) if taken else np.empty((2, 0), int)
        arrival_s = whole.arrival_s[picked] + np.concatenate(offsets or [np.empty(0)])
        if not len(picked):
            fix = "give more sessions an hour, or a longer --duration"
            raise InputError("no session arrives", field="--sessions", fix=fix)
        order = np.argsort(arrival_s, kind="stable")
        picked = picked[order]
        copies = copies[order]
        name = f"{whole.name}, {self.per_hour:g} sessions an hour"
        requests = replace(whole.at(picked), name=name, arrival_s=arrival_s[order])
        origin = replace(requests.origin, start_time=None, clock_step_s=None)
        requests = replace(requests, duration_s=self.duration_s, origin=origin)
        requests = requests.as_copies_of(whole, picked, copies)
        assert requests.turns is not None
        return replace(requests, turns=requests.turns._replace(session=copies))
