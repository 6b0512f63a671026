"""What pages call the columns of points: label and unit."""

from sextant.points.cells.metrics import LATENCIES, PERCENTILES

LATENCY_NAMES = {"ttft": "TTFT", "nttft": "nTTFT", "itl": "ITL", "e2e": "E2E"}
"""Names of `LATENCIES`, by the column's name without its unit."""
_UNITS = {"nttft_ms": "ms/token"}


def latency_label(column: str) -> str:
    """Return the label of a latency's column, e.g. `TTFT, median (ms)` of `median_ttft_ms`.

    Without a statistic, e.g. `itl_ms`, it is `ITL (ms)`.
    """
    statistic, _, metric = column.rpartition("_ms")[0].rpartition("_")
    of_statistic = f", {statistic}" if statistic else ""
    return f"{LATENCY_NAMES[metric]}{of_statistic} ({_UNITS.get(f'{metric}_ms', 'ms')})"


POINT_LABELS = {
    "llm_id": "LLM",
    "gpu_profile_id": "GPU profile",
    "workload_id": "Workload",
    "scenario_id": "Scenario",
    "variant_id": "Variant",
    "batch_weight_tokens": "Batch weight (tokens)",
    "n_ok": "Requests",
    "n_failed": "Failed",
    "throughput_tok_s": "Output tokens/s",
    "request_rate_rps": "Requests/s",
    "mean_input_tokens": "Input tokens, mean",
    "mean_output_tokens": "Output tokens, mean",
    "energy_per_output_token_j": "Energy per output token (J)",
    "energy_per_request_j": "Energy per request (J)",
} | {
    column: latency_label(column)
    for metric in LATENCIES
    for column in (f"{statistic}_{metric.name}" for statistic in (*PERCENTILES, "mean"))
}
