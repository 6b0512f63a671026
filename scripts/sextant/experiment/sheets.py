"""What the configuration and the rows of its sheets may hold; read by `base.sheets`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sextant.base.sheets import IS_ID, Id, SelectableId, file_name
from sextant.facts.gpu import GpuId, NGpus, Price, PriceDate
from sextant.facts.slo import Limits

_Name = Annotated[str, Field(min_length=1)]
_Fraction = Annotated[float, Field(ge=0, le=1)]
_UpTo1000 = Annotated[int, Field(ge=1, le=1000)]
_Flag = Literal[0, 1]
_Study = Literal[
    "characterize", "pareto", "replicas", "pods", "workload_choice", "burst", "sensitivity"
]
Dtype = Literal["float32", "float16", "bfloat16"]
DEFAULT_VARIANT = "default"  # the variant of a cell whose servers are set up as usual


@dataclass(frozen=True, order=True)
class CellKey:
    """An LLM × GPU profile × workload × scenario, on servers of a variant."""

    llm_id: str
    gpu_profile_id: str
    workload_id: str
    scenario_id: str
    variant_id: str = DEFAULT_VARIANT

    @property
    def folder(self) -> str:
        """Place of its results below those of its source; the default variant is not named."""
        *names, variant = map(file_name, asdict(self).values())
        return "/".join(names) + ("" if variant == DEFAULT_VARIANT else f"@{variant}")


@dataclass(frozen=True, kw_only=True)
class TraceRow:
    """config/traces.tsv: each row is one production trace."""

    trace_id: Annotated[str, Field(pattern=r"^(?!(?i:.*\.(rejected|report)$))"), IS_ID]
    """name of the trace: 1 to 100 visible characters; not ending in .rejected or .report"""
    dataset: str  #: dataset_id in resources/registry.csv, or the path of a file
    format: Literal[
        "azure",
        "burstgpt",
        "mooncake",
        "qwen-bailian",
        "openai",
        "anthropic",
        "litellm",
        "langfuse",
        "otel",
        "sglang",
        "aiperf",
        "inference-perf",
        "kv-cache-tester",
        "ragpulse",
        "sextant",
        "prometheus",
        "columns",
    ]
    """how the file is written; see docs/adding.md"""
    columns: str | None = None
    """format columns: their names, e.g. arrival=ts,input_tokens=in,…; or a mapping file (.yaml)"""
    time_unit: Literal["s", "ms", "us", "ns", "iso", "mdy", "dmy"] | None = None
    """with the format columns: unit of its arrivals; iso for date-times, mdy or dmy if the year
    comes last; default as the first one looks"""
    where: str | None = None
    """which rows are requests: column=value|value or column!=value, several with commas between"""
    status_words: str | None = None
    """further words of the status: word=ok or word=failed, with commas between"""
    ignore_unknown: Literal["true", "false"] | None = None
    """true: leave out columns that the format does not know; default false, an error names them"""
    max_rate_rps: PositiveFloat | None = None
    """highest mean rate that is believed, requests per second; default 1000"""
    max_rejected_fraction: _Fraction | None = None
    """fraction of malformed rows that may be set aside, 0 to 1; default 0.01"""
    start_time: str | None = None
    """ISO 8601 date-time of time zero; daily profiles need it where arrivals are plain numbers"""


@dataclass(frozen=True, kw_only=True)
class WorkloadRow:
    """config/workloads.tsv: each row is one workload, of a trace, a use case or two lengths."""

    workload_id: Id  #: name of the workload: 1 to 100 visible characters
    trace_id: str | None = None
    """a trace of traces.tsv; give one of this, use_case, and the two lengths"""
    llm: str | None = None
    """with trace_id: the LLM of the trace whose requests to take; empty: all"""
    service: str | None = None
    """with trace_id: the service of the trace whose requests to take; empty: all"""
    use_case: str | None = None
    """a use case of resources/workloads/use_cases.yaml, instead of a trace or the two lengths"""
    input_tokens: PositiveInt | None = None
    """input of every request, in tokens; with output_tokens, instead of a trace or use case"""
    output_tokens: PositiveInt | None = None
    """output of every request, in tokens; see input_tokens"""
    sampler: Literal["joint", "independent"] | None = None
    """joint (default), or independent: each from its own distribution (LLM-Pilot's ablation)"""
    prompts: str | None = None
    """text, or JSON of prompts and responses, to cut prompts from; without it random token ids"""
    n_bins: PositiveInt | None = None
    """most bins per request parameter; default 64 as in LLM-Pilot"""
    max_input_tokens: PositiveInt
    """cap on a request's input, in tokens; longer ones are cut to it and counted"""
    max_output_tokens: Annotated[int, Field(ge=2)]
    """cap on a request's output, in tokens; longer ones are cut to it and counted"""


@dataclass(frozen=True, kw_only=True)
class LlmRow:
    """config/llms.tsv: each row is one LLM."""

    llm_id: SelectableId
    """name of the LLM, e.g. org/name: 1 to 100 visible characters, no comma, not *"""
    config: str  #: path of the LLM's Hugging Face config.json, from which its facts are computed
    model: str | None = None
    """folder with the LLM's weights; empty for random weights from the config alone"""


@dataclass(frozen=True, kw_only=True)
class GpuProfileRow:
    """config/gpu_profiles.tsv: each row is n devices of one type that serve one replica."""

    gpu_profile_id: SelectableId
    """name of the profile, e.g. 2xA100-40GB: 1 to 100 visible characters, no comma, not *"""
    gpu_id: GpuId
    """a device type with a facts file <gpu_id>.yaml; letters, digits and . _ + - only"""
    n_gpus: NGpus  #: devices of one replica, 1 to 9,999
    usd_per_hour: Price  #: price of the whole profile in USD per hour, above 0: 0.0001 to 1,000,000
    gpu_model: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]+$")] | None = None
    """the device type as a scheduler names it (SLURM: the Type of `sinfo -o %G`), e.g. h100; empty
    for any. No measurement depends on it; with devices of kind cpu the scheduler's are cores"""
    price_source: str | None = None
    """whose price it is, e.g. aws on demand, us-east-1; answers say it"""
    price_as_of: PriceDate | None = None  #: date of the price: YYYY, YYYY-MM or YYYY-MM-DD


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """config/benchmarks.tsv: each row is the cells of all combinations of its columns."""

    llm_ids: str  #: LLMs of llms.tsv separated by commas, or * for all
    gpu_profile_ids: str  #: profiles of gpu_profiles.tsv separated by commas, or * for all
    workload_id: str  #: a workload of workloads.tsv
    scenario_id: str  #: a scenario of scenarios.tsv
    variant_ids: str | None = None
    """variants of variants.tsv separated by commas, or * for all; `default` without it"""
    choose: Literal["adaptive"] | None = None
    """adaptive: `sextant measure` chooses which of these cells to measure; without it all"""
    study: _Study | None = None  #: the study that these cells feed, none without it


@dataclass(frozen=True, kw_only=True)
class ScenarioRow:
    """config/scenarios.tsv: each row is one way to put load on a server."""

    scenario_id: Annotated[str, Field(pattern=r"^(?!(?i:.*\.server(\.[0-9]+)?$))"), IS_ID]
    """name of the scenario: 1 to 100 visible characters; not ending in .server, as logs do"""
    kind: Literal["closed_loop", "open_loop", "batch", "burst"]
    """closed_loop: users, one request after another; open_loop: requests at a rate, whether earlier
    ones have ended or not; batch: everything at once; burst: BurstGPT's phases"""
    levels: Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?|inf)(, *([0-9]+(\.[0-9]+)?|inf))*$")]
    """ascending, separated by commas: users (closed_loop), requests per second (open_loop; inf: all
    at once), most requests in flight (batch), phases (burst)"""
    warmup_s: NonNegativeFloat | None = None
    """seconds of load before each level that are not measured; default 0"""
    duration_s: PositiveFloat | None = None
    """seconds during which requests start at each level; burst: of the mirrored loads"""
    cooldown_s: NonNegativeFloat | None = None
    """seconds of load after each level, not measured, while its last requests end; default 0"""
    n_requests: PositiveInt | None = None
    """requests of a level (open_loop), of a batch (default: its size), between changes (burst)"""
    burstiness: PositiveFloat | None = None
    """shape of the Gamma gaps of an open loop; 1 (default) is Poisson, less is burstier"""
    arrivals: Literal["fitted", "gamma", "rescaled", "replay"] | None = None
    """open_loop: the workload's arrivals at each level's mean rate: fitted (the chosen model),
    replay (the trace's own times), or one of the fitted models; empty: Gamma gaps"""
    timeout_s: PositiveFloat | None = None
    """seconds until a request has failed; default engine.request_timeout_s, 30 for burst"""
    stop_nttft_ms: PositiveFloat | None = None
    """closed_loop: limit on median nTTFT; above it and stop_itl_ms larger levels are left out"""
    stop_itl_ms: PositiveFloat | None = None
    """closed_loop: limit on the median ITL, see stop_nttft_ms"""
    stop_factor: Annotated[float, Field(ge=1)] | None = None
    """closed_loop: factor above both limits from which levels are left out; default 2"""


@dataclass(frozen=True, kw_only=True)
class EndpointRow:
    """config/endpoints.tsv: each row is a server that runs already, which is only measured."""

    llm_id: SelectableId  #: the LLM that it serves, of llms.tsv
    gpu_profile_id: SelectableId  #: what it runs on, of gpu_profiles.tsv, which has its price
    base_urls: str
    """http://HOST:PORT or https://HOST, with or without /v1; several with commas are replicas"""
    served_model_name: _Name  #: what the server calls the LLM (`model` of a request)
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """environment variable that holds its API key; empty if it needs none"""
    ca_file: str | None = None
    """certificates (PEM) of a private CA, for https; empty for the system's"""


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """Cells of an archive: each row is one LLM on one GPU profile."""

    llm_id: str  #: an LLM of llms.tsv
    gpu_profile_id: str  #: a profile of gpu_profiles.tsv
    status: Literal["measured", "too_small", "omitted"]
    """measured, too_small (its memory) or omitted (limits of software or hardware)"""


@dataclass(frozen=True, kw_only=True)
class ChosenCellRow:
    """Cells that `sextant measure` has chosen, in the order of their choice."""

    round: NonNegativeInt
    """a whole number; 0 are cells that had been measured before the first round"""
    llm_id: str  #: an LLM of llms.tsv
    gpu_profile_id: str  #: a profile of gpu_profiles.tsv
    levels: Annotated[str, Field(pattern=r"^[1-9][0-9]*(,[1-9][0-9]*)*$")]
    """numbers of users, ascending, separated by commas"""


@dataclass(frozen=True, kw_only=True)
class LlmFeatureRow:
    """Features that came with a characterization: each row is one LLM, as its publisher says."""

    llm_id: SelectableId  #: an LLM of llms.tsv
    n_positions: PositiveInt | None = None  #: length of the positions in tokens; empty if not given
    relative_attention_max_distance: PositiveInt | None = None
    """largest relative position with a bucket of its own; empty without relative attention"""
    relative_attention_n_buckets: PositiveInt | None = None
    """buckets of relative positions; empty without relative attention"""
    note: str | None = None  #: what looks wrong in the row; not a feature
    is_flash_attention: _Flag  #: 1 if it was served with flash attention, else 0
    n_parameters_billion: PositiveFloat  #: billions of parameters, as published
    is_encoder_decoder: _Flag  #: 1 for an encoder-decoder, 0 for a decoder alone
    llm_type: str  #: model_type of its Hugging Face config
    n_heads: PositiveInt  #: attention heads of a layer
    n_layers: PositiveInt  #: layers of the decoder
    dtype: Dtype  #: data type of the published weights
    vocabulary_size: PositiveInt  #: entries of the vocabulary


@dataclass(frozen=True, kw_only=True)
class GpuFeatureRow:
    """Features that came with a characterization: each row is one device type.

    It has 23 fields because the published sheet has 23 columns, each one a feature.
    """

    gpu_id: GpuId  #: a device type with a facts file resources/gpus/<gpu_id>.yaml
    architecture: str  #: the maker's name of the architecture, e.g. Ampere
    note: str | None = None  #: what looks wrong in the row; not a feature
    n_tensor_cores: NonNegativeInt  #: tensor cores
    n_rt_cores: NonNegativeInt  #: ray-tracing cores
    n_cuda_cores: NonNegativeInt  #: CUDA cores
    n_sms: PositiveInt  #: streaming multiprocessors
    n_rops: NonNegativeInt  #: raster operations pipelines
    n_tmus: NonNegativeInt  #: texture mapping units
    memory_capacity_gb: PositiveFloat  #: memory of one device in GB
    memory_bandwidth_gb_s: PositiveFloat  #: peak memory bandwidth of one device in GB/s
    system_interface_gen: PositiveInt  #: generation of PCI Express
    compute_capability: PositiveFloat  #: CUDA compute capability, e.g. 8.6
    is_sxm: _Flag  #: 1 for an SXM module, else 0
    is_nvlink: _Flag  #: 1 if devices are linked by NVLink, else 0
    tflops_cuda_mixed: float  #: peak mixed rate on CUDA cores in TFLOP/s; -1: none
    tflops_cuda_fp32: float  #: peak fp32 rate on CUDA cores in TFLOP/s; -1: none
    tflops_cuda_fp64: float  #: peak fp64 rate on CUDA cores in TFLOP/s; -1: none
    tflops_tc_bf16: float  #: peak bf16 rate on tensor cores in TFLOP/s; -1: none
    tflops_tc_fp16: float  #: peak fp16 rate on tensor cores in TFLOP/s; -1: none
    tflops_tc_fp32: float  #: peak fp32 rate on tensor cores in TFLOP/s; -1: none
    tflops_tc_tf32: float  #: peak tf32 rate on tensor cores in TFLOP/s; -1: none
    tflops_tc_fp64: float  #: peak fp64 rate on tensor cores in TFLOP/s; -1: none


@dataclass(frozen=True, kw_only=True)
class DemandRow(Limits):
    """`sextant fleet --demands`: each row is an LLM that a team wants served, within limits."""

    demand_id: Id  #: name of the demand: 1 to 100 visible characters
    team: Id  #: whose demand it is: 1 to 100 visible characters
    llm_id: str | None = None  #: an LLM of the characterization; or give hf_config
    hf_config: str | None = None
    """path of the config.json, or of its folder, of an LLM never measured; or give llm_id"""
    priority: _UpTo1000 | None = None
    """who goes first where not all can be served: 1 (the default) before 2, up to 1,000"""
    least_replicas: _UpTo1000 | None = None
    """replicas at any time, 1 (the default) to 1,000; on different nodes if there is room"""
    trace_id: Id | None = None
    """a normalised trace, <trace_id>.parquet in the folder --traces: its requests' mean lengths,
    and the mean rate of its busiest hour unless users or request_rate_rps is given"""
    llm: str | None = None
    """with trace_id: the LLM of the trace whose requests to take; empty: all"""
    service: str | None = None
    """with trace_id: the service of the trace whose requests to take; empty: all"""


@dataclass(frozen=True, kw_only=True)
class SupplyRow:
    """`sextant fleet --supply`: each row is a pool of nodes that are alike."""

    pool_id: Id  #: name of the pool: 1 to 100 visible characters
    gpu_id: GpuId  #: a device type with a facts file resources/gpus/<gpu_id>.yaml
    mig_profile: Annotated[str, Field(pattern=r"^[1-7]g\.[0-9]+gb$")] | None = None
    """where the devices are slices of that GPU: NVIDIA's name of the MIG profile, e.g. 3g.20gb"""
    nodes: Annotated[int, Field(ge=0, le=10_000)]
    """nodes that there are or can be rented, 0 to 10,000; 0 asks what a first one is worth"""
    devices_per_node: Annotated[int, Field(ge=1, le=1024)]
    """GPUs of a node, or its MIG slices, 1 to 1,024"""
    kind: Literal["owned", "rentable"]
    """owned (a device costs its price while in use) or rentable (a node in use is paid whole)"""
    usd_per_hour: Annotated[float, Field(ge=0, le=1e6)]
    """price of one device in USD per hour, 0 to 1,000,000; 0 where owned ones cost nothing more"""
    price_source: str | None = None
    """whose price it is, e.g. aws on demand, us-east-1; answers say it"""
    price_as_of: PriceDate | None = None  #: date of the price: YYYY, YYYY-MM or YYYY-MM-DD


@dataclass(frozen=True, kw_only=True)
class SheetPaths:
    """Path of each sheet."""

    traces: str  #: path of traces.tsv
    workloads: str  #: path of workloads.tsv
    llms: str  #: path of llms.tsv
    gpu_profiles: str  #: path of gpu_profiles.tsv
    scenarios: str  #: path of scenarios.tsv
    benchmarks: str  #: path of benchmarks.tsv
    slos: str  #: path of slos.tsv
    variants: str | None = None  #: path of variants.tsv; without it there is one server per cell
    demands: str | None = None
    """path of demands.tsv, what teams want served on a cluster; with it supply"""
    supply: str | None = None  #: path of supply.tsv, the nodes of that cluster; with it demands
    endpoints: str | None = None
    """path of endpoints.tsv; without it the pipeline starts all servers"""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A published characterization."""

    data: str  #: a data set of the registry, or the path of the archive or of its unpacked folder
    manifest: str  #: SHA-256 of each file of the archive
    cells: str  #: which cells were measured, and why the others were not
    published_points: str  #: medians of points whose requests are not in the archive


@dataclass(frozen=True, kw_only=True)
class FeatureSheets:
    """Sheets of features."""

    llms: str  #: one row per LLM
    gpus: str  #: one row per device type


@dataclass(frozen=True, kw_only=True)
class AdaptiveDecision:
    """What recommendations rest on."""

    workload_id: Id  #: a workload of workloads.tsv
    scenario_id: Id  #: a closed-loop scenario of scenarios.tsv


@dataclass(frozen=True, kw_only=True)
class PathVars:
    """Folders."""

    results: str  #: folder of the results
    logs: str  #: folder of the logs
    benchmarks: str  #: folder of the jobs' run times


@dataclass(frozen=True, kw_only=True)
class EngineSection:
    """How servers are run: the `engine` part of the configuration."""

    python: str  #: interpreter of the environment that has the engine
    dtype: Dtype  #: data type of weights and KV cache
    block_size_tokens: Literal[16, 32, 64, 128]  #: tokens per KV block
    max_num_seqs: PositiveInt  #: most requests in one batch
    memory_utilization: Annotated[float, Field(gt=0, le=1)]  #: fraction of device memory to use
    start_timeout_s: PositiveFloat  #: seconds until a server must be healthy
    request_timeout_s: PositiveFloat  #: seconds until a request has failed
    max_server_starts: PositiveInt  #: most server starts of the batch-weight search
    extra_arguments: Sequence[str] = ()
    """further arguments of the server, e.g. [--quantization, fp8]"""
    compile_cache: str | None = None
    """folder on a disk of all nodes where servers share what vLLM compiles; by default each cell
    compiles for itself. No measurement depends on it"""
    dcgm_url: str | None = None
    """dcgm-exporter on the nodes, for SM activity, e.g. http://localhost:9400/metrics"""
    name: str = "vllm"
    """vllm (default); endpoint: all servers run already, see endpoints.tsv; or simulated: a
    rehearsal, whose latencies are the law's, not measured"""


def _once_each(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError(f"{', '.join(names)} has a name twice")
    return names


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What Sextant runs (sheets) and how: the files config/*.yaml, merged."""

    sheets: SheetPaths  #: path of each sheet
    registry: str  #: path of the registry of downloads
    gpus: str  #: folder of the device facts
    seed: NonNegativeInt  #: seed of all random numbers
    # With the names of a cell it makes the name of one folder.
    source: Annotated[str, Field(max_length=24, pattern="^[a-z][a-z0-9_-]*(:[a-z0-9_-]+)?$")]
    """name of this characterization, e.g. measured"""
    archive: Archive | None = None  #: a published characterization to import instead of measuring
    features: FeatureSheets | None = None
    """sheets of features that predictors use instead of those computed from facts"""
    predictors: Annotated[list[str], Field(min_length=1), pydantic.AfterValidator(_once_each)]
    """predictors to judge, by name"""
    decision: AdaptiveDecision  #: workload and closed-loop scenario that recommendations rest on
    pathvars: PathVars  #: folders that Snakemake puts results, logs and run times in
    engine: EngineSection  #: how inference servers are run
