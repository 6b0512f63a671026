"""The study `workload_choice`: what a larger KV cache brings to which use case."""

import numpy as np
import pandas as pd
import pytest

from cells import TOO_LARGE, request, study_data, text_of, write_cell
from sextant.studies.workload_choice import analyse, takeaways

LLM = "demo-opt-6m"  # 4 layers × 2 × 256 × 2 bytes: 4 KiB of KV cache a token


def served(n, latency_s, inputs, level=4.0, outputs=4):
    """Requests one after another, each of some tokens spread over its latency."""
    offsets = (np.arange(1, outputs + 1) * latency_s * 1e3 / outputs).tolist()
    shared = {"token_offsets_ms": offsets, "input_tokens": inputs, "output_tokens": outputs}
    rows = []
    for start_s in np.arange(n) * latency_s:
        times = {"first_token_s": start_s + offsets[0] / 1e3, "last_token_s": start_s + latency_s}
        rows.append(request(level, scheduled_s=start_s, sent_s=start_s, **times, **shared))
    return rows


def cell(folder, use_case, weight, latency_s, inputs, *, kind="open_loop", n=40):
    level = 4.0 if kind == "open_loop" else 40.0
    name = f"{use_case}-{kind}-{weight}"
    return write_cell(
        folder / name,
        served(n, latency_s, inputs, level),
        durations_s={level: n * latency_s},
        kind=kind,
        llm_id=LLM,
        workload_id=use_case,
        scenario_id=kind,
        variant_id=f"w{weight}",
        batch_weight_tokens=weight,
    )


@pytest.fixture
def analysis(tmp_path):
    """Chat has long inputs and a larger cache helps it in batches only; texts gain in both."""
    cells = [
        cell(tmp_path, name, weight, latency_s, inputs, kind=kind)
        for name, inputs, kind, latencies_s in (
            ("chat", 500, "open_loop", (0.8, 0.8)),
            ("chat", 500, "batch", (0.8, 0.4)),
            ("texts", 20, "open_loop", (0.2, 0.1)),
            ("texts", 20, "batch", (0.2, 0.1)),
        )
        for weight, latency_s in zip((1024, 2048), latencies_s, strict=True)
    ]
    return analyse(study_data(tmp_path, cells, [LLM]))


def test_effects_compare_the_largest_cache_with_the_smallest(analysis):
    effects = analysis.numbers["effects"].set_index(["workload_id", "inference"])
    assert effects["small_kv_gib"].tolist() == pytest.approx([1024 * 4096 / 2**30] * 4)
    assert effects["large_tokens"].tolist() == [2048] * 4
    chat = effects.loc[("chat", "latency-critical")]
    assert (chat["latency_ratio"], chat["throughput_ratio"]) == pytest.approx((1.0, 1.0))
    assert chat["verdict"] == "no clear change"
    batch = effects.loc[("chat", "best-effort")]
    # 160 tokens in 32 s and in 16 s.
    assert batch["throughput_ratio"] == pytest.approx(2.0)
    assert batch["throughput_ratio_low"] > 1.5
    assert batch["verdict"] == "better"
    assert effects.loc[("texts", "latency-critical"), "verdict"] == "better"
    assert effects["is_heaviest"].all()


def test_takeaways_are_judged_by_the_effects(analysis):
    found = analysis.numbers["takeaways"]
    assert [each["holds"] for each in found] == [True, True, True, True]
    lengths, classes, critical, effort = (each["here"] for each in found)
    assert lengths == "Mean inputs differ 25 times between use cases, mean outputs 1 times."
    assert classes.startswith("Large are the inputs of chat. In 4 of 4 pairs")
    assert (
        critical
        == "Of 2 use cases better: texts; no clear change: chat (the longest inputs: chat)."
    )
    assert effort == "Of 2 use cases better: chat and texts."


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("better", "better"), True),
        (("better", "no clear change"), None),
        (("better", "worse"), False),
    ],
)
def test_a_cache_that_always_helps_has_to_help_everywhere(analysis, verdicts, expected):
    effects = pd.DataFrame({"workload_id": ["chat", "texts"], "verdict": verdicts})
    effects = effects.assign(inference="best-effort", is_heaviest=True)
    *_, critical, effort = takeaways(analysis.numbers["points"], effects)
    assert (effort.holds, critical.holds) == (expected, None)


def test_one_use_case_with_one_cache_tells_nothing(tmp_path):
    only = cell(tmp_path, "chat", 1024, 0.8, 500)
    missing = write_cell(
        tmp_path / "none", verdict=TOO_LARGE, kind="batch", workload_id="chat", llm_id=LLM
    )
    analysis = analyse(study_data(tmp_path, [only, missing], [LLM]))
    assert [each["holds"] for each in analysis.numbers["takeaways"]] == [None] * 4
    assert (
        "Of the poster's 4 takeaways 0 hold here, 0 do not, 4 cannot be judged" in analysis.summary
    )
    assert "No use case was measured with two sizes." in text_of(analysis.sections[2])
