"""Sextant: from production traces of LLM requests to the cheapest GPU that meets an SLO."""

from pathlib import Path

__version__ = "0.2.0"

PROJECT = Path(__file__).parents[2]
"""The checkout: facts, schemas and plugins lie there, beside the library."""
