"""Which GPUs of a cluster serve which team's LLMs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sextant.api.groups import time_option
from sextant.api.keywords import with_keywords
from sextant.api.question_options import ServingOptions, StoreOptions
from sextant.api.shown import ShownAnswer


@dataclass(frozen=True, kw_only=True)
class FleetOptions(StoreOptions):
    """What is wanted, what there is, and how to plan."""

    demands: Path  #: Sheet of what teams want served, TSV.
    supply: Path  #: Sheet of the available nodes, TSV.
    traces: Path = Path("results/traces")  #: Folder of the normalised traces that demands name.
    risk: float = 0.1  #: Largest probability that a served demand misses its limits.
    time_limit: Annotated[float, time_option(1)] = 120
    """Time for each solution; then the best one is used."""


@with_keywords
def fleet(*, options: FleetOptions, serving: ServingOptions) -> ShownAnswer:
    """Find which GPUs of a cluster serve which team's LLMs, at the lowest cost.

    The options of how LLMs are served hold for all demands.

    Returns
    -------
    ShownAnswer
        The plan; a row of its frame per served demand.

    Raises
    ------
    InputError
        A keyword or a sheet is wrong.

    Examples
    --------
    >>> import sextant
    >>> sextant.fleet(demands="demands.tsv")
    Traceback (most recent call last):
    sextant.base.errors.InputError: field 'supply': fleet needs it. Fix: give supply=...
    """
    from sextant.ask.forecast import MEDIANS
    from sextant.ask.question import Question
    from sextant.base.files import provenance
    from sextant.fleet.document import fleet_document
    from sextant.fleet.fleet import FleetQuestion, answer_sheets

    question = FleetQuestion(
        demands=options.demands,
        supply=options.supply,
        traces=options.traces,
        base=Question(MEDIANS, **serving.of(), **options.measurements()),
        risk=options.risk,
        time_limit_s=options.time_limit,
    )
    answer = answer_sheets(question)
    facts = answer.to_dict()
    return ShownAnswer(
        result=answer,
        document=lambda _: fleet_document(answer, provenance()),
        rows=facts["plan"]["served"],
        has_solution=answer.is_everyone_served,
        deployments=answer.deployments,
    )
