"""What became of a cell: it was measured, or why it was not, as a value."""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What verdicts have in common: the first words of their sentences."""

    FITS = "fits"
    DOES_NOT_FIT = "does not fit"
    UNSUPPORTED = "unsupported"
    OMITTED = "omitted by the source"


class Outcome(StrEnum):
    """What became of a cell; column `verdict` of the store's table `feasibility`."""

    FEASIBLE = "feasible"
    WEIGHTS_TOO_LARGE = "weights_too_large"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    BATCH_WEIGHT_TOO_LARGE = "batch_weight_too_large"
    """The server variant asks for more than the KV cache holds."""
    BATCH_WEIGHT_TOO_SMALL = "batch_weight_too_small"
    """The server variant allows less than the longest request needs."""
    NO_BATCH_WEIGHT_PASSED = "no_batch_weight_passed"
    HEADS_CANNOT_BE_SPLIT = "heads_cannot_be_split"
    MEMORY_TOO_SMALL = "memory_too_small"
    """The source of an imported characterization says so, without numbers."""
    OMITTED = "omitted"
    """The source of an imported characterization left the cell out."""

    @property
    def kind(self) -> Kind:
        """What it has in common with others."""
        return _SENTENCES[self][0]


_SENTENCES: Mapping[Outcome, tuple[Kind, str]] = {
    Outcome.FEASIBLE: (Kind.FITS, ""),
    Outcome.WEIGHTS_TOO_LARGE: (
        Kind.DOES_NOT_FIT,
        "the weights take {weight_gib:.3f} GiB of {usable_gib:.3f} GiB",
    ),
    Outcome.KV_CACHE_TOO_SMALL: (
        Kind.DOES_NOT_FIT,
        "the KV cache holds {kv_tokens} tokens, the longest request needs {longest_request_tokens}",
    ),
    Outcome.BATCH_WEIGHT_TOO_LARGE: (
        Kind.DOES_NOT_FIT,
        "the KV cache holds {kv_tokens} tokens, the variant asks for {batch_weight_tokens}",
    ),
    Outcome.BATCH_WEIGHT_TOO_SMALL: (
        Kind.DOES_NOT_FIT,
        "the variant's batch weight is {batch_weight_tokens} tokens, the longest request needs "
        "{longest_request_tokens}",
    ),
    Outcome.NO_BATCH_WEIGHT_PASSED: (
        Kind.DOES_NOT_FIT,
        "no batch weight passed in {n_server_starts} server starts",
    ),
    Outcome.HEADS_CANNOT_BE_SPLIT: (
        Kind.UNSUPPORTED,
        "{n_heads} heads ({n_kv_heads} KV heads) cannot be split over {n_gpus} GPUs",
    ),
    Outcome.MEMORY_TOO_SMALL: (Kind.DOES_NOT_FIT, "memory too small"),
    Outcome.OMITTED: (Kind.OMITTED, "software or hardware limits"),
}


@dataclass(frozen=True)
class Verdict:
    """Whether a cell could be measured; if not, why, with the numbers that decided."""

    outcome: Outcome
    numbers: Mapping[str, int | float] = field(default_factory=dict)
    """By name, with the unit as suffix; exactly those of the outcome's sentence."""
    source: str | None = None
    """Who says so, e.g. a paper's table; None for our own measurement."""

    def __post_init__(self) -> None:
        needed = {name for _, name, _, _ in string.Formatter().parse(self._sentence) if name}
        if needed != set(self.numbers):
            given = ", ".join(sorted(self.numbers)) or "none"
            raise ValueError(
                f"verdict {self.outcome} has the numbers {', '.join(sorted(needed)) or 'none'}, "
                f"not {given}"
            )

    @property
    def is_feasible(self) -> bool:
        """Whether the LLM can be served."""
        return self.outcome is Outcome.FEASIBLE

    @property
    def why(self) -> str | None:
        """Why the LLM cannot be served, for a person; None if it can."""
        return self._sentence.format_map(self.numbers) or None

    @property
    def reason(self) -> str:
        """The whole sentence for a person: its kind, why, and who says so."""
        words = f"{self.outcome.kind}: {self.why}" if self.why else str(self.outcome.kind)
        return f"{words} ({self.source})" if self.source else words

    @property
    def _sentence(self) -> str:
        return _SENTENCES[self.outcome][1]


FEASIBLE = Verdict(Outcome.FEASIBLE)


@dataclass(frozen=True)
class LevelMedians:
    """What the stop rule looks at of a level; a latency is None where no request was served."""

    users: float
    n_ok: int
    nttft_ms: float | None
    itl_ms: float | None


@dataclass(frozen=True)
class Stop:
    """Why a sweep ended early: both medians at a level were far beyond their limits.

    More users wait longer, so no larger level can meet either limit.
    """

    last: LevelMedians
    """The largest level that was measured; both medians are known."""
    nttft_limit_ms: float
    itl_limit_ms: float
    factor: float
    """How far beyond both limits."""

    @property
    def reason(self) -> str:
        """The sentence for a person."""
        return (
            f"left out: at {self.last.users:g} users the median nTTFT is "
            f"{self.last.nttft_ms:.3g} ms and the median ITL {self.last.itl_ms:.3g} ms "
            f"({self.last.n_ok} requests), both more than {self.factor:g} times their limits of "
            f"{self.nttft_limit_ms:g} and {self.itl_limit_ms:g} ms"
        )
