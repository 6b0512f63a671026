"""Workloads: what is replayed, as a request model, an arrival model and prompts."""
