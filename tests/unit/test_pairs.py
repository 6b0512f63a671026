"""Which LLM may be offered on which GPU profile, by facts alone."""

from dataclasses import replace

import pandas as pd

from sextant.decide.tasks import feasible_pairs, task_of
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import load_llm
from sextant.points.frame import Facts
from support import ROOT

OPT = load_llm(ROOT / "resources" / "llms" / "demo-opt-6m.json")
PROFILES = {
    # OPT needs 11.0 MiB for its weights and 4 KiB of KV cache a token.
    "small": GPUProfile(
        "small", GPU("x", "gpu", "x", 12 / 1024, 1.0, 1.0, 32.0, "invented"), 1, 1.0
    ),
    "large": GPUProfile("large", GPU("y", "gpu", "y", 1.0, 1.0, 1.0, 32.0, "invented"), 1, 1.0),
}


def test_memory_and_context_decide() -> None:
    llms = {"long": OPT, "short": replace(OPT, context_tokens=512)}
    assert feasible_pairs(Facts(llms, PROFILES), 1000, 1.0) == {("long", "large")}
    assert feasible_pairs(Facts(llms, PROFILES), 200, 1.0) == {
        (llm_id, profile_id) for llm_id in llms for profile_id in PROFILES
    }


def test_a_pair_that_was_tried_and_failed_is_known() -> None:
    tried = pd.DataFrame(
        {"llm_id": ["a", "a"], "gpu_profile_id": ["small", "large"], "is_feasible": [False, True]}
    )
    task = task_of("here", pd.DataFrame(), tried, Facts({}, {}), None, 0.9)
    assert task.failed == {("a", "small")}
    # An archive's longest request is not known: what it found feasible may be recommended.
    assert task.feasible == {("a", "large")}
