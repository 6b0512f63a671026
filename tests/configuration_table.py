"""The table of resources/llms/README.md: what the code computes for each config, as its cells."""

from sextant.facts.gpu import GIB
from sextant.facts.llm import LLM, precision_in_name, precision_of, served

HEADER = (
    *("`config.json` of", "family", "weights", "10⁹ parameters", "GiB", "KV bytes per token"),
    *("state MiB", "published 10⁹", "active 10⁹", "files GB", "remark"),
)


def computed_cells(name: str, llm: LLM) -> list[str]:
    """Return the cells from `family` to `state MiB`."""
    unsaid = precision_in_name(name, llm)
    precisions = [precision_of(llm), *([unsaid] if unsaid else [])]
    sizes = [served(llm, precision).weight_bytes / GIB for precision in precisions]
    kv, of_windows = llm.kv_bytes_per_token, llm.sliding_kv_bytes_per_token
    return [
        f"`{llm.llm_type}`, {llm.attention}",
        " / ".join(precisions),
        f"{llm.n_parameters / 1e9:,.2f}",
        " / ".join(f"{size:,.1f}" for size in sizes),
        f"{kv:,.0f}" + (f" ({of_windows:,.0f})" if of_windows else ""),
        f"{llm.state_bytes_per_request / 2**20:,.1f}" if llm.state_bytes_per_request else "",
    ]
