"""Steps that the times of tokens show, and the law that is closest to them."""

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from sextant.simulate.simulation import StepLaw

_APART = 0.25
"""Of the median gap of an answer's tokens: tokens with a longer gap come from two steps."""
_LEAST_STEPS = 200
_COMPUTED = ("prompts", "prompt_tokens", "sequences", "context_tokens")


def measured_steps(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of one level in the order of time.

    Columns are `duration_ms, prompts, prompt_tokens, sequences, context_tokens`. A step is left out
    where the time before it was idle, or where an answer got two tokens or goes on after it missed
    a step: what preemption or a client's pause adds is not known. All are where the times are not
    those of tokens.

    Args:
        requests: `input_tokens, output_tokens, sent_s, token_offsets_ms` (from `sent_s`).
    """
    counts = requests["token_offsets_ms"].map(len).to_numpy()
    if (counts != requests["output_tokens"]).any():
        return pd.DataFrame(columns=["duration_ms", *_COMPUTED], dtype=float)
    tokens = pd.DataFrame(
        {
            "request": np.repeat(np.arange(len(requests)), counts),
            "place": np.concatenate([np.arange(count) for count in counts]),
            "prompt": np.repeat(requests["input_tokens"].to_numpy(), counts),
            "at_ms": np.concatenate(list(requests["token_offsets_ms"]))
            + np.repeat(1e3 * requests["sent_s"].to_numpy(), counts),
        }
    )
    gaps_ms = tokens["at_ms"].diff()[tokens["place"] > 0]
    tokens = tokens.sort_values("at_ms", kind="stable")
    tokens["step"] = (tokens["at_ms"].diff() > _APART * gaps_ms.median()).cumsum()
    after = tokens.groupby("request")["step"].diff()
    is_first = tokens["place"] == 0
    steps = pd.DataFrame(
        {
            "at_ms": tokens["at_ms"],
            "is_odd": after.notna() & (after != 1),
            "prompts": is_first,
            "prompt_tokens": tokens["prompt"].where(is_first, 0),
            "sequences": ~is_first,
            "context_tokens": (tokens["prompt"] + tokens["place"]).where(~is_first, 0),
        }
    ).groupby(tokens["step"])
    steps = steps.agg({"at_ms": "min"} | dict.fromkeys(("is_odd", *_COMPUTED), "sum"))
    steps.insert(0, "duration_ms", steps.pop("at_ms").diff())
    kept = (steps["sequences"] > 0) & (steps["is_odd"] == 0) & steps["duration_ms"].notna()
    return steps.loc[kept, ["duration_ms", *_COMPUTED]].reset_index(drop=True)


def law_of_steps(steps: pd.DataFrame) -> StepLaw | None:
    """Return the law that is closest to `measured_steps` in least squares; None of too few steps.

    Its terms are no less than 0; `request_ms`, which no step shows, is 0.
    """
    if len(steps) < _LEAST_STEPS:
        return None
    computed = steps[["sequences", "context_tokens", "prompt_tokens", "prompts"]].to_numpy(float)
    computed[:, 3] = computed[:, 3] > 0
    terms = np.column_stack([np.ones(len(steps)), computed])
    scale = terms.max(axis=0).clip(min=1)
    found = nnls(terms / scale, steps["duration_ms"].to_numpy())[0] / scale
    any_ms, sequence_ms, token_ms, prefill_ms, prompt_ms = map(float, found)
    # What a step takes whatever it computes: the client cannot separate the weights from the rest.
    steady = StepLaw(any_ms / 2, any_ms / 2, sequence_ms, token_ms, prefill_ms)
    return replace(steady, prompt_step_ms=prompt_ms)
