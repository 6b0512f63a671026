"""What makes up the latencies of an LLM on a GPU profile, term by term."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sextant.answer.answer import energy_line
from sextant.ask.candidates import read_question, subject_of
from sextant.ask.forecast import energy, fit_to, forecast_of, learned
from sextant.ask.question import Question, answers_from_points
from sextant.ask.source import estimates, outside_basis, warning
from sextant.base.files import Row, frame_rows
from sextant.law.roofline import Roofline
from sextant.pages.blocks import Block, Document, Headline, Note, Table
from sextant.points.frame import KEYS, TARGETS, at_percentile

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
_TOTALS = ("itl_ms", "itl_factor", "nttft_ms", "nttft_factor", "itl_batch", "capacity_requests")


def explain_llm(question: Question, gpu_profile_id: str, users: int) -> Document:
    """Return what makes up ITL and nTTFT of an LLM on a GPU profile at a load of a replica. Its
    data: `llm_id, gpu_profile_id, users_per_replica, percentile`, `itl` and `nttft`, each a list of
    terms `name, meaning, ms, share`, the predicted `itl_ms, nttft_ms` and their factors (what the
    percentile and the learned correction multiply the law with), `itl_batch`, `capacity_requests`,
    `energy` of an output token and `measured` latencies, None where there are none. Raises
    InputError: an option is wrong, or the LLM does not fit."""
    question = replace(question, gpu_profile_ids=(gpu_profile_id,))
    asked = read_question(question, need_prices=False, field="--gpu-profile")
    _, question, llm_id, llm, source, profiles, notes = asked
    known, slo = source.known, question.slo
    subject = subject_of(question, llm_id, llm, source, profiles)
    clauses = outside_basis(question, source, llm, subject.mean_lengths, profiles, users)
    model = Roofline(slo, {**known.profiles, **profiles}, question.seed)
    made = forecast_of(model, fit_to(model, subject, slo), subject, slo)
    (row,) = frame_rows(model.explain(subject.rows_at(model, [users], [gpu_profile_id])))
    # A fit may take the memory for larger than it is.
    memory = subject.memory(gpu_profile_id)
    length = sum(subject.mean_lengths.values())
    row["capacity_requests"] = min(row["capacity_requests"], memory.kv_tokens(length) / length)
    row["itl_batch"] = min(row["itl_batch"], max(row["capacity_requests"], 1))
    measured = None
    if answers_from_points(question, llm_id, known):
        points = at_percentile(known.points, slo.percentiles, slo.first_token)
        is_it = (points[KEYS] == [llm_id, gpu_profile_id, users]).all(axis=1)
        measured = next(iter(frame_rows(points.loc[is_it, TARGETS])), None)
    facts = {
        "llm_id": llm_id,
        "gpu_profile_id": gpu_profile_id,
        "users_per_replica": users,
        "percentile": slo.percentile,
        "mean_input_tokens": subject.mean_lengths["input_tokens"],
        "warnings": [*warning(clauses, source), *notes, *estimates(known.points, slo)],
        "serving": subject.serving.facts(),
        "itl": _shares(row, _STEP),
        "nttft": _shares(row, _FIRST),
        **{name: row[name] for name in _TOTALS},
        "energy": energy(made, learned(made), gpu_profile_id, users),
        "measured": measured,
    }
    return _explanation(facts)


def _shares(row: Row, terms: Mapping[str, str]) -> list[Row]:
    known = {name: meaning for name, meaning in terms.items() if name in row}
    total = sum(row[name] for name in known)
    return [
        {"name": name, "meaning": meaning, "ms": row[name], "share": row[name] / total}
        for name, meaning in known.items()
    ]


def _explanation(facts: Row) -> Document:
    def table(title: str, terms: Sequence[Row], name: str, total: str) -> Table:
        rows = [*((term["meaning"], term["ms"], term["share"]) for term in terms)]
        rows.append((title, sum(term["ms"] for term in terms), 1.0))
        cells = [(meaning, f"{ms:.2f} ms", f"{share:.0%}") for meaning, ms, share in rows]
        was = f" (measured: {facts['measured'][name]:.3g} ms)" if facts["measured"] else ""
        return Table(("Term", "Time", "Share"), cells, note=f"{total} {facts[name]:.3g} ms{was}")

    place, serving = f"{facts['llm_id']} on {facts['gpu_profile_id']}", facts["serving"]
    drafting = (
        f"A step verifies {1 + serving['draft_tokens']} tokens of a request and emits "
        f"{serving['accepted_length']:.2f}: each term is the part of one token, what drafts "
        f"({serving['speculative']}) included."
        if serving["speculative"]
        else None
    )
    blocks: list[Block] = [
        Headline(f"{place}, {facts['users_per_replica']} users a replica, p{facts['percentile']}"),
        *(Note(line, "warning") for line in facts["warnings"]),
        Note(
            f"About {facts['itl_batch']:.1f} requests share a step; the KV cache holds "
            f"{facts['capacity_requests']:.0f} at once."
        ),
        *([Note(drafting)] if drafting else []),
        table(
            "time between tokens",
            facts["itl"],
            "itl_ms",
            f"× {facts['itl_factor']:.2f} for the percentile and the learned correction: ITL",
        ),
        table(
            "mean time to the first token",
            facts["nttft"],
            "nttft_ms",
            f"/ {facts['mean_input_tokens']:.0f} input tokens × {facts['nttft_factor']:.2f}: nTTFT",
        ),
    ]
    if facts["energy"]:
        blocks.append(Note(energy_line(facts["energy"])))
    return Document(f"{place}: explanation", blocks, facts)
