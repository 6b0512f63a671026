"""What `sextant rightsize` is asked: a question, the traffic, and what serves it now."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.decide.windows import Target
from sextant.trace.observed import Observed
from sextant.workload.requests import ScalableTraffic

_DEPLOYED = re.compile(r"\s*([0-9]+)\s*[x×*]\s*(?=[0-9])(.+?)\s*", re.I)
_MOST_DEPLOYED = 100_000


class Deployed(NamedTuple):
    """The replicas that serve now."""

    replicas: int
    gpu_profile_id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what e.g. `8x1xH100-80GB` says. Raises InputError for another text."""
        match = _DEPLOYED.fullmatch(text)
        replicas = int(match[1]) if match else 0
        if match is None or not 1 <= replicas <= _MOST_DEPLOYED:
            fix = "give REPLICASxGPU_PROFILE, e.g. 8x1xH100-80GB: 8 replicas of one H100 each"
            raise InputError(f"{text!r} is not a deployment", field="--deployed", fix=fix)
        return cls(replicas, match[2])


@dataclass(frozen=True, eq=False)
class RightsizeQuestion:
    """A question with the traffic, and what was observed of the servers that answered it."""

    question: Question
    """The LLM, the candidates (the deployed profile is one), their prices and the measurements; its
    SLO has the limits. It has no probe."""
    traffic: ScalableTraffic
    target: Target
    settings: Settings
    risk: float
    """Largest probability that a window is missed."""
    n_draws: int
    deployed: Deployed
    observed: Observed
    window_s: float
    """Windows of `window_rps`: those of the target, or of an hour."""
    window_rps: np.ndarray
    """Requests a second in each window, the factor on the traffic included, (windows,)."""
    probe: Path
    """File that the observations are written to, as `recommend --probe` reads it."""
    notes: tuple[str, ...] = ()
    """What the answer says first."""
