"""Sextant: from production traces of LLM requests to the cheapest GPU that meets an SLO.

    import sextant

    answer = sextant.recommend(llm="Qwen__Qwen3-32B", users=50, ttft_ms="p95:1000", itl_ms=50)

The functions of `api` are loaded when they are first asked for. Some rooms have the name of a
function: as an attribute of this package the name is the function, in an import it is the room.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.3.0"
_MODULES = {
    "capacity": "capacity",
    "compare": "compare",
    "fit": "traces",
    "fleet": "fleet",
    "ingest": "traces",
    "plan": "plan",
    "recommend": "recommend",
    "rightsize": "rightsize",
    "simulate": "simulate",
}
"""Functions, and their modules in `api`: named here alone, so that no room imports those above."""
__all__ = [*_MODULES]


class _Package(ModuleType):
    """The package, whose attributes in `_MODULES` are functions."""

    def __getattr__(self, name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'sextant' has no attribute {name!r}")
        function = getattr(import_module(f"sextant.api.{_MODULES[name]}"), name)
        self.__dict__[name] = function
        return function

    def __setattr__(self, name: str, value: Any) -> None:
        # An import of a room sets it as an attribute of its package.
        if name not in _MODULES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_MODULES})


sys.modules[__name__].__class__ = _Package
