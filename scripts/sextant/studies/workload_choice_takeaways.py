"""The takeaways of Papaioannou and Doudali's poster, judged by what was measured."""

import pandas as pd

from sextant.pages.wording import listed, number, plural
from sextant.studies.findings import Finding


def takeaways(points: pd.DataFrame, effects: pd.DataFrame) -> list[Finding]:
    """Return each takeaway, what was seen here, and whether it holds.

    An effect of the cache counts where its interval excludes 1, at the heaviest level of each
    scenario; use cases are told apart by the mean inputs that they were measured with.
    """
    lengths = points[points["n_ok"] > 0].groupby("workload_id")
    lengths = lengths[["mean_input_tokens", "mean_output_tokens"]].mean()
    heaviest = effects[effects["is_heaviest"]] if len(effects) else effects
    return [
        Finding(
            "The use case decides the length of inputs more than of outputs.", *_lengths(lengths)
        ),
        Finding(
            "Use cases with large inputs (summarization, conversation) perform worse.",
            *_classes(points, lengths),
        ),
        Finding(
            "A larger KV cache improves latency-critical inference, except summarization.",
            *_larger_cache(heaviest, "latency-critical", lengths, is_longest_excepted=True),
        ),
        Finding(
            "A larger KV cache always improves best-effort inference.",
            *_larger_cache(heaviest, "best-effort", lengths, is_longest_excepted=False),
        ),
    ]


def _lengths(lengths: pd.DataFrame) -> tuple[str, bool | None]:
    if len(lengths) < 2:
        return "Fewer than two use cases were served.", None
    inputs, outputs = (lengths[name].max() / lengths[name].min() for name in lengths)
    here = (
        f"Mean inputs differ {number(inputs)} times between use cases, mean outputs "
        f"{number(outputs)} times."
    )
    return here, bool(inputs > outputs)


def _classes(points: pd.DataFrame, lengths: pd.DataFrame) -> tuple[str, bool | None]:
    """Compare each use case of large inputs with each of small ones, all else being equal.

    The two classes lie above and below the geometric middle of the mean inputs; better is a
    higher throughput if best-effort, a shorter time per output token if latency-critical.
    """
    if len(lengths) < 2:
        return "Fewer than two use cases were served.", None
    inputs = lengths["mean_input_tokens"]
    large = {*inputs.index[inputs > (inputs.min() * inputs.max()) ** 0.5]}
    served = points[points["n_ok"] > 0]
    n_worse = n_pairs = 0
    same = ["llm_id", "gpu_profile_id", "scenario_id", "level", "batch_weight_tokens"]
    for _, own in served.groupby(same):
        is_large = own["workload_id"].isin(large)
        name, sign = "throughput_tok_s", 1
        if (own["inference"] == "latency-critical").all():
            name, sign = "token_latency_ms", -1
        for value in sign * own.loc[is_large, name]:
            others = sign * own.loc[~is_large, name]
            n_worse, n_pairs = n_worse + int((value < others).sum()), n_pairs + len(others)
    if not n_pairs:
        return "No two use cases were measured in the same scenario with the same cache.", None
    here = (
        f"Large are the inputs of {listed(sorted(large))}. In {n_worse} of {n_pairs} pairs under "
        "the same load and cache the one with large inputs performs worse."
    )
    return here, n_worse == n_pairs


def _larger_cache(
    effects: pd.DataFrame, inference: str, lengths: pd.DataFrame, *, is_longest_excepted: bool
) -> tuple[str, bool | None]:
    own = effects[effects["inference"] == inference] if len(effects) else effects
    if own.empty:
        return f"No {inference} use case was measured with two cache sizes.", None
    verdicts = own.groupby("verdict")["workload_id"].agg(lambda names: sorted({*names}))
    here = "; ".join(f"{verdict}: {listed(names)}" for verdict, names in verdicts.items())
    here = f"Of {plural(own['workload_id'].nunique(), 'use case')} {here}"
    judged = own
    if is_longest_excepted and own["workload_id"].nunique() > 1:
        longest = lengths["mean_input_tokens"].idxmax()
        judged = own[own["workload_id"] != longest]
        here += f" (the longest inputs: {longest})"
    # What is not clear neither confirms nor refutes.
    holds = None if (judged["verdict"] != "worse").all() else False
    return f"{here}.", True if (judged["verdict"] == "better").all() else holds
