"""Replicas that the request rates of a plan need, sized as the answers will size them."""

from collections.abc import Collection, Sequence

import pandas as pd

from sextant.answer.rate_sizer import LITTLES_LAW, RateSizer, steady_note
from sextant.ask.case import read_case
from sextant.ask.forecast import fit_medians
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.decide.decision import SAFE
from sextant.facts.slo import SLO
from sextant.law.roofline import Roofline
from sextant.plan.value import Needs
from sextant.points.characterization import Characterization
from sextant.workload.lengths import Length, RequestLengths


def size_rates(
    characterization: Characterization,
    slos: Sequence[SLO],
    llm_ids: Collection[str],
    lengths: Sequence[float],
    seed: int,
) -> Needs:
    """Return the replicas that LLMs need for the SLOs with a request rate, by draw.

    An LLM whose law of a step is not known on every GPU profile is left out.

    Args:
        characterization: what is measured so far.
        slos: all of a plan.
        llm_ids: the LLMs to serve.
        lengths: mean input and output tokens of a request.
        seed: of the draws.
    """
    rated = [slo for slo in slos if slo.request_rate_rps is not None]
    requests = RequestLengths(*(Length(mean, mean) for mean in lengths))
    model: Roofline | None = None
    needs: dict[tuple[str, str], pd.DataFrame] = {}
    for llm_id in llm_ids if rated else ():
        question = Question(
            rated[0], llm_id, characterization=characterization, requests=requests, seed=seed
        )
        try:
            case = read_case(question)
            model = model or fit_medians(case)
            sizer = RateSizer.of(case, model, 1 - SAFE)
        except InputError:  # no law of a step is known, or the LLM fits nowhere
            continue
        if not sizer.unknown:
            for slo in rated:
                needs[slo.slo_id, llm_id] = sizer.needed(slo, [*sizer.servers])
    return needs


def steady_notes(slos: Sequence[SLO], llm_ids: Collection[str], needs: Needs) -> list[str]:
    """Return that rates are steady loads where some LLM is sized so; else nothing."""
    sized_steadily = (
        slo for slo in slos if any((slo.slo_id, llm_id) not in needs for llm_id in llm_ids)
    )
    notes = (steady_note(slo, LITTLES_LAW) for slo in sized_steadily)
    return next(filter(None, notes), [])
