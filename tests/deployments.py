"""Deployments as answers assume them, without the answer: nothing is fitted."""

from pathlib import Path

from sextant.ask.case import read_case
from sextant.ask.question import Question
from sextant.deploy.deployment import deployment_of
from sextant.deploy.settings import ReplicaSettings, settings_of
from sextant.facts.slo import SLO
from sextant.workload.length_options import parse_lengths
from support import ROOT

LLMS = ROOT / "resources" / "llms"
LLAMA = LLMS / "meta-llama__Llama-3.1-8B-Instruct.json"
EXPERTS = LLMS / "Qwen__Qwen3-30B-A3B-Instruct-2507.json"
LENGTHS = parse_lengths("1500", "250", None)


def settings_on(profile: str = "1xH100-80GB", config: Path = LLAMA, **options) -> ReplicaSettings:
    """Return what an answer would assume of a replica, without the answer."""
    slo = SLO("asked", percentile=50, users=20, ttft_ms=4000, itl_ms=100)
    given = {"hf_config": config, "gpu_profile_ids": (profile,), "requests": LENGTHS, **options}
    case = read_case(Question(slo, **given), need_prices=False)
    return settings_of(case, case.gpu_profiles[profile])


def deployed(profile: str = "1xH100-80GB", config: Path = LLAMA, **options) -> dict:
    """Return the entries of its JSON."""
    return deployment_of(settings_on(profile, config, **options), 2).facts()
