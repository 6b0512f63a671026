"""The engines that a configuration may name. A new one is one file and one row here."""

import os
from pathlib import Path

from sextant.base.errors import InputError
from sextant.engine.endpoint import EndpointEngine
from sextant.engine.protocol import Engine
from sextant.engine.simulated import SimulatedEngine
from sextant.engine.vllm import VLLM
from sextant.experiment.servers import ENDPOINT, SIMULATED, EngineSettings

ENGINES: dict[str, Engine] = {
    "vllm": VLLM(),
    ENDPOINT: EndpointEngine(),
    SIMULATED: SimulatedEngine(),
}


def missing_engine(settings: EngineSettings) -> InputError | None:
    """Return the error of a configuration whose servers' interpreter cannot be started."""
    is_there = Path(settings.python).is_file()
    if settings.name != "vllm" or (is_there and os.access(settings.python, os.X_OK)):
        return None
    what = "is no program" if is_there else "is not there"
    problem = f"{settings.python} {what}: no server can be started"
    fix = "`make .venv-vllm/.ready` installs vLLM's CPU build; docs/cluster.md has the others"
    return InputError(problem, field="engine.python", fix=fix)


def check_settings(settings: EngineSettings, file: str | Path) -> list[str]:
    """Check a configuration's `engine`; return warnings. InputError: one that it cannot have."""
    if settings.name not in ENGINES:
        fix = f"use one of {', '.join(ENGINES)}"
        problem = f"unknown engine {settings.name!r}"
        raise InputError(problem, file=file, field="engine.name", fix=fix)
    return ENGINES[settings.name].check(settings, file)
