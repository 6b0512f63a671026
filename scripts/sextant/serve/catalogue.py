"""What ships and can be named in a question: LLMs, GPUs, prices."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

Rows = list[dict[str, Any]]


def llms() -> Rows:
    """Return the LLMs: what `hf_config` or `llm` may name, and who measured them."""
    from sextant.ask.source import known_sources
    from sextant.facts.llm import shipped_llms

    measured_by: dict[str, list[str]] = {}
    for characterization, _ in known_sources(()):
        for llm_id in sorted(characterization.points["llm_id"].unique()):
            measured_by.setdefault(llm_id, []).append(characterization.source)
    configs = shipped_llms()
    return [
        {
            "name": name,
            "has_config": name in configs,
            "measured_by": measured_by.get(name, []),
        }
        for name in sorted({*configs, *measured_by}, key=str.casefold)
    ]


def gpus() -> Rows:
    """Return the facts of each GPU; a profile is `<n>x<gpu_id>`."""
    from sextant.facts.gpu import GPUS, load_gpu

    return [asdict(load_gpu(GPUS, path.stem)) for path in sorted(GPUS.glob("*.yaml"))]


def prices() -> Rows:
    """Return the machines of each provider that ships, with their prices."""
    from sextant.facts.gpu import PRICES, load_prices, providers

    return [
        {"provider": provider, **row}
        for provider in providers()
        for row in load_prices(PRICES / f"{provider}.csv")
    ]


CATALOGUES: dict[str, Callable[[], Rows]] = {"llms": llms, "gpus": gpus, "prices": prices}
"""What can be listed, by the name of its route."""
