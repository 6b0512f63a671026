"""SM activity from NVIDIA's dcgm-exporter, which NVML does not have.

The exporter has to be told to export both fields (they are not in its default list), and to
collect them every second (`--collect-interval 1000`); by default it does so every 30 s.
"""

from collections.abc import Callable, Sequence

from sextant.engine.prometheus import fetch, samples
from sextant.engine.telemetry.nvml import Gpu

_FIELDS = {"sm_active": "DCGM_FI_PROF_SM_ACTIVE", "sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY"}


def dcgm_reader(
    url: str, gpus: Sequence[Gpu], warn: Callable[[str], None]
) -> Callable[[], list[dict]]:
    """Return a reader of `sm_active` and `sm_occupancy` (fractions) of these devices.

    `url` is the exporter's, with or without `/metrics`. Without an answer there are no rows;
    the first such failure, and the first answer without these fields, give a warning.
    """
    base_url = url.removesuffix("/").removesuffix("/metrics")
    warned: set[str] = set()

    def warn_once(kind: str, message: str) -> None:
        if kind not in warned:
            warned.add(kind)
            warn(message)

    def read() -> list[dict]:
        try:
            text = fetch(base_url)
        except OSError as error:
            warn_once("silent", f"dcgm-exporter at {url} does not answer: {error}")
            return []
        rows = [_activity(text, gpu) for gpu in gpus]
        lacking = [field for name, field in _FIELDS.items() if not any(name in r for r in rows)]
        if lacking:
            warn_once("lacking", f"dcgm-exporter at {url} has no {', '.join(lacking)} of our GPUs")
        return [row for row in rows if len(row) > 1]

    return read


def _activity(text: str, gpu: Gpu) -> dict:
    row: dict = {"device": gpu.name}
    for name, field in _FIELDS.items():
        for labels, value in samples(text, field):
            # Outside of 0 to 1 are DCGM's marks for a value that it does not have.
            if _is_of(labels, gpu) and 0 <= value <= 1:
                row[name] = value
    return row


def _is_of(labels: dict[str, str], gpu: Gpu) -> bool:
    """Return whether a series is of this device: by UUID, by index where one is not known."""
    instance = labels.get("GPU_I_ID") or None
    if instance != (None if gpu.instance_id is None else str(gpu.instance_id)):
        return False
    if gpu.uuid and labels.get("UUID"):
        return labels["UUID"] == gpu.uuid
    return f"gpu{labels.get('gpu')}" == gpu.name
