"""Steps that the times of tokens show, and the law that is closest to them."""

import numpy as np
import pandas as pd

from sextant.simulate.server import StepLaw

_APART = 0.25
"""Share of the median gap of an answer's tokens: a longer gap separates two steps."""
_LEAST_STEPS = 200
_COMPUTED = ("prompts", "prompt_tokens", "sequences", "context_tokens")


def measured_steps(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of one level in the order of time.

    Columns are `duration_ms, prompts, prompt_tokens, sequences, context_tokens`. Left out are steps
    after an idle time, and steps in which an answer got two tokens or goes on after it missed a
    step: what preemption or a client's pause adds is not known. There are no steps where a request
    has not one time for each of its tokens.

    Args:
        requests: `input_tokens, output_tokens, sent_s, token_offsets_ms` (from `sent_s`).
    """
    counts = requests["token_offsets_ms"].map(len).to_numpy()
    if (counts != requests["output_tokens"]).any():
        return pd.DataFrame(columns=["duration_ms", *_COMPUTED], dtype=float)
    tokens = pd.DataFrame(
        {
            "request": np.repeat(np.arange(len(requests)), counts),
            "number": np.concatenate([np.arange(count) for count in counts]),
            "prompt": np.repeat(requests["input_tokens"].to_numpy(), counts),
            "at_ms": np.concatenate(list(requests["token_offsets_ms"]))
            + np.repeat(1e3 * requests["sent_s"].to_numpy(), counts),
        }
    )
    gaps_ms = tokens["at_ms"].diff()[tokens["number"] > 0]
    tokens = tokens.sort_values("at_ms", kind="stable")
    tokens["step"] = (tokens["at_ms"].diff() > _APART * gaps_ms.median()).cumsum()

    steps_since_last = tokens.groupby("request")["step"].diff()
    is_first = tokens["number"] == 0
    by_step = pd.DataFrame(
        {
            "at_ms": tokens["at_ms"],
            "is_odd": steps_since_last.notna() & (steps_since_last != 1),
            "prompts": is_first,
            "prompt_tokens": tokens["prompt"].where(is_first, 0),
            "sequences": ~is_first,
            "context_tokens": (tokens["prompt"] + tokens["number"]).where(~is_first, 0),
        }
    ).groupby(tokens["step"])
    steps = by_step.agg({"at_ms": "min"} | dict.fromkeys(("is_odd", *_COMPUTED), "sum"))
    steps.insert(0, "duration_ms", steps.pop("at_ms").diff())
    is_kept = (steps["sequences"] > 0) & (steps["is_odd"] == 0) & steps["duration_ms"].notna()
    return steps.loc[is_kept, ["duration_ms", *_COMPUTED]].reset_index(drop=True)


def law_of_steps(steps: pd.DataFrame) -> StepLaw | None:
    """Return the law closest to `measured_steps` in least squares; None where steps are too few.

    Its terms are no less than 0; `request_ms`, which no step shows, is 0.
    """
    if len(steps) < _LEAST_STEPS:
        return None
    from scipy.optimize import nnls  # few questions have a server's log

    computed = steps[["sequences", "context_tokens", "prompt_tokens", "prompts"]].to_numpy(float)
    computed[:, 3] = computed[:, 3] > 0
    columns = np.column_stack([np.ones(len(steps)), computed])
    scale = columns.max(axis=0).clip(min=1)
    terms = nnls(columns / scale, steps["duration_ms"].to_numpy())[0] / scale
    any_ms, sequence_ms, kv_token_ms, prefill_token_ms, prompt_step_ms = map(float, terms)
    return StepLaw(
        # The client cannot tell the weights from the rest of what every step takes.
        floor_ms=any_ms / 2,
        dense_ms=any_ms / 2,
        sequence_ms=sequence_ms,
        kv_token_ms=kv_token_ms,
        prefill_token_ms=prefill_token_ms,
        prompt_step_ms=prompt_step_ms,
    )
