"""Points that cannot be: their latencies are not those of the work, or of the users, they state.

Where a prefix cache was on, or another pool computed the prompts, kernels would take longer for the
work than was measured. Such points would teach the law that a GPU is faster than it is. Where a
server, or what loads it, keeps requests back, fewer run at once than users are stated: steps are
short for so many users, and first tokens come late for no reason that the law knows.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.answer_times import requests_decoding
from sextant.law.effects import deployments
from sextant.law.fact_rows import fact_rows
from sextant.law.means import MeanLoad
from sextant.law.posterior import Columns, columns_of
from sextant.law.terms import LAW, batch_limits, mean_load, step_law
from sextant.pages.words import plural
from sextant.points.characterization import Characterization
from sextant.points.frame import TARGETS, FactTables, at_percentile
from sextant.simulate.server import StepLaw

_MEDIANS = (50, 50)
"""Percentiles of nTTFT and ITL by which points are judged."""
_NAMED = 2
"""LLMs that a note names."""
MOST = 1.2
"""Work over time above which a point cannot be: kernels of one kind differ by that much."""
_LATE = 2.0
"""TTFT over the time of all that may be ahead of a prompt, above which requests were kept back."""
_STEPS_AHEAD = 3
"""Steps that a prompt may wait for where nothing holds it back."""
_FEW = 0.5
"""Share of the requests that the memory surely holds, below which it holds nobody back."""
_OTHER_MEMORY = 0.1
"""Share of a server's memory that may be used otherwise than the law takes it."""


class _Likely(NamedTuple):
    """How the server of each row works by what kernels reach, and its load."""

    phi: np.ndarray  #: Logarithms of the parameters, (rows, parameters).
    facts: Columns
    law: StepLaw
    load: MeanLoad

    @classmethod
    def of(cls, X: pd.DataFrame) -> "_Likely":
        """Return it for fact rows."""
        facts = columns_of(X)
        means = [parameter.mean for parameter in LAW.parameters.values()]
        phi = np.tile(means, (len(X), 1))
        return cls(phi, facts, step_law(phi, facts), mean_load(facts))

    @property
    def prompts_ms(self) -> np.ndarray:
        """Time of one prompt of each user."""
        one_ms = self.law.prefill_token_ms * self.load.new_tokens
        one_ms = one_ms + self.law.prefill_pair_ms * self.load.pairs
        return np.asarray(self.facts["users"] * one_ms)

    @property
    def held(self) -> np.ndarray:
        """Requests that the memory surely holds."""
        facts = self.facts
        kv_bytes = facts["kv_tokens"] * facts["kv_bytes_per_token"]
        weight_bytes = facts["attention_bytes"] * facts["data_parallel"]
        weight_bytes = weight_bytes + facts["dense_bytes"] + facts["expert_bytes"]
        other_bytes = _OTHER_MEMORY * (weight_bytes + kv_bytes)
        sure = np.maximum(1 - other_bytes / np.maximum(kv_bytes, 1.0), 0.0)
        return np.asarray(sure * batch_limits(self.phi, facts).most_decoding(self.load))


def work_over_time(X: pd.DataFrame, y_ms: np.ndarray) -> np.ndarray:
    """Return how much of the measured time the work alone takes, by what kernels reach, (rows,).

    In the time of a user's request each of the users has one prompt computed, and each output token
    takes a step in which all decode. Launches, the host and waits are left out.

    Args:
        X: fact rows.
        y_ms: nTTFT and ITL in ms, (rows, 2); NaN: not measured, and so is the result.
    """
    likely = _Likely.of(X)
    law = likely.law
    load = likely.load
    users = likely.facts["users"]
    touched = 1 - (1 - law.expert_share) ** users
    read_ms = law.dense_ms + law.expert_ms * touched
    step_ms = read_ms + law.kv_token_ms * load.context_tokens * users
    work_ms = likely.prompts_ms + load.output_tokens * step_ms
    time_ms = y_ms[:, 0] * load.input_tokens + load.output_tokens * y_ms[:, 1]
    return np.asarray(work_ms / time_ms)


def kept_back(X: pd.DataFrame, y_ms: np.ndarray) -> np.ndarray:
    """Return at which points fewer requests ran at once than users are stated, (rows,).

    By Little's law the share of a user's time after the first token is the share of the users that
    decode. At these points few do beside free memory, and first tokens come later than the prompts
    of all users take.

    Args:
        X: fact rows.
        y_ms: nTTFT and ITL in ms, (rows, 2); NaN: not measured, and nothing is said.
    """
    likely = _Likely.of(X)
    facts = likely.facts
    ttft_ms = y_ms[:, 0] * likely.load.input_tokens
    later_ms = y_ms[:, 1] * likely.load.later_tokens
    decoding = requests_decoding(facts["users"], ttft_ms, later_ms)
    steps_ms = (_STEPS_AHEAD + facts["wait_steps"]) * y_ms[:, 1]
    is_late = ttft_ms > _LATE * (likely.prompts_ms + steps_ms)
    is_few = decoding < _FEW * np.minimum(facts["users"], likely.held)
    return np.asarray(is_late & is_few)


def impossible(X: pd.DataFrame, y_ms: np.ndarray) -> np.ndarray:
    """Return which points cannot be, (rows,).

    They state more work than time (then so does all of a deployment of which more than half does),
    or users whose requests were kept back (then, of this deployment and as many users, requests of
    all lengths were). Servers without CUDA graphs are taken as they are: they pad batches, and
    gather prompts.
    """
    deployment = deployments(X)
    has_graphs = (X["is_eager"] == 0).to_numpy()
    is_over = pd.Series((work_over_time(X, y_ms) > MOST) & has_graphs, X.index)
    share = is_over.groupby(deployment).transform("mean")
    is_kept = pd.Series(kept_back(X, y_ms) & has_graphs, X.index)
    is_like_kept = is_kept.groupby([deployment, X["users"]]).transform("any")
    return np.asarray(is_over | (share > 0.5) | is_like_kept)


def set_aside_note(llm_ids: pd.Series) -> list[str]:
    """Return a sentence with the points that cannot be, given their LLMs; nothing if none is."""
    counts = llm_ids.value_counts()
    if counts.empty:
        return []
    named = [f"{n} of {llm_id}" for llm_id, n in counts.head(_NAMED).items()]
    if len(counts) > _NAMED:
        named.append(f"{counts[_NAMED:].sum()} of others")
    return [
        f"Set aside: {plural(int(counts.sum()), 'point')} ({', '.join(named)}) that cannot be: "
        "their work takes longer than the time measured (a prefix cache was on, or other GPUs "
        "computed the prompts), or fewer requests ran at once than users are stated."
    ]


def points_notes(characterization: Characterization) -> list[str]:
    """Return what `set_aside_note` says of a source's points, by their medians."""
    points = at_percentile(characterization.points, _MEDIANS)
    points = points[points["users"].notna()].reset_index(drop=True)
    facts = FactTables(characterization.llms, characterization.profiles, characterization.features)
    if points.empty:
        return []
    is_set_aside = impossible(fact_rows(points, facts), points[TARGETS].to_numpy(float))
    return set_aside_note(points.loc[is_set_aside, "llm_id"])
