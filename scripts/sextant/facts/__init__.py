"""Facts of GPUs and LLMs, engines, prices, memory and SLOs.

In go configurations and data sheets (`config.json`; `gpus`, `engines` and `prices` of resources);
out come typed facts, or an InputError that names the field.

Read `gpu` first: device types, GPU profiles (n devices of one type that serve one replica) and
their prices. `llm` has the facts of an LLM. `llm_config` reads a `config.json`; `llm_families` says
what is unusual about its family; `llm_decoder` counts. `llm_sizes` and `llm_layers` find sizes and
kinds of layers, `llm_mixers` and `llm_experts` what is in them; `llm_variants` has families that
need code. `llm_quantization` and `llm_modules` find the bits of weights. `speculation` adds what
drafts tokens and how many are accepted. `engine` has what serving takes: memory, the engine's
schedule, the time to start. `slo` has limits of latencies and the load, `answer_times` how long an
answer takes and how many are under way.
"""
