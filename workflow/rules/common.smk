# What the rules share: the experiment, read and checked before anything runs, the
# constraints of the wildcards, and the functions that return a rule's inputs.
import os
import re
import sys
from pathlib import Path

from snakemake.logging import logger

from sextant.base.errors import InputError, require_docstrings
from sextant.base.files import library_files, require_writable
from sextant.base.job_log import announce_to_jobs, end_with_parent
from sextant.base.sheets import DEFAULT_FILES, by_file_name, file_name
from sextant.engine.registry import check_settings, missing_engine
from sextant.experiment.current import compare_cells, is_workload_of, stale_cells
from sextant.experiment.experiment import cell_definition, trace_sha256, workload_definition
from sextant.experiment.group_errors import GroupErrors
from sextant.experiment.job_request import job_request
from sextant.experiment.loading import load_experiment
from sextant.experiment.servers import SIMULATED, engine_settings
from sextant.experiment.sheets import DEFAULT_VARIANT, CellKey
from sextant.experiment.slurm import SlurmProfile, submission_warnings
from sextant.experiment.warnings import run_warnings
from sextant.points.cell_files import changed_cells, take_of
from sextant.predict.predictor import PREDICTORS, check_installed, configurable
from sextant.workload.published import use_case_sha256

try:
    require_docstrings()
    if not config.keys() >= {"registry", "pathvars"} and not Path(DEFAULT_FILES[-1]).is_file():
        problem = "there is no such file here: the defaults of a --configfile are not found"
        raise InputError(problem, file=DEFAULT_FILES[-1], fix=f"add --directory {ROOT}")
    if workflow.is_main_process and workflow.resource_settings.nodes is not None:
        from snakemake_executor_plugin_slurm.validation import get_forbidden_slurm_options

        SLURM = SlurmProfile(
            workflow.resource_settings.default_resources,
            workflow.resource_settings.overwrite_resources,
        )
        SLURM.check(get_forbidden_slurm_options(), is_dry_run=workflow.output_settings.dryrun)
    EXPERIMENT = load_experiment(config, "the configuration", configurable(), check_settings)
    if workflow.is_main_process and not workflow.output_settings.dryrun:
        for folder in config["pathvars"].values():
            require_writable(folder)
    if not workflow.deployment_settings.deployment_method:  # conda brings them for each rule
        check_installed(config["predictors"], "predictors")
except InputError as error:
    # The message says everything; a traceback would hide it.
    sys.exit(f"Error: {error}")

# What differs between the results of each cell and what the sheets ask for.
COMPARED = {} if "archive" in config else compare_cells(EXPERIMENT, config)
UNMEASURED = [cell for cell, it in COMPARED.items() if it is None or not it.is_current]
if workflow.is_main_process:
    notes = stale_cells(COMPARED.values())
    if any(EXPERIMENT.endpoint(cell) is None for cell in UNMEASURED):
        notes += [f"Warning: {it}" for it in [missing_engine(engine_settings(config))] if it]
    n_cores = None if workflow.resource_settings.nodes is not None else os.cpu_count()
    notes += run_warnings(EXPERIMENT, config, UNMEASURED, n_cores)
    try:
        if workflow.resource_settings.nodes is not None:
            SLURM.check_cells(
                job_request(EXPERIMENT, cell, config["engine"]) for cell in UNMEASURED
            )
            notes += submission_warnings(workflow.resource_settings.nodes)
    except InputError as error:
        sys.exit(f"Error: {error}")
    print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr)

logger.addFilter(GroupErrors())
announce_to_jobs()
if workflow.remote_exec:
    end_with_parent()

# The plugin of `sextant plan`, where Snakemake runs with it.
if plugin := sys.modules.get("snakemake_logger_plugin_sextant_plan"):
    plugin.workflow = workflow

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
    take="(@@[1-9][0-9]*|)",
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


def sheet_rows(slo_ids):
    """Return what the sheets say of the LLMs, the GPU profiles and these SLOs, in no order."""
    rows = [EXPERIMENT.llms, EXPERIMENT.profiles, {name: EXPERIMENT.slos[name] for name in slo_ids}]
    return [repr(sorted(of_sheet.items(), key=lambda item: item[0])) for of_sheet in rows]


def library(script, *modules):
    """Return a CPU rule's script and the library files that it imports: an edit makes its results
    stale. `modules` are those that it imports by name at run time.
    """
    file = ROOT / "scripts" / f"{script}.py"
    return [
        os.path.relpath(path) for path in (file, *library_files(ROOT / "scripts", file, *modules))
    ]


def predictor_library(wildcards):
    """Files that a predictor's results depend on: its own, and what all of them share."""
    own = PREDICTORS.get(wildcards.predictor)
    return library("evaluate_predictor", *([own.module] if own else []))


def unless_current(is_current, path):
    """Return an input whose date counts, unless files were made from its very content.

    A copy or a checkout gives files new dates, and Snakemake's own checksums do not travel along.
    """
    return ancient(path) if is_current else path


def placed(path):
    """Return where a path of a rule lies."""
    return Path(path.replace("<results>", config["pathvars"]["results"]))


def archive_data():
    """Return the archive to import."""
    return download_or_path(config["archive"]["data"])


def download_or_path(name):
    """Return where a data set is downloaded to; what is not a data set is the user's path."""
    dataset = EXPERIMENT.datasets.get(name)
    # The file keeps its name, whose ending says how it is compressed.
    place = f"{file_name(name)}/{file_name(dataset.file_name)}" if dataset else ""
    return f"<results>/downloads/{place}" if dataset else name


def trace_source(wildcards):
    """Return what a trace is made from; `params` have its checksum, so its date does not count."""
    return ancient(download_or_path(EXPERIMENT.traces[named("trace", wildcards)]["dataset"]))


def fitted_trace(wildcards):
    """Return the trace that a workload is fitted to, if any, and the trace's report.

    The report stands for the trace: it is made with it and has the SHA-256 of its source.
    """
    workload = named("workload", wildcards)
    row = EXPERIMENT.workloads[workload]
    if "trace_id" not in row:
        return {}
    definition = workload_definition(EXPERIMENT, workload, config["seed"])
    is_current = is_workload_of(placed(f"<results>/workloads/{wildcards.workload}"), definition)
    trace = f"<results>/traces/{file_name(row['trace_id'])}"
    return {
        "trace": ancient(f"{trace}.parquet"),
        "report": unless_current(is_current, f"{trace}.report.json"),
    }


def cell_inputs(wildcards):
    """Return the files that a cell is measured with; InputError: its engine is not there."""
    cell = cell_key(wildcards)
    if cell in UNMEASURED and EXPERIMENT.endpoint(cell) is None and not workflow.dryrun:
        if problem := missing_engine(engine_settings(config)):  # before the first job
            raise problem
    workload = f"<results>/workloads/{wildcards.workload}"
    files = {
        "workload": f"{workload}/requests.parquet",
        "arrivals": f"{workload}/arrivals.json",
        "times": f"{workload}/arrivals.parquet",
        "config": EXPERIMENT.llms[named("llm", wildcards)]["config"],
    }
    # Contents decide (COMPARED), not dates.
    return {name: ancient(path) for name, path in files.items()}


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
    """Return the pages on every trace, and their JSON; archives have none."""
    return [
        f"<results>/report/traces/{trace}.{ending}"
        for trace in IDS["trace"]
        for ending in ("html", "json")
    ]


def cell_key(wildcards):
    names = ("llm", "gpu_profile", "workload", "scenario")
    variant = wildcards.variant.removeprefix("@") or DEFAULT_VARIANT
    return CellKey(*(named(name, wildcards) for name in names), IDS["variant"][variant])


def definition(wildcards):
    return cell_definition(EXPERIMENT, cell_key(wildcards), config)


def cell_request(wildcards, attempt=1):
    """Return what a cell's job asks a scheduler for."""
    return job_request(EXPERIMENT, cell_key(wildcards), config["engine"], attempt)


def cell_threads(wildcards):
    """A cell takes a whole workstation, so that no other job disturbs it or takes its GPUs.

    A cluster has a limit of jobs (`nodes`) instead of cores, and its scheduler separates jobs.
    (The cores do not tell a cluster: a dry run for one has a single core.)
    """
    settings = workflow.resource_settings
    is_shared = settings.nodes is not None or config["engine"].get("name") == SIMULATED
    return cell_request(wildcards).cores if is_shared else settings.cores


def cell_files(name, cells=EXPERIMENT.cells):
    return [f"{folder_of(cell)}/{name}" for cell in cells]


def finished_cells(cells=EXPERIMENT.cells):
    """Return the file of each cell that says that the files beside it are whole and current."""
    if "archive" in config:
        return cell_files("run.json", cells)
    return [f"{folder_of(cell)}/measured{take(cell)}.json" for cell in cells]


def folder_of(cell):
    return f"<results>/benchmarks/{config['source']}/{cell.folder}"


def take(cell):
    """Return what the name of a cell's receipt has besides `measured`."""
    compared = COMPARED[cell]
    is_current = compared is None or compared.is_current
    return take_of(placed(folder_of(cell)), is_current=is_current)


def asked_levels(cells=EXPERIMENT.cells):
    """Return the levels of each cell that the sheets ask for; None: an archive has what it has."""
    return None if "archive" in config else [EXPERIMENT.scenario(cell).levels for cell in cells]


def changed(cells=EXPERIMENT.cells):
    """Return the cells of which somebody changed or removed a file since they were measured."""
    return changed_cells(map(placed, finished_cells(cells)))


def intermediate_results():
    """Return results between the traces and the store, which the target asks for.

    Snakemake does not notice a missing file while the files made from it exist: what a failed job
    or a damaged cell left undone would never be done, and old results would look new. What is
    derived may be deleted; the next run makes it again. Of a workload only its validation is asked
    for: without its requests nobody can tell whether the cells measured with them are current.
    """
    traces = [
        f"<results>/traces/{trace}.{ending}"
        for trace in IDS["trace"]
        for ending in ("parquet", "rejected.parquet", "report.json")
    ]
    workloads = [f"<results>/workloads/{workload}/validation.json" for workload in IDS["workload"]]
    points = [
        f"<results>/points/{config['source']}/{table}.parquet"
        for table in ("point", "feasibility", "telemetry")
    ]
    predictions = [
        file
        for table in ("prediction", "candidate", "recommendation", "score")
        for file in evaluated(table)
    ]
    return [
        *traces,
        *workloads,
        *finished_cells(),
        *points,
        *predictions,
        *capacity_files("capacity.parquet"),
        *fleet_files("fleet.parquet"),
    ]


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
    return sorted(
        {file_name(row["trace_id"]) for row in EXPERIMENT.fleet.demands if "trace_id" in row}
    )


def evaluated(table):
    """Files of one table, one a predictor."""
    return [
        f"<results>/predictions/{config['source']}/{predictor}/{table}.parquet"
        for predictor in ["measured", *config["predictors"]]
    ]
