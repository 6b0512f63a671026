"""Compiles the simulation while the package is built, for a wheel and an editable install.

Without a C compiler, or with a Numba that cannot do it, the package has no compiled module: Numba
then compiles when the first question is asked.
"""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledSimulation(BuildHookInterface):
    """Adds the compiled module to the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place; a wheel gets the module, and the tags of this Python and platform."""
        sys.path.insert(0, str(Path(self.root) / "scripts"))
        try:
            from sextant.simulate.building import build

            module = build()
        except Exception as error:  # the package works without the module
            self.app.display_warning(f"the simulation is not compiled: {error!r}")
            return
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(module)] = f"sextant/simulate/{module.name}"
