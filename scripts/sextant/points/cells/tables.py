"""The columns of a cell's three Parquet files; times are seconds since the run's start."""

import pyarrow as pa

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("level", pa.float64()),
        pa.field("request_id", pa.string()),
        pa.field("replica", pa.int32()),
        pa.field("user", pa.int32()),
        pa.field("scheduled_s", pa.float64()),
        pa.field("sent_s", pa.float64()),
        pa.field("first_token_s", pa.float64()),
        pa.field("last_token_s", pa.float64()),
        pa.field("token_offsets_ms", pa.list_(pa.float32())),
        pa.field("input_tokens", pa.int32()),
        pa.field("output_tokens", pa.int32()),
        pa.field("requested_input_tokens", pa.int32()),
        pa.field("requested_output_tokens", pa.int32()),
        pa.field("status", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""`requests.parquet`: a row a measured request, failed ones included."""

SERVER_SCHEMA = pa.schema(
    [
        pa.field("level", pa.float64()),
        pa.field("replica", pa.int32()),
        pa.field("time_s", pa.float64()),
        pa.field("n_running", pa.float64()),
        pa.field("n_waiting", pa.float64()),
        pa.field("kv_cache_usage", pa.float64()),
        pa.field("n_preemptions", pa.float64()),
    ]
)
"""`server.parquet`: a row a reading of a replica's metrics."""

TELEMETRY_SCHEMA = pa.schema(
    [
        pa.field("level", pa.float64()),
        pa.field("time_s", pa.float64()),
        pa.field("device", pa.string()),
        pa.field("power_w", pa.float64()),
        pa.field("energy_j", pa.float64()),
        pa.field("utilization", pa.float64()),
        pa.field("memory_utilization", pa.float64()),
        pa.field("memory_used_gib", pa.float64()),
        pa.field("sm_clock_mhz", pa.float64()),
        pa.field("temperature_c", pa.float64()),
        pa.field("throttle_reasons", pa.string()),
        pa.field("sm_active", pa.float64()),
        pa.field("sm_occupancy", pa.float64()),
    ]
)
"""`telemetry.parquet`: a row a reading of a device."""

TABLES = {"requests": REQUEST_SCHEMA, "server": SERVER_SCHEMA, "telemetry": TELEMETRY_SCHEMA}
"""By the name of the file, without its ending."""


def concatenated(name: str, parts: list[pa.Table]) -> pa.Table:
    """Return the rows of all parts of one of the `TABLES`, which may be none."""
    schema = TABLES[name]
    return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])
