"""How a cell's batch weight was found: the content of `tuning.json`."""

from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict

from sextant.points.cells.memory import Feasibility
from sextant.points.cells.verdict import Verdict


@dataclass(frozen=True)
class MemoryFacts:
    """What a start told of memory; null is unknown, never zero.

    Of several devices, processes or servers it is the one with the least left.
    """

    idle_free_bytes: int | None = None
    """Left when the server had started."""
    free_bytes: int | None = None
    """Left at the peak so far."""
    lacking_bytes: int | None = None
    """What the allocation that failed lacked: at least that much was too much."""
    profiled_tokens: int | None = None
    """What vLLM's own profiling would have made the KV cache."""


@dataclass(frozen=True)
class Probe:
    """One server start with a batch weight, and what came of it."""

    batch_weight_tokens: int
    outcome: str
    """`ok`, or `out_of_memory`; any other failure ends the tuning with an error."""
    detail: str
    duration_s: float
    memory: MemoryFacts = MemoryFacts()
    is_under_load: bool = False
    """It had passed, and failed under the load of the scenario: the corner cases missed it."""


@dataclass(frozen=True)
class Tuning:
    """The search for the largest batch weight that a server holds under load."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    verdict: Verdict
    batch_weight_tokens: int | None = None
    """What was chosen; None if nothing works, or nothing is known."""
    possible_gain: float | None = None
    """How much larger a batch weight that works may be, as a fraction of the chosen one."""
    memory: Feasibility | None = None
    """By facts alone; None where a source does not say."""
    probes: tuple[Probe, ...] | None = ()
    """None where a source does not say."""
