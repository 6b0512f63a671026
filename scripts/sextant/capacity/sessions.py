"""Sessions of a trace that start at a rate; `trace_arrivals.read_turns` has what turns follow."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.pages.words import HOUR_S
from sextant.workload.requests import RequestStream


class SessionTraffic(NamedTuple):
    """Sessions of a trace that start at random at a steady rate, each draw with others."""

    demand: RequestStream  # with turns
    per_hour: float
    duration_s: float
    seed: int

    def drawn(self, seed: int) -> RequestStream:
        """Return the turns of a time; sessions that began before it are met where they are."""
        whole = self.demand
        assert whole.turns is not None
        session = whole.turns.session
        places = np.flatnonzero(session >= 0)
        of = pd.Series(places).groupby(session[places]).agg(list)
        starts_s = {code: whole.arrival_s[own[0]] for code, own in of.items()}
        longest_s = max(whole.arrival_s[own[-1]] - whole.arrival_s[own[0]] for own in of)
        rng = np.random.default_rng([self.seed, seed])
        span_s = self.duration_s + longest_s
        n = rng.poisson(self.per_hour * span_s / HOUR_S)
        taken, offsets = [], []
        for copy in range(n):
            code = rng.choice(of.index)
            offset_s = rng.uniform(-longest_s, self.duration_s) - starts_s[code]
            own = np.array(of[code])
            at_s = whole.arrival_s[own] + offset_s
            own = own[(at_s >= 0) & (at_s < self.duration_s)]
            taken.append(np.stack([own, np.full(len(own), copy)]))
            offsets.append(np.full(len(own), offset_s))
        picked, copies = np.concatenate(taken, axis=1) if taken else np.empty((2, 0), int)
        arrival_s = whole.arrival_s[picked] + np.concatenate(offsets or [np.empty(0)])
        if not len(picked):
            fix = "give more sessions an hour, or a longer --duration"
            raise InputError("no session arrives", field="--sessions", fix=fix)
        order = np.argsort(arrival_s, kind="stable")
        picked, copies = picked[order], copies[order]
        name = f"{whole.name}, {self.per_hour:g} sessions an hour"
        made = replace(whole.at(picked), name=name, arrival_s=arrival_s[order])
        origin = replace(made.origin, start_time=None, clock_step_s=None)
        made = replace(made, duration_s=self.duration_s, origin=origin)
        made = made.as_copies_of(whole, picked, copies)
        assert made.turns is not None
        return replace(made, turns=made.turns._replace(session=copies))
