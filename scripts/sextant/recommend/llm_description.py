"""What an LLM is: its parameters, weights and KV cache, and what was assumed to find them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sextant.ask.caveats import note_named_precision
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.facts.gpu import GIB
from sextant.facts.llm import (
    DTYPES,
    LLM,
    config_file,
    kv_precision_of,
    precision_of,
    served,
    shipped_config,
)
from sextant.facts.llm_families import UNBOUNDED_TOKENS
from sextant.facts.llm_reading import read_whole_llm
from sextant.pages.blocks import Block, Document, Facts, Headline, Note


@dataclass(frozen=True)
class LLMDescription:
    """The facts of an LLM as it is asked to be served, and what was assumed."""

    llm_id: str
    llm: LLM
    assumed: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        return {"llm_id": self.llm_id, "llm": llm_facts(self.llm), "assumed": [*self.assumed]}


def llm_facts(llm: LLM) -> dict[str, Any]:
    """Return the facts of an LLM for programs: its fields, and what follows from them."""
    facts = asdict(llm)
    if llm.context_tokens >= UNBOUNDED_TOKENS:
        facts["context_tokens"] = None
    return facts | {
        "attention": llm.attention,
        "n_active_parameters": llm.n_active_parameters,
        "precision": precision_of(llm),
        "kv_precision": kv_precision_of(llm),
        "weight_bytes": llm.weight_bytes,
        "weights_gib": llm.weight_bytes / GIB,
        "kv_bytes_per_token": llm.kv_bytes_per_token,
        "kv_kib_per_token": llm.kv_bytes_per_token / 1024,
        "sliding_kv_bytes_per_token": llm.sliding_kv_bytes_per_token,
    }


def describe_llm(question: Question) -> LLMDescription:
    """Return the facts of an LLM by its config, or by sizes, without any measurement.

    Raises:
        InputError: the LLM is unknown, or its config cannot be read.
    """
    precisions = question.precision, question.kv_precision
    if question.sizes is not None:
        llm = served(question.sizes.llm(), *precisions)
        return LLMDescription(question.llm_name, llm, [question.sizes.description()])
    if not question.llm_name:
        fix = "give its config.json (--hf-config), --llm, or its sizes (--parameters …)"
        raise InputError("no LLM is named", field="--hf-config", fix=fix)
    config = question.hf_config or shipped_config(question.llm_name.replace("/", "__"))
    if config is None:
        problem = f"no configuration of {question.llm_name!r} ships"
        raise InputError(problem, field="--llm", fix="give its config.json (--hf-config)")
    reading = read_whole_llm(config_file(config), DTYPES.get(question.precision or ""))
    llm = served(reading.llm, *precisions)
    notes = [*reading.assumed, *note_named_precision(question, question.llm_name, llm)]
    return LLMDescription(question.llm_name, llm, notes)


def llm_document(description: LLMDescription) -> Document:
    """Return the facts of an LLM for people (blocks) and programs (data)."""
    llm = description.llm
    title = f"{description.llm_id}: facts"
    total = f"{llm.n_parameters / 1e9:,.2f} billion parameters"
    weights = f"{llm.weight_bytes / GIB:,.1f} GiB of weights"
    blocks: list[Block] = [
        Headline(f"{description.llm_id}: {total}, {weights}"),
        *(Note(line, "warning") for line in description.assumed),
        Facts(_rows(llm)),
    ]
    return Document(title, blocks, description.to_dict())


def _rows(llm: LLM) -> list[tuple[str, str]]:
    active = f"{llm.n_active_parameters / 1e9:,.2f} billion"
    kv_bytes = llm.kv_bytes_per_token
    kv = f"{kv_bytes / 1024:,.1f} KiB ({kv_bytes:,} bytes, {kv_precision_of(llm)})"
    rows = [
        ("Family", llm.llm_type),
        ("Parameters", f"{llm.n_parameters / 1e9:,.2f} billion ({llm.n_parameters:,})"),
        ("Active parameters", active),
        ("Weights", f"{llm.weight_bytes / GIB:,.2f} GiB ({precision_of(llm)})"),
        ("KV cache per token", kv),
        ("Layers", _layers(llm)),
        ("Attention", f"{llm.attention}, {llm.n_heads} heads, {llm.n_kv_heads} KV heads"),
    ]
    if llm.n_experts:
        rows.append(
            ("Experts", f"{llm.n_experts}, of which a token uses {llm.n_experts_per_token}")
        )
    if llm.n_sliding_layers:
        window = f"{llm.sliding_window_tokens:,} tokens in {llm.n_sliding_layers} layers"
        rows.append(("Sliding window", window))
    if llm.state_bytes_per_request:
        rows.append(("State per request", f"{llm.state_bytes_per_request / 2**20:,.1f} MiB"))
    is_unbounded = llm.context_tokens >= UNBOUNDED_TOKENS
    rows.append(("Context", "no limit" if is_unbounded else f"{llm.context_tokens:,} tokens"))
    return rows


def _layers(llm: LLM) -> str:
    if llm.n_attention_layers:
        return f"{llm.n_layers}, of which {llm.n_attention_layers} have attention"
    if llm.n_encoder_layers:
        return f"{llm.n_layers} of the decoder, {llm.n_encoder_layers} of the encoder"
    return f"{llm.n_layers}"
