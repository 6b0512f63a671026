"""Workloads: what is replayed, as a request model, an arrival model and prompts."""

from importlib import import_module
from typing import Any

_PLACES = {
    "ArrivalModel": "arrivals",
    "RequestModel": "request_model",
    "fit_arrivals": "arrivals",
    "fit_request_model": "request_model",
    "fit_workload": "fit",
    "load_arrivals": "arrivals",
    "load_request_model": "published",
    "random_token_ids": "prompts",
    "resample_trace": "request_model",
}
__all__ = list(_PLACES)


def __getattr__(name: str) -> Any:
    # Fitting takes SciPy; whoever asks for a name or a constant shall not wait for it.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
