"""What the job of a cell asks of a scheduler; tests/workflow/test_slurm_requests.py has the DAG."""

from dataclasses import replace
from pathlib import Path

import pytest

from project import Project
from sextant.base.sheets import read_configuration
from sextant.experiment.experiment import Experiment
from sextant.experiment.job_request import job_request
from sextant.experiment.loading import load_experiment
from sextant.experiment.servers import Endpoint, Variant
from sextant.experiment.sheets import CellKey

ENGINE = {"max_server_starts": 5, "start_timeout_s": 900, "request_timeout_s": 300}
H100 = CellKey("llama-13b", "4xH100-80GB", "conversation", "users-1-128")


@pytest.fixture
def cluster(project: Project) -> Experiment:
    """The experiment of config/cluster.yaml."""
    return load_experiment(read_configuration(Path(), [Path("config/cluster.yaml")]))


def with_variant(experiment: Experiment, variant: Variant) -> Experiment:
    return replace(experiment, variants={"default": variant})


def test_a_server_gets_its_devices_two_cores_for_each_and_the_memory_of_all_others(cluster) -> None:
    request = job_request(cluster, H100, ENGINE)
    # LLM-Pilot, section III-C1; one more core is the load client's.
    assert (request.gpus, request.gpu_model, request.cores) == (4, "h100", 2 * 4 + 1)
    assert request.memory_mb == 250_000


def test_minutes_are_server_starts_and_levels_at_their_limits_and_five(cluster) -> None:
    levels_s = 8 * (10 + 120 + 2 * 300)
    assert job_request(cluster, H100, ENGINE).minutes == (5 * 900 + levels_s) // 60 + 5


def test_a_second_attempt_gets_twice_the_memory_and_time(cluster) -> None:
    first, second = (job_request(cluster, H100, ENGINE, attempt) for attempt in (1, 2))
    assert second == replace(first, memory_mb=2 * first.memory_mb, minutes=2 * first.minutes)


def test_each_replica_of_its_own_gets_devices_and_cores(cluster) -> None:
    own = with_variant(cluster, Variant(replicas=3, cpu_cores=12))
    request = job_request(own, H100, ENGINE)
    assert (request.gpus, request.cores) == (3 * 4, 3 * 12 + 1)
    shared = with_variant(cluster, Variant(replicas=3, placement="shared"))
    request = job_request(shared, H100, ENGINE)
    assert (request.gpus, request.cores) == (4, 2 * 4 + 1)


def test_a_limit_of_memory_replaces_the_weights(cluster) -> None:
    limited = with_variant(cluster, Variant(replicas=2, memory_limit_gib=200))
    assert job_request(limited, H100, ENGINE).memory_mb == 8000 + 2 * 200 * 1024


def test_a_server_that_runs_elsewhere_needs_the_load_client_alone(cluster) -> None:
    elsewhere = Endpoint.__new__(Endpoint)
    remote = replace(cluster, endpoints={(H100.llm_id, H100.gpu_profile_id): elsewhere})
    request = job_request(remote, H100, ENGINE)
    assert (request.gpus, request.gpu_model, request.cores) == (0, None, 1)
    assert request.memory_mb == 8000
    assert request.minutes == job_request(cluster, H100, ENGINE).minutes - 5 * 900 // 60
