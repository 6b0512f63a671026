"""Speculative decoding: what drafts tokens beside an LLM, and how many of them are accepted.

A step verifies all tokens of a draft and one more. It emits the accepted tokens and one that the
LLM chose itself; their number is the *accepted length*. `resources/speculation.csv` has measured
accepted lengths of coding prompts. Other prompts accept fewer tokens, and nobody but the server's
own counter knows how many: without it the mean is lower and the spread wider.
"""

import math
import statistics
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Annotated, NamedTuple

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.sheets import load_sheet
from sextant.facts.llm import LLM, Speculating

_TABLE = resource("speculation.csv")
LAYERS = ("mtp", "eagle3")  # methods that draft with one layer over the LLM's own hidden states
METHODS = (*LAYERS, "ngram", "draft-model")
MOST_DRAFT_TOKENS = 8
_OTHER_PROMPTS = 0.85
"""How often a draft token is accepted, over how often it is with coding prompts, given that those
before it are. Random prompts have 0.76: they accept 0.65 of first tokens where coding accepts 0.86,
and emit 1.6 to 2.5 tokens a step. Prompts of people lie between the two."""
_OTHER_PROMPTS_SD = 0.12
"""Standard deviation of its logarithm: the 90% interval holds both coding and random prompts."""
_EAGLE_VOCABULARY = 32_000  # words that EAGLE-3's head knows
_EAGLE_MLP = 4  # width of its MLP over the hidden size


@dataclass(frozen=True, kw_only=True)
class AcceptanceRow:
    """resources/speculation.csv: each row is a measured mean accepted length."""

    llm_id: str  #: the LLM, as its config is called
    method: str  #: what drafts, e.g. mtp
    draft_tokens: Annotated[int, Field(ge=1)]  #: tokens of a draft
    accepted_length: Annotated[float, Field(ge=1)]
    """tokens that a step emits, the LLM's own included"""


@cache
def _table() -> dict[int, dict[tuple[str, str], float]]:
    """Return the accepted draft tokens by tokens of a draft, then by LLM and method."""
    table: dict[int, dict[tuple[str, str], float]] = {}
    for row in load_sheet(_TABLE, AcceptanceRow, delimiter=","):
        by_llm = table.setdefault(row["draft_tokens"], {})
        by_llm[row["llm_id"], row["method"]] = row["accepted_length"] - 1
    return table


class Acceptance(NamedTuple):
    """How many draft tokens of a step are accepted."""

    tokens: float
    sd: float
    """Standard deviation of the logarithm."""


def coding_tokens(llm_id: str, method: str, draft_tokens: int) -> list[float]:
    """Return the accepted tokens of drafts of 1 to `draft_tokens`, with coding prompts.

    They are the table's, of an LLM that it lacks the geometric mean over its LLMs.
    """
    rows = [_table()[n] for n in range(1, draft_tokens + 1)]
    column = (llm_id, method)
    return [row.get(column) or statistics.geometric_mean(row.values()) for row in rows]


def expected_acceptance(llm_id: str, method: str, draft_tokens: int) -> Acceptance:
    """Return what is accepted of prompts that nobody has counted."""
    coding = coding_tokens(llm_id, method, draft_tokens)
    # A draft token counts where all before it were accepted.
    more = [longer - shorter for shorter, longer in pairwise([0.0, *coding])]
    by_position = [each * _OTHER_PROMPTS**position for position, each in enumerate(more, 1)]
    tokens = sum(by_position)
    mean_position = sum(n * each for n, each in enumerate(by_position, 1)) / tokens

    row = _table()[draft_tokens]
    llm_sd = 0.0
    if (llm_id, method) not in row:
        llm_sd = statistics.stdev(map(math.log, row.values()))
    return Acceptance(tokens, math.hypot(_OTHER_PROMPTS_SD * mean_position, llm_sd))


def accepted_interval(llm: Speculating) -> tuple[float, float]:
    """Return the 90% interval of the accepted length."""
    tokens = llm.accepted_length - 1
    spread = math.exp(1.645 * llm.accepted_sd)
    return 1 + tokens / spread, 1 + min(tokens * spread, llm.draft_tokens)


def speculating(
    llm: LLM,
    llm_id: str,
    method: str,
    draft_tokens: int,
    acceptance: float | None = None,
    draft: LLM | None = None,
) -> Speculating:
    """Return an LLM as it is served with speculative decoding, by one of `METHODS`.

    `acceptance` up to 1 is the accepted share of the draft tokens, above 1 the accepted length;
    None: `expected_acceptance`. `draft` is the LLM of `draft-model`. InputError: an unknown method,
    a method without a known acceptance, or a number out of range.
    """
    if method not in METHODS:
        fix = f"use one of {', '.join(METHODS)}"
        raise InputError(f"unknown method {method!r}", field="--speculative", fix=fix)
    if not 1 <= draft_tokens <= MOST_DRAFT_TOKENS:
        fix = f"give 1 to {MOST_DRAFT_TOKENS}"
        raise InputError(f"{draft_tokens} draft tokens", field="--draft-tokens", fix=fix)
    if (method == "draft-model") != (draft is not None):
        problem = f"{method} has no draft model"
        fix = "leave it out, or use draft-model"
        if draft is None:
            problem = "nothing is said of the draft model"
            fix = "give its config.json"
        raise InputError(problem, field="--draft-config", fix=fix)
    if acceptance is not None:
        accepted = acceptance * draft_tokens if acceptance <= 1 else acceptance - 1
        sd = 0.0
        if not 0 < accepted <= draft_tokens:
            fix = f"give a share above 0 to 1, or a length above 1 to {draft_tokens + 1}"
            problem = f"{acceptance:g} with a draft of {draft_tokens}"
            raise InputError(problem, field="--acceptance", fix=fix)
    elif method in LAYERS:
        accepted, sd = expected_acceptance(llm_id, method, draft_tokens)
    else:
        problem = f"nothing is known of how many tokens of {method} are accepted"
        fix = "give the share or the length that vLLM's log reports, e.g. 0.5 or 2.1"
        raise InputError(problem, field="--acceptance", fix=fix)
    drafts = {"mtp": _next_layer, "eagle3": _eagle_head}.get(method)
    return Speculating(
        **vars(llm),
        method=method,
        draft_tokens=draft_tokens,
        accepted_length=1 + accepted,
        accepted_sd=sd,
        draft=drafts(llm) if drafts else draft,
    )


def _next_layer(llm: LLM) -> LLM:
    """Return the layer that predicts the token after the next (MTP).

    It is a layer like the LLM's, and a projection. It shares the LLM's embeddings and output
    matrix; each pass reads the output matrix again.
    """
    share = 1 / llm.n_layers
    projection = 2 * llm.hidden_size**2
    names = ("n_attention", "n_mlp", "n_expert", "n_quantized", "n_quantized_expert")
    counts = {name: getattr(llm, f"{name}_parameters") for name in names}
    of_layer = {f"{name}_parameters": round(share * n) for name, n in counts.items()}
    matrices = share * (counts["n_attention"] + counts["n_mlp"] + counts["n_expert"])
    output = llm.vocab_size * llm.hidden_size
    multiplied = share * max(llm.n_flop_parameters - output, 0) + output + projection
    return replace(
        llm,
        n_layers=1,
        n_parameters=round(matrices) + projection,
        n_flop_parameters=round(multiplied),
        n_sliding_layers=0,
        n_attention_layers=0,
        n_products=round(share * llm.n_products),
        n_small_kernels=round(share * llm.n_small_kernels),
        state_bytes_per_request=0,
        kv_values=0.0,
        sliding_kv_values=0.0,
        **of_layer,
    )


def _eagle_head(llm: LLM) -> LLM:
    """Return the head of EAGLE-3 (Li et al. 2025).

    It is a projection of three hidden states, a dense layer whose attention takes twice the hidden
    size, and an output matrix for its own vocabulary.
    """
    hidden = llm.hidden_size
    ffn = _EAGLE_MLP * llm.hidden_size
    heads = (llm.n_heads + 2 * llm.n_kv_heads) * llm.head_dim
    attention = 2 * hidden * heads + llm.n_heads * llm.head_dim * hidden
    mlp = 3 * hidden * ffn
    rest = hidden * (3 * hidden + _EAGLE_VOCABULARY)
    return LLM(
        llm_type="eagle3",
        n_layers=1,
        hidden_size=hidden,
        ffn_size=ffn,
        n_heads=llm.n_heads,
        n_kv_heads=llm.n_kv_heads,
        head_dim=llm.head_dim,
        vocab_size=_EAGLE_VOCABULARY,
        context_tokens=llm.context_tokens,
        dtype="bfloat16",
        n_parameters=attention + mlp + rest,
        n_flop_parameters=attention + mlp + rest,
        n_attention_parameters=attention,
        n_mlp_parameters=mlp,
        kv_dtype=llm.kv_dtype,
    )
