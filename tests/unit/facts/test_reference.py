"""Counts of families against model classes of `transformers`, built on the meta device."""

import json

import pytest

import llm_configs
from sextant.facts.llm import load_llm


@pytest.mark.parametrize("name", llm_configs.REFERENCE)
def test_a_family_has_the_parameters_of_its_class(tmp_path, name):
    config, n_parameters = llm_configs.REFERENCE[name]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    # A few vectors are buffers there, or are left out here.
    assert load_llm(path).n_parameters == pytest.approx(n_parameters, rel=2e-4)


@pytest.mark.parametrize("name", llm_configs.REFERENCE)
def test_the_recorded_parameters_are_those_of_the_class(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config, n_parameters = llm_configs.REFERENCE[name]
    sizes = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config["model_type"], **sizes)
        )
    assert sum(weights.numel() for weights in model.parameters()) == n_parameters
