-- What the readings of devices say of each level: the tables device_telemetry and energy.
-- In: all_telemetry (`cell` and the columns of telemetry.parquet) and levels (`cell, level,
-- started_s, duration_s`: the window of each level).
--
-- Energy of a device over a window is the sum over the intervals between its readings,
--     E = Σᵢ sᵢ · ΔEᵢ,   ΔEᵢ = Cᵢ − Cᵢ₋₁ if both readings have a counter and it grew,
--                        ΔEᵢ = (Pᵢ + Pᵢ₋₁)/2 · (tᵢ − tᵢ₋₁) otherwise ("bridged"),
-- with the counter C (J), the power P (W), and the share sᵢ of the interval in the window.

-- One row per cell, level and device. `energy_bridged_fraction` is the part of the energy that
-- comes from power, `throttle_reason_s` a JSON object of seconds by reason. Means are over readings,
-- which are evenly spaced. A value is null where no reading in the window has it; energy and seconds
-- throttled are null where readings cover less than 99% of the window.
CREATE TEMP TABLE device_telemetry AS
WITH readings AS (
    SELECT t.*, started_s AS from_s, started_s + duration_s AS to_s
    FROM all_telemetry AS t JOIN levels USING (cell, level)),
summary AS (
    SELECT cell, level, device,
        avg(power_w) AS mean_power_w, max(power_w) AS max_power_w,
        avg(utilization) AS mean_utilization, max(utilization) AS max_utilization,
        avg(memory_utilization) AS mean_memory_utilization,
        max(memory_utilization) AS max_memory_utilization,
        avg(sm_active) AS mean_sm_active, max(sm_active) AS max_sm_active,
        avg(sm_occupancy) AS mean_sm_occupancy, max(sm_occupancy) AS max_sm_occupancy,
        max(memory_used_gib) AS max_memory_used_gib,
        avg(sm_clock_mhz) AS mean_sm_clock_mhz, max(temperature_c) AS max_temperature_c
    FROM readings WHERE time_s BETWEEN from_s AND to_s GROUP BY ALL),
energy_intervals AS (
    SELECT cell, level, device, to_s - from_s AS window_s,
        energy_j - lag(energy_j) OVER w AS counted_j,
        (power_w + lag(power_w) OVER w) / 2 * (time_s - lag(time_s) OVER w) AS bridged_j,
        time_s - lag(time_s) OVER w AS length_s,
        greatest(least(time_s, to_s) - greatest(lag(time_s) OVER w, from_s), 0) AS inside_s
    FROM readings WHERE power_w IS NOT NULL OR energy_j IS NOT NULL
    WINDOW w AS (PARTITION BY cell, level, device ORDER BY time_s)),
energy_shares AS (
    SELECT cell, level, device, window_s, inside_s, inside_s / length_s * coalesce(
            CASE WHEN counted_j >= 0 THEN counted_j END, bridged_j) AS share_j,
        counted_j IS NULL OR counted_j < 0 AS is_bridged
    FROM energy_intervals WHERE length_s > 0 AND inside_s > 0),
energy_sums AS (
    SELECT cell, level, device,
        CASE WHEN coalesce(sum(inside_s) FILTER (share_j IS NOT NULL), 0) >= 0.99 * window_s
            THEN sum(share_j) END AS energy_j,
        coalesce(sum(share_j) FILTER (is_bridged), 0) AS bridged_j
    FROM energy_shares GROUP BY cell, level, device, window_s),
energy AS (
    SELECT cell, level, device, energy_j,
        bridged_j / nullif(energy_j, 0) AS energy_bridged_fraction
    FROM energy_sums),
-- What a reading says holds until the next.
throttle_intervals AS (
    SELECT cell, level, device, to_s - from_s AS window_s,
        lag(string_split(throttle_reasons, ',')) OVER w AS names,
        greatest(least(time_s, to_s) - greatest(lag(time_s) OVER w, from_s), 0) AS inside_s
    FROM readings WHERE throttle_reasons IS NOT NULL
    WINDOW w AS (PARTITION BY cell, level, device ORDER BY time_s)),
-- No load, or a user's setting, is no throttling.
throttle_shares AS (
    SELECT cell, level, device, window_s, inside_s,
        list_filter(names, lambda name: name != '' AND name NOT IN (
            'gpu_idle', 'applications_clocks_setting', 'display_clock_setting')) AS names
    FROM throttle_intervals WHERE inside_s > 0),
throttled AS (
    SELECT cell, level, device,
        CASE WHEN coalesce(sum(inside_s), 0) >= 0.99 * window_s
            THEN coalesce(sum(inside_s) FILTER (len(names) > 0), 0) END AS throttled_s
    FROM throttle_shares GROUP BY cell, level, device, window_s),
reasons AS (
    SELECT cell, level, device,
        to_json(map_from_entries(list((name, seconds) ORDER BY name))) AS reason_s
    FROM (SELECT cell, level, device, name, sum(inside_s) AS seconds
        FROM (SELECT cell, level, device, inside_s, unnest(names) AS name FROM throttle_shares)
        GROUP BY ALL)
    GROUP BY cell, level, device)
SELECT cell, level, device, energy_j, energy_bridged_fraction,
    s.* EXCLUDE (cell, level, device), throttled_s,
    CASE WHEN throttled_s IS NOT NULL THEN coalesce(reason_s, '{}') END AS throttle_reason_s
FROM (SELECT DISTINCT cell, level, device FROM readings)
LEFT JOIN energy USING (cell, level, device)
LEFT JOIN summary AS s USING (cell, level, device)
LEFT JOIN throttled USING (cell, level, device)
LEFT JOIN reasons USING (cell, level, device);

-- One row per cell and level: what all devices used together, null if one device's is unknown.
-- `max_power_w` is the highest sum of the devices' power in the same tenth of a second. A MIG
-- instance has no meter of its own: its GPU, which is watched with it, has.
CREATE TEMP TABLE energy AS
WITH sums AS (
    SELECT cell, level, count(*) AS n_devices,
        CASE WHEN count(*) = count(energy_j) THEN sum(energy_j) END AS energy_j,
        sum(energy_j * energy_bridged_fraction) AS bridged_j,
        CASE WHEN count(*) = count(mean_power_w) THEN sum(mean_power_w) END AS mean_power_w
    FROM device_telemetry WHERE device NOT LIKE 'MIG-%' GROUP BY cell, level),
tenths AS (
    SELECT cell, level, floor(time_s * 10) AS tenth, device, max(power_w) AS power_w
    FROM all_telemetry JOIN levels USING (cell, level)
    WHERE device NOT LIKE 'MIG-%' AND power_w IS NOT NULL
        AND time_s BETWEEN started_s AND started_s + duration_s
    GROUP BY ALL),
together AS (
    SELECT cell, level, count(*) AS n_devices, sum(power_w) AS power_w
    FROM tenths GROUP BY cell, level, tenth),
peaks AS (
    SELECT cell, level, n_devices, max(power_w) AS max_power_w FROM together GROUP BY ALL)
SELECT cell, level, energy_j, bridged_j / nullif(energy_j, 0) AS energy_bridged_fraction,
    mean_power_w, max_power_w
FROM sums LEFT JOIN peaks USING (cell, level, n_devices);
