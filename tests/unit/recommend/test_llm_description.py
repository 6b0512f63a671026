"""What an LLM is, for people and programs, without any measurement."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sextant.api.question_options import CaseOptions, LLMOptions
from sextant.ask.forecast import MEDIANS
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.pages.blocks import as_text
from sextant.recommend.llm_description import describe_llm, llm_document
from support import ROOT

MIXTURE = ROOT / "resources" / "llms" / "Qwen__Qwen3-30B-A3B-Instruct-2507.json"


def asked(**options: object) -> Question:
    return CaseOptions(subject=LLMOptions(**options)).question(MEDIANS)  # type: ignore[arg-type]


def test_parameters_weights_and_kv_cache_are_said() -> None:
    description = describe_llm(asked(hf_config=MIXTURE))
    facts = description.to_dict()["llm"]
    assert facts["n_parameters"] == 30_532_122_624
    assert facts["n_active_parameters"] / 1e9 == pytest.approx(3.3, abs=0.06)
    assert facts["weights_gib"] == pytest.approx(2 * 30_532_122_624 / 2**30)
    assert facts["kv_bytes_per_token"] == 48 * 2 * 4 * 128 * 2
    assert not description.assumed
    text = as_text(llm_document(description))
    for words in ("30.53 billion", "3.35 billion", "56.87 GiB (bf16)", "96.0 KiB (98,304 bytes"):
        assert words in text


def test_an_unknown_family_is_shown_with_what_was_assumed(tmp_path: Path) -> None:
    config = json.loads(MIXTURE.read_text()) | {
        "model_type": "xyz_moe",
        "torch_dtype": None,
        "dtype": None,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    description = describe_llm(asked(hf_config=file))
    assert description.llm.n_parameters == pytest.approx(30_532_122_624, rel=1e-3)
    text = as_text(llm_document(description))
    assert "'xyz_moe' is not a known family" in text and "taken as bfloat16" in text


def test_the_precision_may_be_asked_for_and_sizes_stated() -> None:
    question = replace(asked(hf_config=MIXTURE), dtype="fp8", kv_dtype="fp8")
    llm = describe_llm(question).llm
    assert llm.weight_bytes < 0.53 * describe_llm(asked(hf_config=MIXTURE)).llm.weight_bytes
    assert llm.kv_bytes_per_token == 49_152
    sizes = {"parameters": 7e9, "layers": 32, "kv_bytes_per_token": 131072}
    description = describe_llm(asked(**sizes))
    assert description.llm.n_parameters == 7e9
    assert "sizes were given" in description.assumed[0]


def test_an_llm_that_is_not_named_or_does_not_ship_is_refused() -> None:
    assert describe_llm(asked(llm="openai/gpt-oss-120b")).llm.n_experts == 128
    with pytest.raises(InputError, match=r"no LLM is named.*--hf-config"):
        describe_llm(asked())
    with pytest.raises(InputError, match="no configuration of 'nobody/nothing' ships"):
        describe_llm(asked(llm="nobody/nothing"))
