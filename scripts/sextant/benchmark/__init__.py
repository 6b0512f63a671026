"""The benchmark stage: one LLM on one GPU profile under one scenario."""
