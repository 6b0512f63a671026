"""Energy and what else a point's telemetry tells, with numbers worked out by hand."""

import json

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from sextant.points.cell_files import TELEMETRY_SCHEMA
from sextant.points.summarize import ENERGY_SQL


def reading(time_s: float, device: str = "gpu0", level: float = 1, **values: object) -> dict:
    return {"level": level, "time_s": time_s, "device": device, **values}


def database(rows: list[dict], windows: dict[float, tuple[float, float]]):
    """Return a connection with both tables; windows are (start, duration) by level."""
    connection = duckdb.connect()
    connection.register("readings", pa.Table.from_pylist(rows, schema=TELEMETRY_SCHEMA))
    connection.execute("CREATE TABLE all_telemetry AS SELECT 0 AS cell, * FROM readings")
    columns = "cell INT, level DOUBLE, started_s DOUBLE, duration_s DOUBLE"
    connection.execute(f"CREATE TABLE levels ({columns})")
    for level, (start, duration) in windows.items():
        connection.execute("INSERT INTO levels VALUES (0, ?, ?, ?)", [level, start, duration])
    connection.execute(ENERGY_SQL.read_text())
    return connection


def only_row(connection, table: str) -> dict:
    (row,) = connection.table(table).to_arrow_table().to_pylist()
    return row


def energy(rows: list[dict], start: float, duration: float) -> tuple[float | None, float | None]:
    row = only_row(database(rows, {1: (start, duration)}), "device_telemetry")
    return row["energy_j"], row["energy_bridged_fraction"]


def counted(*readings: tuple) -> list[dict]:
    """Return readings of the counter, each (time, energy) or (time, energy, power)."""
    names = ("energy_j", "power_w")
    return [reading(t, **dict(zip(names, values, strict=False))) for t, *values in readings]


@pytest.mark.parametrize(
    ("rows", "window", "energy_j", "bridged"),
    [
        # The counter's increments are summed, whatever the power says.
        (counted((0, 100, 999), (1, 150, 999), (2, 170, 999)), (0, 2), 70, 0),
        # 40 J over the second in which the window begins, of which 3/4; 20 J; 60 J, of which half.
        (counted((0, 0), (1, 40), (2, 60), (3, 120), (4, 500)), (0.25, 2.25), 30 + 20 + 30, 0),
        # A counter that resets is bridged by power times time: 2 s at (120 + 80) / 2 W.
        (counted((0, 900, 100), (1, 1000, 120), (3, 5, 80), (4, 105, 90)), (0, 4), 400, 0.5),
        # Without a counter all of it is; a missed reading of it is on both sides.
        ([reading(t, power_w=p) for t, p in [(0, 100), (1, 200), (2, 200)]], (0, 2), 350, 1),
        (counted((0, 0, 50), (1, None, 70), (2, 130, 50), (3, 190, 50)), (0, 3), 180, 2 / 3),
        # A gap between readings is whole in the counter.
        (counted((0, 0), (0.1, 10), (5, 490), (5.1, 500)), (0, 5.1), 500, 0),
        # Rows of other sources do not cut intervals.
        ([*counted((0, 0, 10), (2, 20, 10)), reading(1, sm_active=0.5)], (0, 2), 20, 0),
        # It is not known, and null.
        ([reading(0), reading(2)], (0, 2), None, None),
        (counted((0.5, 3)), (0, 2), None, None),
        # A device that was lost half way: a part would pass for the whole.
        (counted((0, 0), (1, 100)), (0, 2), None, None),
        # A reset, and no power to bridge it.
        (counted((0, 9), (1, 0), (2, 5)), (0, 2), None, None),
    ],
)
def test_energy_of_a_device(rows, window, energy_j, bridged):
    assert energy(rows, *window) == (pytest.approx(energy_j), pytest.approx(bridged))


def test_means_and_maxima_are_those_of_the_window():
    rows = [
        reading(0, power_w=500, utilization=1, temperature_c=90, memory_used_gib=70),  # before
        reading(1, power_w=100, utilization=0.5, temperature_c=60, memory_used_gib=10),
        reading(2, power_w=300, utilization=0.75, sm_clock_mhz=1000, memory_utilization=0.25),
        reading(2, sm_active=0.5, sm_occupancy=0.25),
    ]
    row = only_row(database(rows, {1: (0.5, 2)}), "device_telemetry")
    assert (row["mean_power_w"], row["max_power_w"]) == (200, 300)
    assert (row["mean_utilization"], row["max_utilization"]) == (0.625, 0.75)
    assert (row["mean_memory_utilization"], row["max_memory_utilization"]) == (0.25, 0.25)
    assert (row["mean_sm_active"], row["max_sm_occupancy"]) == (0.5, 0.25)
    assert (row["max_memory_used_gib"], row["max_temperature_c"]) == (10, 60)
    assert row["mean_sm_clock_mhz"] == 1000


def test_seconds_throttled_go_to_their_reasons():
    rows = [
        reading(0, throttle_reasons="sw_power_cap"),
        reading(1, throttle_reasons="sw_power_cap,hw_thermal_slowdown"),
        reading(3, throttle_reasons=""),
        reading(4, throttle_reasons="gpu_idle"),  # a clock is low without load: no throttling
        reading(6, throttle_reasons="sync_boost"),
        reading(7, throttle_reasons=""),
    ]
    row = only_row(database(rows, {1: (0.5, 6)}), "device_telemetry")
    assert row["throttled_s"] == pytest.approx(0.5 + 2 + 0.5)
    seconds = json.loads(row["throttle_reason_s"])
    assert seconds == {"hw_thermal_slowdown": 2, "sw_power_cap": 2.5, "sync_boost": 0.5}


def test_a_point_uses_what_its_devices_use():
    rows = [
        reading(0.00, "gpu0", energy_j=0, power_w=100),
        reading(0.01, "gpu1", energy_j=0, power_w=50),
        reading(1.00, "gpu0", energy_j=100, power_w=300),
        reading(1.01, "gpu1", energy_j=90, power_w=150),
        reading(2.00, "gpu0", energy_j=300, power_w=200),
        reading(2.01, "gpu1", energy_j=0, power_w=350),  # a reset: 1 s at 250 W
    ]
    row = only_row(database(rows, {1: (0.01, 1.99)}), "energy")
    # GPU 0: 99 + 200 J; GPU 1: 90 + 250 J, of which 0.99 s.
    assert row["energy_j"] == pytest.approx(299 + 90 + 247.5)
    assert row["energy_bridged_fraction"] == pytest.approx(247.5 / 636.5)
    # In the window: 300 and 200 W; 50 and 150 W (350 W came after its end).
    assert row["mean_power_w"] == pytest.approx(250 + 100)
    assert row["max_power_w"] == 450


def test_a_point_of_which_a_device_is_unknown_is_unknown_but_a_mig_instance_has_no_meter():
    gpu = [reading(t, "gpu0", energy_j=t, power_w=1) for t in (0, 2)]
    row = only_row(database([*gpu, reading(0, "gpu1")], {1: (0, 2)}), "energy")
    assert row["energy_j"] is row["mean_power_w"] is row["max_power_w"] is None
    instance = [reading(t, "MIG-a", memory_used_gib=5) for t in (0, 2)]
    connection = database(gpu + instance, {1: (0, 2)})
    row = only_row(connection, "energy")
    assert (row["energy_j"], row["mean_power_w"], row["max_power_w"]) == (2, 1, 1)
    devices = connection.table("device_telemetry").df().set_index("device")
    assert devices.loc["MIG-a", "max_memory_used_gib"] == 5
    assert pd.isna(devices.loc["MIG-a", "energy_j"])
