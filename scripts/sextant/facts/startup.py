"""The time until a replica has started on a new node.

`resources/startup.csv` has measured times of starts, by phase.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import Field

from sextant.base.resources import resource
from sextant.base.sheets import load_sheet
from sextant.facts.llm import LLM

_STARTUP = resource("startup.csv")
PHASES = ("image", "libraries", "weights", "engine")
_STARTUP_SD = 0.1  # Of the logarithm: five starts of one LLM on one type of node took 78 to 95 s.


@dataclass(frozen=True, kw_only=True)
class StartupRow:
    """resources/startup.csv: each row is a phase of a start on a new node."""

    phase: str  #: what is done
    seconds: Annotated[float, Field(ge=0)]  #: how long it took
    weights_gib: Annotated[float, Field(gt=0)] | None = None
    """weights that were loaded then: time grows with them"""


class Startup(NamedTuple):
    """Time from the order of a replica until it serves; it is lognormal."""

    median_s: float
    sd: float = _STARTUP_SD  # of its logarithm

    def facts(self) -> dict[str, float]:
        """Return the median and the ends of the 90% interval, in seconds."""
        spread = math.exp(1.645 * self.sd)
        ends = {"startup_lo_s": self.median_s / spread, "startup_hi_s": self.median_s * spread}
        return {"startup_s": self.median_s, **ends}


def startup_of(llm: LLM, stated_s: Mapping[str, float] = MappingProxyType({})) -> Startup:
    """Return how long a replica of an LLM takes to start on a new node.

    `stated_s` are times in seconds, by phase of `PHASES`, that replace the table's.
    """
    total_s = 0.0
    for row in load_sheet(_STARTUP, StartupRow, delimiter=","):
        gib = row.get("weights_gib")
        share = llm.weight_bytes / 2**30 / gib if gib else 1.0
        total_s += stated_s.get(row["phase"], share * row["seconds"])
    return Startup(total_s)
