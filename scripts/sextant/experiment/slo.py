"""A latency target and the load to serve within it: a row of `slos.tsv`."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from sextant.base.errors import InputError
from sextant.base.sheets import SCHEMAS, load_sheet, validate

PERCENTILE_PREFIX = {50: "median", 90: "p90", 99: "p99"}
"""How the columns of a `point` name a percentile."""


@dataclass(frozen=True)
class SLO:
    """Both limits hold at the percentile while `users` are served at once.

    Raises InputError for what `workflow/schemas/slos.schema.yaml` does not allow.
    """

    slo_id: str
    nttft_ms: float
    itl_ms: float
    percentile: int
    users: int

    def __post_init__(self) -> None:
        for name in ("nttft_ms", "itl_ms"):  # which no schema can tell
            if not math.isfinite(limit := getattr(self, name)):
                raise InputError(f"{limit} is not a limit", field=name, fix="give milliseconds")
        validate(asdict(self), SCHEMAS / "slos.schema.yaml", f"SLO {self.slo_id!r}")


def load_slos(path: str | Path) -> dict[str, SLO]:
    """Read a sheet of SLOs."""
    rows = load_sheet(path, SCHEMAS / "slos.schema.yaml", "slo_id")
    return {row["slo_id"]: SLO(**row) for row in rows}
