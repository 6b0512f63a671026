# What the rules share: the experiment, read and checked before anything runs, the
# constraints of the wildcards, and the functions that return a rule's inputs.
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from snakemake.io import apply_wildcards
from snakemake.jobs import Job

from sextant.base.errors import InputError, require_docstrings
from sextant.engine.registry import check_settings
from sextant.experiment.experiment import cell_definition, trace_sha256
from sextant.experiment.experiment import is_cell_of, is_trace_of, is_workload_of
from sextant.experiment.loading import load_experiment
from sextant.base.sheets import by_file_name, file_name
from sextant.base.files import library_files
from sextant.base.job_log import end_with_parent, announce_to_jobs
from sextant.predict.registry import configurable
from sextant.predict.registry import PREDICTORS, check_installed
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey
from sextant.workload.published import use_case_sha256

try:
    require_docstrings()
    EXPERIMENT = load_experiment(config, "the configuration", configurable(), check_settings)
    if not workflow.deployment_settings.deployment_method:  # conda brings them for each rule
        check_installed(config["predictors"], "predictors")
except InputError as error:
    # The message says everything; a traceback would hide it.
    sys.exit(f"Error: {error}")

announce_to_jobs()
if workflow.remote_exec:
    end_with_parent()

# The plugin of `sextant plan`, where Snakemake runs with it.
if plugin := sys.modules.get("snakemake_logger_plugin_sextant_plan"):
    plugin.workflow = workflow

# Snakemake measures again what is older than its script, and a copy, a checkout or a comment
# gives a script a new date. These three only call the library.
for name in ("ingest_trace", "fit_workload", "benchmark_cell"):
    with suppress(OSError):  # another user's file, or a read-only disk
        os.utime(Path(workflow.basedir) / "scripts" / f"{name}.py", (0, 0))


def spare_cells(remove):
    """Return Snakemake's removal of a job's files, which it does before and after a failure, for
    all rules but one: a cell's results stay until those that replace them are whole.
    """

    async def removed(job, *arguments, **options):
        if job.rule.name != "benchmark_cell":
            await remove(job, *arguments, **options)

    return removed


Job.remove_existing_output = spare_cells(Job.remove_existing_output)
Job.cleanup = spare_cells(Job.cleanup)

# Wildcards hold file names, the experiment's tables ids: ids of each wildcard by file name.
IDS = {
    "dataset": by_file_name(EXPERIMENT.datasets),
    "trace": by_file_name(EXPERIMENT.traces),
    "workload": by_file_name(EXPERIMENT.workloads),
    "llm": by_file_name(EXPERIMENT.llms),
    "gpu_profile": by_file_name(EXPERIMENT.profiles),
    "scenario": by_file_name(EXPERIMENT.scenarios),
    "variant": by_file_name(EXPERIMENT.variants),
    "slo": by_file_name(EXPERIMENT.capacity_slos),
}
# `{variant}` is empty for the default variant, else @ and its name.
CELL = "{source}/{llm}/{gpu_profile}/{workload}/{scenario}{variant}"
CELL_FOLDER = f"<results>/benchmarks/{CELL}"


def one_of(names):
    return "|".join(map(re.escape, names)) or "$^"


wildcard_constraints:
    dataset=one_of(IDS["dataset"]),
    file=one_of({file_name(data.file_name) for data in EXPERIMENT.datasets.values()}),
    trace=one_of(IDS["trace"]),
    workload=one_of(IDS["workload"]),
    llm=one_of(IDS["llm"]),
    gpu_profile=one_of(IDS["gpu_profile"]),
    scenario=one_of(IDS["scenario"]),
    # In brackets, since Snakemake takes an empty constraint for none.
    variant=f"({one_of(map('@{}'.format, IDS['variant']))}|)",
    slo=one_of(IDS["slo"]),
    study=one_of(EXPERIMENT.studies),
    predictor=one_of(["measured", *config["predictors"]]),
    source=re.escape(config["source"]),


def named(name, wildcards):
    """Return the id that a wildcard stands for."""
    return IDS[name][wildcards[name]]


def gpu_files():
    """Facts of the devices, which predictors learn from."""
    gpus = {profile.gpu.gpu_id for profile in EXPERIMENT.profiles.values()}
    return [f"{config['gpus']}/{gpu}.yaml" for gpu in sorted(gpus)]


def fleet_facts():
    """Facts of the LLMs and devices that only the sheets of demands and supply name."""
    configs = [row["hf_config"] for row in EXPERIMENT.fleet.demands if "hf_config" in row]
    gpus = {f"{config['gpus']}/{row['gpu_id']}.yaml" for row in EXPERIMENT.fleet.supply}
    files = [f"{path}/config.json" if os.path.isdir(path) else path for path in configs]
    return sorted({*files, *gpus} - {*gpu_files()})


def library(script, *modules):
    """Return the library files that a CPU rule's script imports: an edit makes its results stale.

    `modules` are those that it imports by name at run time.
    """
    scripts = Path(workflow.basedir) / "scripts"
    files = library_files(scripts, scripts / f"{script}.py", *modules)
    return list(map(os.path.relpath, files))


def predictor_library(wildcards):
    """Files that a predictor's results depend on: its own, and what all of them share."""
    own = PREDICTORS.get(wildcards.predictor)
    return library("evaluate_predictor", *([own.module] if own else []))


def by_content(rule, wildcards, is_current, inputs):
    """Return a rule's inputs, so that contents decide whether it runs again.

    A copy or a checkout gives files new dates: an input that is newer than files which were made
    from its content does not count as newer. Files that were made from other contents are made
    again, also where Snakemake has no record of them.
    """
    # As with --rerun-incomplete: a killed run leaves a cell's former results, which are whole.
    workflow.dag_settings.force_incomplete = True
    outputs = [apply_wildcards(pattern, wildcards) for pattern in rule.output]
    if is_current is None or not all(map(os.path.exists, outputs)):
        return inputs
    if not is_current:
        workflow.dag.forcefiles.update(outputs)
        return inputs
    oldest = min(map(os.path.getmtime, outputs))
    return {
        name: ancient(path) if os.path.getmtime(placed(path)) >= oldest else path
        for name, path in inputs.items()
    }


def placed(path):
    """Return where a path of a rule lies."""
    return path.replace("<results>", config["pathvars"]["results"])


def trace_source(wildcards):
    """Return what a trace is made from; `params` have its checksum, so its date does not count."""
    trace = named("trace", wildcards)
    source = download_or_path(EXPERIMENT.traces[trace]["dataset"])
    recorded = Path(placed(f"<results>/traces/{wildcards.trace}.report.json"))
    is_current = is_trace_of(recorded, EXPERIMENT, trace)
    by_content(rules.ingest_trace, wildcards, is_current, {})
    return ancient(source)


def archive_data():
    """Return the archive to import."""
    return download_or_path(config["archive"]["data"])


def download_or_path(name):
    """Return where a data set is downloaded to; what is not a data set is the user's path."""
    dataset = EXPERIMENT.datasets.get(name)
    # The file keeps its name, whose ending says how it is compressed.
    place = f"{file_name(name)}/{file_name(dataset.file_name)}" if dataset else ""
    return f"<results>/downloads/{place}" if dataset else name


def fitted_trace(wildcards):
    """Return the trace that a workload is fitted to, if any, and the trace's report.

    The report stands for the trace: it is made with it and has the SHA-256 of its source.
    """
    workload = named("workload", wildcards)
    row = EXPERIMENT.workloads[workload]
    if "trace_id" not in row:
        return {}
    trace = f"<results>/traces/{file_name(row['trace_id'])}"
    inputs = {"trace": ancient(f"{trace}.parquet"), "report": f"{trace}.report.json"}
    folder = Path(placed(f"<results>/workloads/{wildcards.workload}"))
    is_current = is_workload_of(folder, EXPERIMENT, workload, config["seed"])
    return by_content(rules.fit_workload, wildcards, is_current, inputs)


def cell_inputs(wildcards):
    """Return the files that a cell is measured with.

    `arrivals.json` stands for the workload: it has the SHA-256 of the two tables beside it.
    """
    workload = f"<results>/workloads/{wildcards.workload}"
    inputs = {
        "workload": ancient(f"{workload}/requests.parquet"),
        "arrivals": f"{workload}/arrivals.json",
        "times": ancient(f"{workload}/arrivals.parquet"),
        "config": EXPERIMENT.llms[named("llm", wildcards)]["config"],
    }
    folder = Path(apply_wildcards(rules.benchmark_cell.output.run, wildcards)).parent
    requests = Path(placed(inputs["workload"]))
    is_current = is_cell_of(folder, definition(wildcards), requests)
    return by_content(rules.benchmark_cell, wildcards, is_current, inputs)


def origin_sha256(wildcards):
    """Return the SHA-256 of what a workload is made from; None if that is two lengths."""
    row = EXPERIMENT.workloads[named("workload", wildcards)]
    if "trace_id" in row:
        return trace_sha256(EXPERIMENT, row["trace_id"])
    return use_case_sha256(row["use_case"]) if "use_case" in row else None


def trace_workloads(wildcards):
    """Return the files of all workloads fitted to a trace."""
    rows, trace = IDS["workload"].items(), named("trace", wildcards)
    names = [name for name, key in rows if EXPERIMENT.workloads[key].get("trace_id") == trace]
    files = {"arrivals": "arrivals.json", "validation": "validation.json"}
    return {
        key: [f"<results>/workloads/{name}/{file}" for name in names] for key, file in files.items()
    }


def trace_reports():
    """Return the pages on every trace; archives have none."""
    return [f"<results>/report/traces/{trace}.html" for trace in IDS["trace"]]


def cell_key(wildcards):
    names = ("llm", "gpu_profile", "workload", "scenario")
    variant = wildcards.variant.removeprefix("@") or DEFAULT_VARIANT
    return CellKey(*(named(name, wildcards) for name in names), IDS["variant"][variant])


def definition(wildcards):
    return cell_definition(EXPERIMENT, cell_key(wildcards), config)


def cell_threads(wildcards):
    """A cell takes a whole workstation, so that no other job disturbs it or takes its GPUs.

    A cluster has a limit of jobs (`nodes`) instead of cores, and its scheduler separates jobs.
    (The cores do not tell a cluster: a dry run for one has a single core.)
    """
    settings = workflow.resource_settings
    return settings.cores if settings.nodes is None else cell_cores(wildcards)


def cell_cores(wildcards):
    """Cores to ask a scheduler for: LLM-Pilot's two per GPU (its section III-C1), or what the
    variant asks for, and one for the load client, which LLM-Pilot ran elsewhere.
    """
    if is_endpoint(wildcards):
        return 1
    n_gpus = EXPERIMENT.profiles[named("gpu_profile", wildcards)].n_gpus
    variant = cell_variant(wildcards)
    return max(2 * n_gpus, variant.cpu_cores or 0) * variant.n_device_sets + 1


def cell_memory_mb(wildcards, attempt):
    """Host memory: each server's limit, or room for its weights while they load; twice that in
    a second attempt, since the first may have been killed for memory.

    Beside GPUs at least LLM-Pilot's 250 GB (its section III-C1), so that host memory, which it
    found not to matter, is the same for all.
    """
    variant, llm = cell_variant(wildcards), EXPERIMENT.llm_facts[named("llm", wildcards)]
    if is_endpoint(wildcards):
        return attempt * 8000
    server_gib = variant.memory_limit_gib or llm.weight_bytes / 2**30
    needed_mb = 8000 + int(1024 * server_gib * variant.replicas)
    least_mb = 0 if cell_devices(wildcards).kind == "cpu" else 250_000
    return attempt * max(least_mb, needed_mb)


def cell_variant(wildcards):
    return EXPERIMENT.variants[cell_key(wildcards).variant_id]


def cell_devices(wildcards):
    return EXPERIMENT.profiles[named("gpu_profile", wildcards)].devices


def is_endpoint(wildcards):
    """Whether a cell's server runs already: then its job is the load client alone."""
    return EXPERIMENT.endpoint(cell_key(wildcards)) is not None


def cell_gpu_model(wildcards):
    """The device type to ask a scheduler for; None lets it choose."""
    if is_endpoint(wildcards):
        return None
    return EXPERIMENT.profiles[named("gpu_profile", wildcards)].gpu_model


def cell_gpus(wildcards):
    """Devices to ask a scheduler for; 0 for cores, unless the scheduler's devices are cores."""
    devices = cell_devices(wildcards)
    if is_endpoint(wildcards) or (devices.kind == "cpu" and not cell_gpu_model(wildcards)):
        return 0
    return devices.n_gpus * cell_variant(wildcards).n_device_sets


def cell_minutes(wildcards, attempt):
    """Time for the server starts and the levels, with room for slow last requests."""
    scenario, engine = EXPERIMENT.scenario(cell_key(wildcards)), config["engine"]
    n_starts = 0 if is_endpoint(wildcards) else engine["max_server_starts"]
    starts_s = n_starts * engine["start_timeout_s"]
    return attempt * (int(starts_s + scenario.longest_s(engine["request_timeout_s"])) // 60 + 5)


def cell_files(name, cells=EXPERIMENT.cells):
    return [f"<results>/benchmarks/{config['source']}/{cell.folder}/{name}" for cell in cells]


def intermediate_results():
    """Return results between the measurements and the store, which the target asks for.

    Snakemake does not notice a missing file while the files made from it exist: what a failed job
    or a damaged cell left undone would never be done, and old results would look new.
    """
    first_and_last = cell_files("requests.parquet") + cell_files("run.json")
    points = f"<results>/points/{config['source']}/point.parquet"
    return [*first_and_last, points, *evaluated("score")]


def study_cells(wildcards):
    """Return the files of the cells that feed a study."""
    cells = EXPERIMENT.studies[wildcards.study]
    files = {"runs": "run.json", "tunings": "tuning.json"}
    files |= {name: f"{name}.parquet" for name in ("requests", "server", "telemetry")}
    return {key: cell_files(name, cells) for key, name in files.items()}


def capacity_files(name):
    """Return the files of one name of all SLOs with a trace or a rate."""
    slos = IDS["slo"]
    return [f"<results>/capacity/{config['source']}/{slo}/{name}" for slo in slos]


def slo_traffic(wildcards):
    """Return the trace that an SLO is for, or the workload that arrives at its rate."""
    trace_id = EXPERIMENT.capacity_slos[named("slo", wildcards)].trace_id
    if trace_id is not None:
        return {"trace": f"<results>/traces/{file_name(trace_id)}.parquet"}
    folder = f"<results>/workloads/{file_name(config['decision']['workload_id'])}"
    files = {"requests": "requests.parquet", "arrivals": "arrivals.json"}
    return {name: f"{folder}/{file}" for name, file in files.items()}


def fleet_files(name):
    """Return the file of one name of the fleet, if the configuration names its two sheets."""
    return [f"<results>/fleet/{config['source']}/{name}"] if "demands" in config["sheets"] else []


def fleet_traces():
    """Return the traces that demands name, by their file names."""
    return sorted({file_name(row["trace_id"]) for row in EXPERIMENT.fleet.demands if "trace_id" in row})


def evaluated(table):
    """Files of one table, one a predictor."""
    return [
        f"<results>/predictions/{config['source']}/{predictor}/{table}.parquet"
        for predictor in ["measured", *config["predictors"]]
    ]
