"""Energy, and what else telemetry tells of a point, as DuckDB queries over its rows.

Energy of a device over a level's window is the sum over the intervals between readings,

    E = Σᵢ sᵢ · ΔEᵢ,   ΔEᵢ = Cᵢ − Cᵢ₋₁ if both readings have a counter and it grew,
                       ΔEᵢ = (Pᵢ + Pᵢ₋₁)/2 · (tᵢ − tᵢ₋₁) otherwise ("bridged"),

with the counter C (J), the power P (W), and the share sᵢ of the interval in the window.
"""

from sextant.facts.gpu import MIG_PREFIX

# Energy of less than this part of a window would pass for the energy of all of it.
MIN_COVERED_FRACTION = 0.99
# Why a clock is below its maximum although nothing is wrong: no load, or a user's setting.
_NO_THROTTLING = "('gpu_idle', 'applications_clocks_setting', 'display_clock_setting')"
_MEAN_AND_MAX = ("power_w", "utilization", "memory_utilization", "sm_active", "sm_occupancy")

# Of a point, beside its `energy_j`: `n_ok` and `mean_output_tokens` are those of ok requests.
ENERGY_PER_REQUEST_SQL = "energy_j / nullif(n_ok, 0)"
ENERGY_PER_OUTPUT_TOKEN_SQL = "energy_j / nullif(n_ok * mean_output_tokens, 0)"

_KEY = "cell, level, device"


def device_query(telemetry: str, levels: str) -> str:
    """Return the query for one row a cell, level and device (table `telemetry`).

    Args:
        telemetry: relation of `cell` and the columns of `telemetry.parquet`.
        levels: relation `cell, level, started_s, duration_s`: the windows that count.

    Columns: `energy_j`; `energy_bridged_fraction` (of the energy, the part from power);
    `mean_` and `max_` of power, utilization, memory utilization, SM activity and occupancy;
    `max_memory_used_gib`, `mean_sm_clock_mhz`, `max_temperature_c`; `throttled_s` and
    `throttle_reason_s` (seconds by reason, a JSON object). Means are over readings, which are
    evenly spaced. Null is what no reading in the window tells; energy and seconds throttled
    are null where readings cover less than 99% of the window.
    """
    aggregates = ", ".join(
        f"avg({name}) AS mean_{name}, max({name}) AS max_{name}" for name in _MEAN_AND_MAX
    )
    return f"""
    WITH readings AS (
        SELECT t.*, started_s AS from_s, started_s + duration_s AS to_s
        FROM {telemetry} AS t JOIN {levels} USING (cell, level)),
    summary AS (
        SELECT {_KEY}, {aggregates}, max(memory_used_gib) AS max_memory_used_gib,
            avg(sm_clock_mhz) AS mean_sm_clock_mhz, max(temperature_c) AS max_temperature_c
        FROM readings WHERE time_s BETWEEN from_s AND to_s GROUP BY ALL),
    {_energy_tables()}, {_throttle_tables()}
    SELECT {_KEY}, energy_j, energy_bridged_fraction, s.* EXCLUDE ({_KEY}),
        throttled_s, CASE WHEN throttled_s IS NOT NULL
            THEN coalesce(reason_s, '{{}}') END AS throttle_reason_s
    FROM (SELECT DISTINCT {_KEY} FROM readings)
    LEFT JOIN energy USING ({_KEY}) LEFT JOIN summary AS s USING ({_KEY})
    LEFT JOIN throttled USING ({_KEY}) LEFT JOIN reasons USING ({_KEY})"""


def _intervals(columns: str, condition: str) -> str:
    """Return the intervals between readings that meet a condition, clipped to the window."""
    return f"""SELECT {_KEY}, to_s - from_s AS window_s, {columns},
            time_s - lag(time_s) OVER w AS length_s,
            greatest(least(time_s, to_s) - greatest(lag(time_s) OVER w, from_s), 0) AS inside_s
        FROM readings WHERE {condition}
        WINDOW w AS (PARTITION BY {_KEY} ORDER BY time_s)"""


def _energy_tables() -> str:
    columns = """energy_j - lag(energy_j) OVER w AS counted_j,
            (power_w + lag(power_w) OVER w) / 2 * (time_s - lag(time_s) OVER w) AS bridged_j"""
    intervals = _intervals(columns, "power_w IS NOT NULL OR energy_j IS NOT NULL")
    return f"""energy_intervals AS ({intervals}),
    energy_shares AS (
        SELECT {_KEY}, window_s, inside_s, inside_s / length_s * coalesce(
                CASE WHEN counted_j >= 0 THEN counted_j END, bridged_j) AS share_j,
            counted_j IS NULL OR counted_j < 0 AS is_bridged
        FROM energy_intervals WHERE length_s > 0 AND inside_s > 0),
    energy_sums AS (
        SELECT {_KEY}, {_if_covered("sum(share_j)", "share_j IS NOT NULL")} AS energy_j,
            coalesce(sum(share_j) FILTER (is_bridged), 0) AS bridged_j
        FROM energy_shares GROUP BY {_KEY}, window_s),
    energy AS (
        SELECT {_KEY}, energy_j, bridged_j / nullif(energy_j, 0) AS energy_bridged_fraction
        FROM energy_sums)"""


def _throttle_tables() -> str:
    # What a reading says holds until the next.
    reasons = "lag(string_split(throttle_reasons, ',')) OVER w AS names"
    return f"""throttle_intervals AS ({_intervals(reasons, "throttle_reasons IS NOT NULL")}),
    throttle_shares AS (
        SELECT {_KEY}, window_s, inside_s,
            list_filter(names, lambda name: name != '' AND name NOT IN {_NO_THROTTLING}) AS names
        FROM throttle_intervals WHERE inside_s > 0),
    throttled AS (
        SELECT {_KEY}, {
        _if_covered("coalesce(sum(inside_s) FILTER (len(names) > 0), 0)", "true")
    } AS throttled_s
        FROM throttle_shares GROUP BY {_KEY}, window_s),
    reasons AS (
        SELECT {_KEY}, to_json(map_from_entries(list((name, seconds) ORDER BY name))) AS reason_s
        FROM (SELECT {_KEY}, name, sum(inside_s) AS seconds
            FROM (SELECT {_KEY}, inside_s, unnest(names) AS name FROM throttle_shares)
            GROUP BY ALL)
        GROUP BY {_KEY})"""


def _if_covered(value: str, known: str) -> str:
    covered = f"coalesce(sum(inside_s) FILTER ({known}), 0)"
    return f"CASE WHEN {covered} >= {MIN_COVERED_FRACTION} * window_s THEN {value} END"


def point_query(devices: str, telemetry: str, levels: str) -> str:
    """Return the query for one row a cell and level: what all devices used together.

    Args:
        devices: relation with the rows of `device_query`.
        telemetry: relation of `cell` and the columns of `telemetry.parquet`.
        levels: relation `cell, level, started_s, duration_s`.

    Columns: `energy_j`, `energy_bridged_fraction`, `mean_power_w` are sums over devices (of
    bridged energy, as a fraction), null if one device's is unknown; `max_power_w` is the
    highest sum of the devices' power in the same tenth of a second. A MIG instance has no
    meter of its own: its GPU, which is watched with it, stands for it.
    """
    meters = f"device NOT LIKE '{MIG_PREFIX}%'"

    def total(value: str) -> str:
        return f"CASE WHEN count(*) = count({value}) THEN sum({value}) END"

    return f"""
    WITH meters AS (FROM {devices} WHERE {meters}),
    sums AS (
        SELECT cell, level, count(*) AS n_devices, {total("energy_j")} AS energy_j,
            sum(energy_j * energy_bridged_fraction) AS bridged_j,
            {total("mean_power_w")} AS mean_power_w
        FROM meters GROUP BY cell, level),
    tenths AS (
        SELECT cell, level, floor(time_s * 10) AS tenth, device, max(power_w) AS power_w
        FROM {telemetry} JOIN {levels} USING (cell, level)
        WHERE {meters} AND power_w IS NOT NULL
            AND time_s BETWEEN started_s AND started_s + duration_s
        GROUP BY ALL),
    together AS (
        SELECT cell, level, count(*) AS n_devices, sum(power_w) AS power_w
        FROM tenths GROUP BY cell, level, tenth),
    peaks AS (
        SELECT cell, level, n_devices, max(power_w) AS max_power_w FROM together GROUP BY ALL)
    SELECT cell, level, energy_j, bridged_j / nullif(energy_j, 0) AS energy_bridged_fraction,
        mean_power_w, max_power_w
    FROM sums LEFT JOIN peaks USING (cell, level, n_devices)"""
