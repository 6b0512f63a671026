"""Places that tests need."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
FAKE_PYTHON = ROOT / "tests" / "fake_engine" / "python"
"""Interpreter whose vLLM is a fake that answers in a second."""
