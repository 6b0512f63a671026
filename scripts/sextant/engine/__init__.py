"""Inference servers that the pipeline starts and stops."""
