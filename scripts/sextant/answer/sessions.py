"""Sessions of a trace: turns that arrive when the answer to another one was read and thought about.

A turn follows the last answer of its session that was there when it arrived, as the trace's
`e2e_ms` says; what lies between is think time. Turns that overlap, as of agents at work side by
side, follow the same answer: a session is a tree.
"""

from bisect import bisect_right, insort
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.demand import Demand
from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, read_parquet
from sextant.pages import HOUR_S


def with_turns(demand: Demand, trace: str, rows: np.ndarray) -> Demand:
    """Return the demand of a trace whose turns wait for answers; `rows` are its rows of the trace.

    Raises InputError: the trace has no sessions, or not how long its answers took.
    """
    table = read_parquet(trace, ["session_id", "e2e_ms"], fix=MAKE_TRACE_AGAIN).to_pandas()
    table = table.iloc[rows]
    if not table["session_id"].duplicated().any() or table["session_id"].isna().all():
        problem, fix = "no session has two requests", "leave out --sessions"
        raise InputError(problem, file=trace, field="session_id", fix=fix)
    if table["e2e_ms"].isna().all():
        problem = "without answers' times it is not known how long somebody thought"
        raise InputError(problem, file=trace, field="e2e_ms", fix="leave out --sessions")
    end_s = demand.arrival_s + np.nan_to_num(table["e2e_ms"].to_numpy(float)) / 1e3
    session = pd.factorize(table["session_id"])[0]
    parent, think_s = np.full(demand.n, -1), np.zeros(demand.n)
    ended: dict[int, list[tuple[float, int]]] = {}
    for place in np.flatnonzero(session >= 0).tolist():
        own = ended.setdefault(int(session[place]), [])
        if n := bisect_right(own, (demand.arrival_s[place], demand.n)):
            at_s, parent[place] = own[n - 1]
            think_s[place] = demand.arrival_s[place] - at_s
        insort(own, (float(end_s[place]), place))
    return replace(demand, parent=parent, think_s=think_s, session=session)


class SessionTraffic(NamedTuple):
    """Sessions of a trace that start at random at a steady rate, each draw with others."""

    demand: Demand  # as `with_turns` returns it
    per_hour: float
    duration_s: float
    seed: int

    def drawn(self, seed: int) -> Demand:
        """Return the turns of a time; sessions that began before it are met where they are."""
        whole = self.demand
        assert whole.session is not None
        assert whole.parent is not None
        places = np.flatnonzero(whole.session >= 0)
        of = pd.Series(places).groupby(whole.session[places]).agg(list)
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
        made = replace(made, duration_s=self.duration_s, start_time=None, clock_step_s=None)
        return replace(made.copied(whole, picked, copies), session=copies)
