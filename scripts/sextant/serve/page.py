"""The page on which a question is put together; it needs nothing from elsewhere."""

from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

from sextant.api.groups import OptionField
from sextant.facts.llm import shipped_llms
from sextant.pages.page import policy_hash, render
from sextant.serve.questions import help_of, options_by_keyword

_FOLDER = Path(__file__).parent
_LOADS = ("users", "request_rate", "tokens_per_day", "usd_per_month")
_LIMITS = {
    "ttft_ms": ("Time to first token (TTFT)", 95, "1000"),
    "tpot_ms": ("Time per output token (TPOT)", 50, "40"),
    "itl_ms": ("Inter-token latency (ITL)", 95, ""),
    "nttft_ms": ("TTFT per input token", 50, ""),
    "e2e_ms": ("Time to the last token", 95, ""),
}
"""Words, percentile and milliseconds of each limit, as the page opens."""
_SIZES = {
    "parameters": "Parameters",
    "active_parameters": "Active parameters",
    "layers": "Layers",
    "kv_bytes_per_token": "KV cache of a token, in bytes",
    "weight_gib": "Weights, in GiB",
}
"""Words of each size of an LLM."""
_SHOWN = (
    *(*_LOADS, *_LIMITS, *_SIZES, "input_tokens", "output_tokens", "llm", "hf_config"),
    *("trace", "llm_in_trace", "service_in_trace", "gpu_profiles", "prices", "measured_only"),
    "risk",
)
"""Options that have a place of their own on the page."""
_NOT_SHOWN = ("workload_id", "scenario_id", "probe", "draft_config", "vary", "percentile")
"""Options of stores and files: they are asked over HTTP or on the command line."""
_FIRST_LLM = "meta-llama__Llama-3.1-8B-Instruct"


class Entry(NamedTuple):
    """An option of the page's list of all others."""

    keyword: str
    help: str
    kind: str
    """flag, number, text, or choice."""
    choices: tuple[str, ...] = ()

    @classmethod
    def of(cls, option: OptionField) -> "Entry":
        """Return the entry of an option."""
        (kind, *_) = option.kinds
        if get_origin(kind) is Literal:
            return cls(option.keyword, help_of(option), "choice", get_args(kind))
        names = {bool: "flag", int: "number", float: "number"}
        return cls(option.keyword, help_of(option), names.get(kind, "text"))


@cache
def asking_page() -> tuple[str, str]:
    """Return the page, and the policy that its reply states."""
    from sextant.facts.gpu import offered_profiles, providers
    from sextant.trace.trace_format import published_formats

    script = (_FOLDER / "ask.js").read_text(encoding="utf-8")
    options = options_by_keyword("recommend")
    facts: dict[str, Any] = {
        "script": script,
        "llms": sorted(shipped_llms(), key=_by_name),
        "first_llm": _FIRST_LLM,
        "limits": _LIMITS,
        "sizes": {name: (words, help_of(options[name])) for name, words in _SIZES.items()},
        "formats": sorted(published_formats()),
        "profiles": sorted(offered_profiles(), key=str.casefold),
        "providers": providers(),
        "others": [
            Entry.of(option)
            for name, option in options.items()
            if name not in _SHOWN and name not in _NOT_SHOWN
        ],
    }
    policy = (
        f"default-src 'none'; script-src '{policy_hash(script)}'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return render(_FOLDER / "ask.html.j2", facts), policy


def _by_name(name: str) -> tuple[bool, str]:
    """Return the order of LLMs: those of the demo last."""
    return name.startswith("demo-"), name.casefold()
