"""What is probably not meant is said before a run, one line each."""

from dataclasses import replace
from pathlib import Path

import pytest

from sextant.experiment.experiment import Experiment
from sextant.experiment.loading import load_experiment
from sextant.experiment.warnings import run_warnings
from sextant.facts.slo import SLO


@pytest.fixture
def experiment(config) -> Experiment:
    return load_experiment(config)


def warned(experiment: Experiment, config, n_cores: int | None = 2) -> list[str]:
    return run_warnings(experiment, config, experiment.cells, n_cores)


def test_the_demo_has_nothing_to_warn_of(experiment, config):
    assert warned(experiment, config) == []


def test_a_limit_in_seconds_is_named(experiment, config):
    slo = SLO("chat", ttft_ms=500, itl_ms=0.02, percentile=95, users=8)
    (line,) = warned(replace(experiment, slos={"chat": slo}), config)
    assert line.startswith(f"Warning: {config['sheets']['slos']}, field 'itl_ms': chat: no server")
    assert line.endswith("Fix: limits are in ms: 20, if this one is in seconds")


def test_more_users_than_a_batch_holds_are_named(experiment, config):
    config["engine"]["max_num_seqs"] = 4
    (line,) = warned(experiment, config)
    assert "'engine.max_num_seqs': users-1-8 has 8 users, a batch 4: the others wait" in line


def test_more_cores_than_the_machine_has_are_named_where_it_measures(experiment, config):
    name = next(iter(experiment.profiles))
    large = replace(experiment.profiles[name], n_gpus=3000)
    grown = replace(experiment, profiles=experiment.profiles | {name: large})
    (line,) = warned(grown, config)
    assert f"{name} needs 3,000 cores, this machine has 2" in line
    assert warned(grown, config, n_cores=None) == []
    assert Path(config["sheets"]["gpu_profiles"]).is_file()
