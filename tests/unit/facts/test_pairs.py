"""Which LLM may be offered on which GPU profile, by facts alone."""

from dataclasses import replace
from itertools import product

import pandas as pd

from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import load_llm
from sextant.judge.task import task_of
from sextant.points.frame import FactTables
from support import ROOT

OPT = load_llm(ROOT / "resources" / "llms" / "demo-opt-6m.json")
PROFILES = {
    name: GPUProfile(name, GPU(name, "gpu", "x", gib, 1.0, 1.0, 32.0, "invented"), 1, 1.0)
    # OPT needs 11.0 MiB for its weights and 4 KiB of KV cache a token.
    for name, gib in {"small": 12 / 1024, "large": 1.0}.items()
}


def test_memory_and_context_decide() -> None:
    llms = {"long": OPT, "short": replace(OPT, context_tokens=512)}
    nothing = pd.DataFrame(columns=["llm_id", "gpu_profile_id", "is_feasible"])
    asked = "here", pd.DataFrame(), nothing, FactTables(llms, PROFILES)
    assert task_of(*asked, 1000, 1.0).feasible == {("long", "large")}
    assert task_of(*asked, 200, 1.0).feasible == {*product(llms, PROFILES)}


def test_a_pair_that_was_tried_and_failed_is_known() -> None:
    tried = pd.DataFrame(
        {"llm_id": ["a", "a"], "gpu_profile_id": ["small", "large"], "is_feasible": [False, True]}
    )
    task = task_of("here", pd.DataFrame(), tried, FactTables({}, {}), None, 0.9)
    assert task.failed == {("a", "small")}
    # An archive's longest request is not known: what it found feasible may be recommended.
    assert task.feasible == {("a", "large")}
