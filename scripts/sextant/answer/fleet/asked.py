"""From the two sheets to the answer."""

from dataclasses import dataclass
from pathlib import Path

from sextant.answer.fleet.answer import answer_fleet
from sextant.answer.fleet.plan import FleetAnswer
from sextant.answer.fleet.planning import RISK, TIME_LIMIT_S
from sextant.answer.fleet.predicted import find_options
from sextant.answer.fleet.sheets import read_demands, read_supply
from sextant.answer.question import Question
from sextant.base.errors import InputError
from sextant.facts.gpu import GPUS

TRACES = Path("results") / "traces"


@dataclass(frozen=True)
class Asked:
    """What `sextant fleet` is asked."""

    demands: Path
    supply: Path
    traces: Path = TRACES
    """Folder of the traces that demands name."""
    sources: tuple[str, ...] = ()
    database: Path | None = None
    workload_id: str | None = None
    scenario_id: str | None = None
    risk: float = RISK
    is_elastic: bool = False
    time_limit_s: float = TIME_LIMIT_S
    """Of one program."""
    seed: int = 42
    gpus: Path = GPUS
    """Folder of the facts of devices."""


def fleet(asked: Asked) -> FleetAnswer:
    """Return who gets what.

    Raises:
        InputError: an option or a row is wrong, or the measurements cannot answer.
    """
    if not 0 < asked.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{asked.risk:g} is not a risk", field="--risk", fix=fix)
    pools, gpus = read_supply(asked.supply, asked.gpus)
    wanted = read_demands(asked.demands, asked.traces)
    demands = [each.demand for each in wanted]
    base = Question(
        demands[0].slo,
        database=asked.database,
        sources=asked.sources,
        workload_id=asked.workload_id,
        scenario_id=asked.scenario_id,
        seed=asked.seed,
    )
    found = find_options(wanted, pools, gpus, base, asked.demands)
    return answer_fleet(
        demands,
        pools,
        found.options,
        found.looser,
        risk=asked.risk,
        is_elastic=asked.is_elastic,
        time_limit_s=asked.time_limit_s,
        warnings=found.warnings,
    )
