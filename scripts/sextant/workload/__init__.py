"""Workloads: what is replayed, as a request model, an arrival model and prompts."""

from sextant.workload.arrivals import ArrivalModel, fit_arrivals, load_arrivals
from sextant.workload.fit import fit_workload
from sextant.workload.prompts import random_token_ids
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel, fit_request_model, resample_trace

__all__ = [
    "ArrivalModel",
    "RequestModel",
    "fit_arrivals",
    "fit_request_model",
    "fit_workload",
    "load_arrivals",
    "load_request_model",
    "random_token_ids",
    "resample_trace",
]
