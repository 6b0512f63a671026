"""Inference servers: what the benchmark needs of an engine, and the engines that can do it.

In go an `EngineSettings` and, for servers that are started here, a `ServerSpec` each. Out come
`Server`s that answer, and that end for certain if they were started here. Read `protocol` first,
then `registry`; `endpoint` is the shortest engine, `vllm` (with `vllm_command`, `vllm_arguments`
and `vllm_log`) the one that starts servers. `group` starts and ends replicas together, `devices`
picks what they run on, `free_memory` watches what they leave;
`http` asks servers, `prometheus` reads what they say of themselves.
"""
