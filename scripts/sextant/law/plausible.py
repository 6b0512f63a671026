"""Points that cannot be: more work than the kernels of their GPUs do in the time measured.

Where a prefix cache was on, or another pool computed the prompts, a latency is not that of the work
that the point states. Such points would teach the law that a GPU is faster than it is.
"""

import numpy as np
import pandas as pd

from sextant.law.effects import deployments
from sextant.law.fact_rows import fact_rows
from sextant.law.posterior import columns_of
from sextant.law.terms import LAW, mean_load, step_law
from sextant.pages.words import plural
from sextant.points.characterization import Characterization
from sextant.points.frame import TARGETS, FactTables, at_percentile

_MEDIANS = (50, 50)
"""Percentiles of nTTFT and ITL by which points are judged."""
_NAMED = 2
"""LLMs that a note names."""
MOST = 1.2
"""Work over time above which a point cannot be: kernels of one kind differ by that much."""


def work_over_time(X: pd.DataFrame, y_ms: np.ndarray) -> np.ndarray:
    """Return how much of the measured time the work alone takes, by what kernels reach, (rows,).

    In the time of a user's request each of the users has one prompt computed, and each output token
    takes a step in which all decode. Launches, the host and waits are left out.

    Args:
        X: fact rows.
        y_ms: nTTFT and ITL in ms, (rows, 2); NaN: not measured, and so is the result.
    """
    facts = columns_of(X)
    means = [parameter.mean for parameter in LAW.parameters.values()]
    law = step_law(np.tile(means, (len(X), 1)), facts)
    load = mean_load(facts)
    users = facts["users"]

    prompt_ms = law.prefill_token_ms * load.new_tokens + law.prefill_pair_ms * load.pairs
    touched = 1 - (1 - law.expert_share) ** users
    read_ms = law.dense_ms + law.expert_ms * touched
    step_ms = read_ms + law.kv_token_ms * load.context_tokens * users
    work_ms = users * prompt_ms + load.output_tokens * step_ms
    time_ms = y_ms[:, 0] * load.input_tokens + load.output_tokens * y_ms[:, 1]
    return np.asarray(work_ms / time_ms)


def impossible(X: pd.DataFrame, y_ms: np.ndarray) -> np.ndarray:
    """Return which points cannot be, (rows,): also all of a deployment of which half cannot.

    Servers without CUDA graphs are taken as they are: their batches are padded.
    """
    is_over = (work_over_time(X, y_ms) > MOST) & (X["is_eager"] == 0).to_numpy()
    share = pd.Series(is_over, X.index).groupby(deployments(X)).transform("mean")
    return is_over | (share > 0.5).to_numpy()


def set_aside_note(llm_ids: pd.Series) -> list[str]:
    """Return a sentence with the points that cannot be, given their LLMs; nothing if none is."""
    counts = llm_ids.value_counts()
    if counts.empty:
        return []
    named = [f"{n} of {llm_id}" for llm_id, n in counts.head(_NAMED).items()]
    if len(counts) > _NAMED:
        named.append(f"{counts[_NAMED:].sum()} of others")
    return [
        f"Set aside: {plural(int(counts.sum()), 'point')} ({', '.join(named)}), whose work takes "
        "longer than the time measured: a prefix cache was on, or other GPUs computed the prompts."
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
