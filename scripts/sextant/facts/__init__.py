"""Facts of GPUs and LLMs, prices and SLOs.

`gpu` reads a device type's facts (`resources/gpus/<gpu_id>.yaml`) and makes GPU profiles of them: n
devices of one type that serve one replica, with a price, which `prices` finds in the tables of
providers. `slo` has the limits of latencies and the load. `llm` computes an LLM's facts from its
`config.json`.
"""
