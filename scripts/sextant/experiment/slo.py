"""A latency target and the load to serve within it: a row of `slos.tsv`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sextant.base.errors import InputError

PERCENTILE_PREFIX = {50: "median", 90: "p90", 99: "p99"}
"""How the columns of a `point` name a percentile."""


@dataclass(frozen=True)
class SLO:
    """A latency promise: both limits hold at the percentile while `users` are served at once."""

    slo_id: str
    nttft_ms: float
    itl_ms: float
    percentile: int
    users: int

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Build an SLO from its row in `slos.tsv`; other columns are left aside.

        Raises:
            InputError: the percentile is none that points are summarised by.
        """
        if row["percentile"] not in PERCENTILE_PREFIX:
            problem = f"SLO {row['slo_id']!r} asks for percentile {row['percentile']}"
            fix = f"use one of {', '.join(map(str, PERCENTILE_PREFIX))}"
            raise InputError(problem, field="percentile", fix=fix)
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})
