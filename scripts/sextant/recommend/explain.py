"""What makes up the latencies of an LLM on a GPU profile, term by term."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sextant.ask.case import Case, read_case
from sextant.ask.caveats import outside_warning
from sextant.ask.forecast import fit_predictor
from sextant.ask.question import Question
from sextant.ask.start_up import StartUp
from sextant.base.files import Row, frame_rows
from sextant.law.roofline import Roofline
from sextant.pages.blocks import Block, Document, Headline, Note, Table
from sextant.points.frame import BASES, KEYS, TARGETS, judged
from sextant.recommend.cost import answer_energy, fit_energy
from sextant.recommend.document import energy_line
from sextant.recommend.llm_description import llm_facts
from sextant.recommend.recommendation import EnergyAnswer

_STEP_TERMS = {
    "launch_ms": "launch of the layers' kernels",
    "weights_ms": "reading the weights",
    "kv_ms": "moving the KV cache",
    "sequences_ms": "work for each further sequence",
    "other_prompts_ms": "prefill of others' prompts",
    "overlap_ms": "launches and memory traffic at the same time",
}
_FIRST_TOKEN_TERMS = {
    "prefill_ms": "prefill of the own input",
    "batching_ms": "waiting until the batch lets it in",
    "queueing_ms": "queueing behind other requests",
}


@dataclass(frozen=True)
class Term:
    """A term of a latency."""

    name: str
    meaning: str
    ms: float
    share: float


@dataclass(frozen=True)
class Explained:
    """A latency: its terms, what multiplies their sum, and what comes out."""

    terms: Sequence[Term]
    factor: float
    """What the percentile multiplies the law with."""
    latency_ms: float
    measured_ms: float | None
    """None: it was not measured."""
    basis: str | None = None
    """Statistic that `measured_ms` is estimated from, e.g. `median`; None: it is as measured."""


@dataclass(frozen=True)
class Explanation:
    """What makes up ITL and nTTFT of an LLM on a GPU profile at a load of a replica."""

    case: Case
    gpu_profile_id: str
    users_per_replica: int
    itl: Explained
    nttft: Explained
    itl_batch: float
    """Requests that share a step."""
    capacity_requests: float
    """Requests that the KV cache holds at once."""
    energy: EnergyAnswer | None
    """Of an output token; None: not known."""
    warnings: Sequence[str]

    @property
    def start_up(self) -> StartUp:
        """How a replica starts."""
        return self.case.start_up(self.case.gpu_profiles[self.gpu_profile_id])

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        measured = None
        if self.itl.measured_ms is not None or self.nttft.measured_ms is not None:
            latencies = (self.nttft.measured_ms, self.itl.measured_ms)
            measured = dict(zip(TARGETS, latencies, strict=True))
        return {
            "llm_id": self.case.llm_id,
            "gpu_profile_id": self.gpu_profile_id,
            "users_per_replica": self.users_per_replica,
            "percentile": self.case.question.slo.percentile,
            "mean_input_tokens": self.case.serving.requests.inputs.mean,
            **self.start_up.facts(),
            "warnings": [*self.warnings],
            "serving": self.case.serving.facts(),
            "llm": llm_facts(self.case.llm),
            "itl": [asdict(term) for term in self.itl.terms],
            "nttft": [asdict(term) for term in self.nttft.terms],
            "itl_ms": self.itl.latency_ms,
            "itl_factor": self.itl.factor,
            "nttft_ms": self.nttft.latency_ms,
            "nttft_factor": self.nttft.factor,
            "itl_batch": self.itl_batch,
            "capacity_requests": self.capacity_requests,
            "energy": self.energy and asdict(self.energy),
            "measured": measured,
        }


def explain_llm(question: Question, gpu_profile_id: str, users: int) -> Explanation:
    """Return what makes up ITL and nTTFT of an LLM on a GPU profile at a load of a replica.

    Raises:
        InputError: an option is wrong, or the LLM does not fit.
    """
    question = replace(question, gpu_profile_ids=(gpu_profile_id,))
    case = read_case(question, need_prices=False, field="--gpu-profile")
    slo = case.question.slo
    points = case.source.characterization.points
    case.excluded  # noqa: B018  raises InputError where the LLM does not fit
    clauses = case.outside_clauses(users)

    gpu_profiles = {**case.source.characterization.profiles, **case.gpu_profiles}
    model = Roofline(slo, gpu_profiles, case.question.seed)
    fitted = fit_predictor(model, case, slo)
    forecast = fitted.forecast(case, slo)
    rows = case.rows_at(model, [users], [gpu_profile_id])
    (terms,) = frame_rows(model.explain(rows))
    for target, factor in zip(("nttft", "itl"), forecast.factors(rows)[0], strict=True):
        terms[f"{target}_factor"] *= factor
        terms[f"{target}_ms"] *= factor

    # A fit may take the memory for larger than it is.
    mean_tokens = sum(case.mean_lengths.values())
    in_memory = case.memory(gpu_profile_id).kv_tokens(mean_tokens) / mean_tokens
    capacity_requests = min(terms["capacity_requests"], in_memory)

    measured: Row = {}
    if case.is_answered_by_points:
        latencies = judged(points, slo)
        is_load = (latencies[KEYS] == [case.llm_id, gpu_profile_id, users]).all(axis=1)
        measured = next(iter(frame_rows(latencies.loc[is_load, [*TARGETS, *BASES]])), {})
    return Explanation(
        case,
        gpu_profile_id,
        users,
        itl=_explained(terms, "itl", _STEP_TERMS, measured),
        nttft=_explained(terms, "nttft", _FIRST_TOKEN_TERMS, measured),
        itl_batch=min(terms["itl_batch"], max(capacity_requests, 1)),
        capacity_requests=capacity_requests,
        energy=answer_energy(forecast, fit_energy(forecast), gpu_profile_id, users),
        warnings=[
            *case.failure_notes,
            *outside_warning(clauses, case.source),
            *case.notes,
            *fitted.notes,
            *case.assumed_notes(),
            *case.probe_notes(has_steps=False),
            *case.start_up(case.gpu_profiles[gpu_profile_id]).notes(),
            *fitted.percentile_notes(case, slo),
        ],
    )


def _explained(terms: Row, target: str, meanings: Mapping[str, str], measured: Row) -> Explained:
    in_law = {name: meaning for name, meaning in meanings.items() if name in terms}
    total = sum(terms[name] for name in in_law)
    return Explained(
        [Term(name, meaning, terms[name], terms[name] / total) for name, meaning in in_law.items()],
        terms[f"{target}_factor"],
        terms[f"{target}_ms"],
        measured.get(f"{target}_ms"),
        measured.get("itl_basis" if target == "itl" else "ttft_basis") or None,
    )


def explanation_document(explanation: Explanation) -> Document:
    """Return an explanation for people (blocks) and programs (data)."""
    case = explanation.case
    serving = case.serving
    where = f"{case.llm_id} on {explanation.gpu_profile_id}"
    users = f"{explanation.users_per_replica} users a replica"
    drafting: list[Block] = []
    if serving.speculative and serving.draft_tokens:
        text = (
            f"A step verifies {1 + serving.draft_tokens} tokens of a request and emits "
            f"{serving.accepted_length:.2f}: each term is the part of one token, what drafts "
            f"({serving.speculative}) included."
        )
        drafting.append(Note(text))
    blocks: list[Block] = [
        Headline(f"{where}, {users}, p{case.question.slo.percentile}"),
        *(Note(line, "warning") for line in explanation.warnings),
        Note(
            f"About {explanation.itl_batch:.1f} requests share a step; the KV cache holds "
            f"{explanation.capacity_requests:.0f} at once."
        ),
        Note(explanation.start_up.line()),
        *drafting,
        _terms_table(
            "time between tokens",
            explanation.itl,
            f"× {explanation.itl.factor:.2f} for the percentile: ITL",
        ),
        _terms_table(
            "mean time to the first token",
            explanation.nttft,
            f"/ {serving.requests.inputs.mean:.0f} input tokens × "
            f"{explanation.nttft.factor:.2f}: nTTFT",
        ),
    ]
    if explanation.energy:
        blocks.append(Note(energy_line(explanation.energy)))
    return Document(f"{where}: explanation", blocks, explanation.to_dict())


def _terms_table(title: str, explained: Explained, total: str) -> Table:
    rows = [(term.meaning, term.ms, term.share) for term in explained.terms]
    rows.append((title, sum(term.ms for term in explained.terms), 1.0))
    cells = [(meaning, f"{ms:.2f} ms", f"{share:.0%}") for meaning, ms, share in rows]
    measured = ""
    if explained.measured_ms is not None:
        how = f"estimated from the measured {explained.basis}" if explained.basis else "measured"
        measured = f" ({how}: {explained.measured_ms:.3g} ms)"
    note = f"{total} {explained.latency_ms:.3g} ms{measured}"
    return Table(("Term", "Time", "Share"), cells, note=note)
