"""The studies by name; each has a module of that name with a function `analyse`."""

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from sextant.studies.study_data import Analysis, StudyData


class Study(NamedTuple):
    """What a study's page is headed by."""

    title: str
    question: str
    """With the paper that asked it."""


STUDIES = {
    "characterize": Study(
        "Characterization",
        "How do latency and throughput change with the number of users, per LLM and GPU profile, "
        "and what does not fit? (LLM-Pilot, SC 2024, section III)",
    ),
    "pareto": Study(
        "Pareto-optimal throughput",
        "Up to which batch size does throughput still grow, and does one device hold it? "
        "(Recasens et al., EuroMLSys 2024, section 4.1)",
    ),
    "replicas": Study(
        "Replicas on one device",
        "What do several servers that share one device gain over one? "
        "(Recasens et al., EuroMLSys 2024, section 4.2)",
    ),
    "pods": Study(
        "Throughput per pod",
        "Does throughput per replica depend on anything but the users per replica? "
        "(LLM-Pilot, SC 2024, Table I)",
    ),
    "sensitivity": Study(
        "Sensitivity",
        "Which of CPU cores, host memory, batch weight and users moves latency? "
        "(LLM-Pilot, SC 2024, section III-D)",
    ),
    "workload_choice": Study(
        "Choice of workload",
        "What does a larger KV cache bring to which use case, latency-critical or best-effort? "
        "(Papaioannou and Doudali)",
    ),
    "burst": Study(
        "Bursts",
        "How do failures and latency follow burstiness and lengths that change? "
        "(BurstGPT, section V)",
    ),
}


def analysis_of(name: str) -> Callable[[StudyData], Analysis]:
    """Return the function that analyses a study's cells.

    Imported only now: a study does not load what another one computes with.
    """
    return import_module(f"sextant.studies.{name}").analyse
