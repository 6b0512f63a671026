"""The process that watches a level: devices, DCGM and the servers' metrics, each in a thread.

Run as `python -m sextant.engine.watching_process` with the plan as the first line of standard
input. Rows go, a JSON object a line, to the files that the plan names; warnings to standard
error. A line on standard output says that every source was read once. The process ends when
standard input closes, hence when its parent ends, in whatever way.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from sextant.engine.gauges import Series, SeriesEndedError, write_rows
from sextant.engine.http import MetricNames, fetch, server_gauges

GPU_PERIOD_S = 0.1
# The system accounts CPU time in steps of 10 ms, and asking for it costs some ms.
CPU_PERIOD_S = 0.5
HTTP_PERIOD_S = 1.0
_LAST_READING_S = 2.0

Clock = Callable[[], float]
"""Returns the seconds since the cell's epoch."""


def gpu_series(plan: dict, clock: Clock, warn: Callable[[str], None]) -> list[Series]:
    """Return a series a GPU, and one of DCGM if the plan has its address."""
    from sextant.engine.gauges import Gpu, dcgm_reader, open_gpus

    file = plan["telemetry_file"]
    gpus, unknown = open_gpus(plan["devices"], warn)
    # A row without values says that the device was there and not measured.
    write_rows(file, [{"time_s": clock(), "device": gpu.name} for gpu in unknown])

    def rows(gpu: Gpu) -> list[dict]:
        return [{"time_s": clock(), **gpu.read()}]

    series = [Series(partial(rows, gpu), GPU_PERIOD_S, file, is_read_at_end=True) for gpu in gpus]
    if plan["dcgm_url"]:
        read = dcgm_reader(plan["dcgm_url"], gpus + unknown, warn)
        series.append(
            Series(lambda: [{"time_s": clock(), **row} for row in read()], HTTP_PERIOD_S, file)
        )
    return series


def server_series(plan: dict, replica: int, url: str, clock: Clock) -> Series:
    """Return the series of a server's own metrics; an unanswered request gives no row."""
    known = [MetricNames(**names) for names in plan["metric_names"]]

    def read() -> list[dict]:
        try:
            text = fetch(url)
        except OSError:
            return []
        return [{"replica": replica, "time_s": clock(), **server_gauges(text, known)}]

    return Series(read, HTTP_PERIOD_S, plan["server_file"])


def all_series(plan: dict, clock: Clock, warn: Callable[[str], None]) -> list[Series]:
    """Return the series of everything that the plan names."""
    series = [
        server_series(plan, replica, url, clock) for replica, url in enumerate(plan["server_urls"])
    ]
    if not plan["devices"]:  # the servers run elsewhere
        return series
    if plan["kind"] == "cpu":
        from sextant.engine.gauges import cpu_reader

        read, file = cpu_reader(plan["pids"], len(plan["devices"])), plan["telemetry_file"]
        return [*series, Series(lambda: [{"time_s": clock(), **read()}], CPU_PERIOD_S, file, True)]
    return series + gpu_series(plan, clock, warn)


def main() -> None:
    """Watch until standard input closes."""
    plan: dict[str, Any] = json.loads(sys.stdin.buffer.readline())

    def clock() -> float:
        return (time.monotonic_ns() - plan["epoch_ns"]) / 1e9

    def warn(message: str) -> None:
        print(f"{message} (at {clock():.1f} s)", file=sys.stderr, flush=True)

    def follow(series: Series, begun: threading.Event) -> None:
        try:
            series.run(stopped, begun)
        except SeriesEndedError as error:
            warn(f"{error}: its series ends")
        except Exception as error:  # the other series go on
            warn(f"a series ended: {error!r}")

    def announce() -> None:
        for event in begun:
            event.wait()
        print("watching", flush=True)

    stopped = threading.Event()
    begun: list[threading.Event] = []
    threads = []
    for series in all_series(plan, clock, warn):
        begun.append(threading.Event())
        threads.append(threading.Thread(target=follow, args=(series, begun[-1]), daemon=True))
        threads[-1].start()
    threading.Thread(target=announce, daemon=True).start()
    sys.stdin.buffer.read()
    stopped.set()
    deadline_s = time.monotonic() + _LAST_READING_S
    for thread in threads:
        thread.join(max(deadline_s - time.monotonic(), 0.0))
    sys.stderr.flush()
    # At once: a thread that hangs in the driver may hold its locks.
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"telemetry failed: {error!r}")
