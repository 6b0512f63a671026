"""Facts of GPUs and LLMs, engines, prices, memory and SLOs.

`gpu` reads a device type's facts (`resources/gpus/<gpu_id>.yaml`) and makes GPU profiles of them: n
devices of one type that serve one replica, with a price from the tables of providers. `llm`
computes an LLM's facts from its `config.json`, and the memory of its server; `speculation` what
drafts for it and how much of that is accepted. `engine` is what is known of engines. `slo` has
limits of latencies and the load.
"""
