"""The mechanistic terms that make up a predicted latency."""

from dataclasses import replace
from typing import Any

from sextant.answer.basis import estimates, outside_basis, warning
from sextant.answer.energy import energy, energy_line, learned
from sextant.answer.offer import offered
from sextant.answer.predicted import forecast
from sextant.answer.question import Question, answers_from_points, check, named_llm
from sextant.answer.serving import as_measured
from sextant.answer.source import find_source
from sextant.answer.subject import subject_of
from sextant.base.rows import frame_rows
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import LENGTHS, at_percentile
from sextant.predict.roofline import Roofline

_STEP = {
    "launch_ms": "launch of the layers' kernels",
    "weights_ms": "reading the weights",
    "kv_ms": "moving the KV cache",
    "sequences_ms": "work for each further sequence",
    "other_prompts_ms": "prefill of others' prompts",
    "overlap_ms": "launches and memory traffic at the same time",
}
_FIRST = {
    "prefill_ms": "prefill of the own input",
    "batching_ms": "waiting until the batch lets it in",
    "queueing_ms": "queueing behind other requests",
}
_TOTALS = ("itl_ms", "itl_factor", "nttft_ms", "nttft_factor")


def explain_llm(question: Question, gpu_profile_id: str, users: int) -> dict[str, Any]:
    """Return what makes up ITL and nTTFT of an LLM on a GPU profile at a load of a replica.

    Returns:
        `llm_id, gpu_profile_id, users_per_replica, percentile`, `itl` and `nttft`, each a list of
        terms `name, meaning, ms, share`, the predicted `itl_ms, nttft_ms` and their factors (what
        the percentile and the learned correction multiply the law with), `itl_batch`,
        `capacity_requests`, `energy` of an output token where the source has any, `measured`
        latencies if there are any, and `text`.

    Raises:
        InputError: an option is wrong, or the LLM does not fit.
    """
    check(question)
    source = find_source(question)
    known = source.known
    question, said = as_measured(question, known)
    llm_id, llm = named_llm(question, known)
    profiles = offered(
        known.profiles,
        (gpu_profile_id,),
        question.prices,
        need_prices=False,
        field="--gpu-profile",
    )
    every, slo = {**known.profiles, **profiles}, question.slo
    question = replace(question, gpu_profile_ids=(gpu_profile_id,))
    subject = subject_of(question, llm_id, llm, source, profiles)
    probe = subject.probe(question.probe)
    lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
    warnings = warning(outside_basis(question, source, llm, lengths, profiles, users), source)
    model = Roofline(slo, every, question.seed)
    made = forecast(model, subject, slo, probe)
    (row,) = frame_rows(model.explain(subject.rows_at(model, [users], [gpu_profile_id])))
    facts = {
        "llm_id": llm_id,
        "gpu_profile_id": gpu_profile_id,
        "users_per_replica": users,
        "percentile": question.slo.percentile,
        "mean_input_tokens": lengths["input_tokens"],
        "warnings": [*warnings, *said, *estimates(known.points, slo)],
        "serving": subject.serving.facts(),
        "itl": _shares(row, _STEP),
        "nttft": _shares(row, _FIRST),
        **{name: row[name] for name in (*_TOTALS, "itl_batch", "capacity_requests")},
        "energy": energy(made, learned(made), gpu_profile_id, users),
        "measured": _measured(source.known.points, llm_id, gpu_profile_id, users, slo)
        if answers_from_points(question, llm_id, known)
        else None,
    }
    return facts | {"text": _as_text(facts)}


def _shares(row: dict[str, float], terms: dict[str, str]) -> list[dict[str, Any]]:
    known = {name: meaning for name, meaning in terms.items() if name in row}
    total = sum(row[name] for name in known)
    return [
        {"name": name, "meaning": meaning, "ms": row[name], "share": row[name] / total}
        for name, meaning in known.items()
    ]


def _measured(
    points: Any, llm_id: str, profile_id: str, users: int, slo: SLO
) -> dict[str, Any] | None:
    rows = at_percentile(points, slo.percentiles, slo.first_token)
    chosen = rows.query("llm_id == @llm_id and gpu_profile_id == @profile_id and users == @users")
    return frame_rows(chosen[["nttft_ms", "itl_ms"]])[0] if len(chosen) else None


def _as_text(facts: dict[str, Any]) -> str:
    lines = [
        *facts["warnings"],
        f"{facts['llm_id']} on {facts['gpu_profile_id']}, "
        f"{facts['users_per_replica']} users a replica, p{facts['percentile']}",
        f"about {facts['itl_batch']:.1f} requests share a step; the server holds "
        f"{facts['capacity_requests']:.0f} at once",
        "",
        *_table("mean time between tokens", facts["itl"]),
        f"  × {facts['itl_factor']:.2f} for the percentile and the learned correction: "
        f"ITL {facts['itl_ms']:.3g} ms{_beside(facts, 'itl_ms')}",
        "",
        *_table("mean time to the first token", facts["nttft"]),
        f"  / {facts['mean_input_tokens']:.0f} input tokens × {facts['nttft_factor']:.2f}: "
        f"nTTFT {facts['nttft_ms']:.3g} ms{_beside(facts, 'nttft_ms')}",
    ]
    return "\n".join(lines + ([energy_line(facts["energy"])] if facts["energy"] else []))


def _table(title: str, terms: list[dict[str, Any]]) -> list[str]:
    rows = [*((term["meaning"], term["ms"], term["share"]) for term in terms)]
    rows.append((title, sum(term["ms"] for term in terms), 1.0))
    width = max(len(name) for name, *_ in rows)
    return [f"  {name:<{width}}  {ms:>9.2f} ms  {share:>4.0%}" for name, ms, share in rows]


def _beside(facts: dict[str, Any], name: str) -> str:
    return f" (measured: {facts['measured'][name]:.3g} ms)" if facts["measured"] else ""
