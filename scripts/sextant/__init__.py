"""Sextant: from production traces of LLM requests to the cheapest GPU that keeps a promise."""

from importlib.metadata import version

__version__ = version("sextant")
