"""The rows of a level: `requests.parquet` of the benchmark contract."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sextant.cells.tables import REQUEST_SCHEMA
from sextant.load.client import Exchange


def requests_table(level: float | None, exchanges: Sequence[Exchange], epoch_ns: int) -> pa.Table:
    """Return a row for each exchange, in their order; times are seconds since `epoch_ns`."""
    columns: dict[str, list] = {
        name: [getattr(exchange, name) for exchange in exchanges]
        for name in ("replica", "user", "input_tokens", "output_tokens", "status", "error")
    }
    for moment in ("scheduled", "sent", "first_token", "last_token"):
        times_ns = [getattr(exchange, f"{moment}_ns") for exchange in exchanges]
        columns[f"{moment}_s"] = [(at - epoch_ns) / 1e9 if at else None for at in times_ns]
    requests = [exchange.request for exchange in exchanges]
    columns["request_id"] = [request.request_id for request in requests]
    for name in ("input_tokens", "output_tokens"):
        columns[f"requested_{name}"] = [getattr(request, name) for request in requests]
    columns["level"] = [level] * len(exchanges)
    arrays = {
        field.name: _offsets(exchanges)
        if field.name == "token_offsets_ms"
        else pa.array(columns[field.name], field.type)
        for field in REQUEST_SCHEMA
    }
    return pa.table(arrays, schema=REQUEST_SCHEMA)


def _offsets(exchanges: Sequence[Exchange]) -> pa.ListArray:
    lengths = [len(exchange.token_offsets_ms) for exchange in exchanges]
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int32)]).astype(np.int32)
    values = b"".join(exchange.token_offsets_ms.tobytes() for exchange in exchanges)
    return pa.ListArray.from_arrays(ends, pa.array(np.frombuffer(values, np.float32)))
