"""Predictors: what an LLM that was never measured would do, and how far to trust that."""
