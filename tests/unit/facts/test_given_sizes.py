"""An LLM of which only sizes are given is close to the same LLM read from its config."""

import math

import pytest

from sextant.api.groups import group_of
from sextant.api.question_options import CaseOptions
from sextant.base.errors import InputError
from sextant.facts.llm import GivenSizes, load_llm, precision_of
from sextant.facts.slo import SLO
from support import ROOT

LLMS = ROOT / "resources" / "llms"


@pytest.mark.parametrize(
    "name", ["meta-llama__Llama-3.1-8B-Instruct", "Qwen__Qwen3-30B-A3B-Instruct-2507"]
)
def test_given_sizes_come_near_the_config(name: str) -> None:
    llm = load_llm(LLMS / f"{name}.json")
    sizes = (llm.n_parameters, llm.n_layers, llm.kv_bytes_per_token, llm.n_flop_parameters)
    given = GivenSizes(*sizes, llm.weight_bytes / 2**30).llm()
    assert given.kv_bytes_per_token == llm.kv_bytes_per_token
    assert given.weight_bytes == pytest.approx(llm.weight_bytes, rel=1e-6)
    assert given.n_flop_parameters == llm.n_flop_parameters
    if llm.n_experts:
        assert given.expert_weight_bytes == pytest.approx(llm.expert_weight_bytes, rel=0.05)
        assert given.step_weight_bytes == pytest.approx(llm.step_weight_bytes, rel=0.35)


@pytest.mark.parametrize(
    ("parameters", "active"),
    [(120e9, 5e9), (229e9, 10e9), (671e9, 37e9), (1e12, 32e9), (8e9, 7.9e9), (1e12, 1e6)],
)
def test_experts_take_no_more_of_a_token_than_is_active(parameters: float, active: float) -> None:
    llm = GivenSizes(parameters, 61, 1e5, active).llm()
    assert 0 < llm.n_active_expert_parameters <= 0.76 * active
    assert llm.n_parameters - llm.n_expert_parameters >= 0.24 * active
    # As wide as they are, so many experts have these parameters.
    matrices = 3 * llm.hidden_size * llm.ffn_size * llm.n_experts * llm.n_layers
    if active > 1e9:
        assert matrices == pytest.approx(llm.n_expert_parameters, rel=0.35)


@pytest.mark.parametrize(
    ("weight_gib", "precision"), [(None, "bf16"), (130, "bf16"), (68, "fp8"), (38, "int4")]
)
def test_the_size_of_the_weights_tells_their_precision(weight_gib, precision: str) -> None:
    llm = GivenSizes(70e9, 80, 327_680, weight_gib=weight_gib).llm()
    assert precision_of(llm) == precision
    assert llm.weight_bytes / 2**30 == pytest.approx(weight_gib or 130.4, rel=0.01)


@pytest.mark.parametrize(
    ("sizes", "field"),
    [
        ((-1, 32, 1e5), "n_parameters"),
        ((1e20, 32, 1e5), "n_parameters"),
        ((8e9, 10**400, 1e5), "n_layers"),
        ((8e9, 32, math.nan), "kv_bytes_per_token"),
        ((8e9, 32, 1e5, 9e9), "n_active_parameters"),
    ],
)
def test_sizes_that_no_llm_has_are_refused(sizes: tuple, field: str) -> None:
    with pytest.raises(InputError) as caught:
        GivenSizes(*sizes)
    assert caught.value.field == field and caught.value.fix


def test_the_options_need_each_other() -> None:
    slo = SLO("asked", percentile=50, itl_ms=40, users=8)
    given = {"parameters": 8e9, "layers": 32, "kv_bytes_per_token": 131_072}
    assert group_of(CaseOptions, given).question(slo).sizes == GivenSizes(8e9, 32, 131_072)
    with pytest.raises(InputError, match="--layers"):
        group_of(CaseOptions, {"parameters": 8e9}).question(slo)
    with pytest.raises(InputError, match="--weight-gib"):
        group_of(CaseOptions, given | {"weight_gib": 0.0}).question(slo)
