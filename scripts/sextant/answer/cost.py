"""What a million tokens cost on a deployment, and how much of it the load uses."""

from typing import Any

import pandas as pd

from sextant.answer.predicted import Forecast
from sextant.decide.outlook import token_prices

_STEP = ["launch_ms", "weights_ms", "kv_ms", "sequences_ms"]
"""Terms of a step of decode, without the prompts that it prefills."""


def cost(made: Forecast, chosen: dict[str, Any], latency: dict[str, Any]) -> dict[str, Any]:
    """Return USD per million input and output tokens of the chosen deployment at its load.

    `usd_per_hour` is split by the device time that a request's prefill and decode take, from the
    terms of the law; a predictor without terms splits it by tokens (`split`: `time` or `tokens`).
    `requests_per_s` is what is served, by Little's law where users are asked for; `utilisation`
    the load over the most that the replicas carry within the limits, at median latencies.
    """
    input_tokens, output_tokens = made.lengths[0]
    rate = made.slo.request_rate_rps or chosen["replicas"] * latency["requests_per_s"]
    share = _prefill_share(made, chosen["gpu_profile_id"], latency["users"])
    prices = token_prices(chosen["usd_per_hour"], rate, made.lengths[0], share)
    most = latency["load_median"] * chosen["replicas"]
    return {
        "usd_per_million_input_tokens": prices[0],
        "usd_per_million_output_tokens": prices[1],
        "split": "tokens" if share is None else "time",
        "prefill_share": input_tokens / (input_tokens + output_tokens) if share is None else share,
        "requests_per_s": rate,
        "utilisation": made.slo.load / most if most else None,
    }


def _prefill_share(made: Forecast, profile_id: str, users: int) -> float | None:
    """Return the share of a request's device time that its prefill takes, None without terms.

    A step of decode is shared by the requests of its batch.
    """
    explain = getattr(made.model, "explain", None)
    if explain is None:
        return None
    row: pd.Series = explain(made.subject.rows_at(made.model, [users], [profile_id])).iloc[0]
    if not {"prefill_ms", "itl_batch", *_STEP} <= set(row.index):
        return None
    step_ms = row[_STEP].sum() + row.get("overlap_ms", 0.0)
    decode_ms = made.lengths[0, 1] * step_ms / max(row["itl_batch"], 1.0)
    return float(row["prefill_ms"] / (row["prefill_ms"] + decode_ms))
