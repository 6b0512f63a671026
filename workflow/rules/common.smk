# What the rules share: the experiment, read and checked before anything runs, the
# constraints of the wildcards, and the functions that name a rule's inputs.
import re
import sys
from pathlib import Path

from sextant.errors import InputError
from sextant.experiment import CellKey, cell_definition, load_experiment, trace_sha256
from sextant.predict.registry import PREDICTORS
from sextant.scenarios import DEFAULT_VARIANT
from sextant.workload.use_cases import USE_CASES_FILE

try:
    EXPERIMENT = load_experiment(config, "the configuration", PREDICTORS)
except InputError as error:
    # The message is the whole story; a traceback would bury it.
    sys.exit(f"Error: {error}")

# `{variant}` is empty for the default variant, else @ and its name.
CELL = "{source}/{llm}/{gpu_profile}/{workload}/{scenario}{variant}"
CELL_FOLDER = f"<results>/benchmarks/{CELL}"


def one_of(names):
    return "|".join(map(re.escape, names)) or "$^"


wildcard_constraints:
    dataset=one_of(EXPERIMENT.datasets),
    trace=one_of(EXPERIMENT.traces),
    workload=one_of(EXPERIMENT.workloads),
    llm=one_of(EXPERIMENT.llms),
    gpu_profile=one_of(EXPERIMENT.profiles),
    scenario=one_of(EXPERIMENT.scenarios),
    # In brackets, since Snakemake takes an empty constraint for none.
    variant=f"({one_of(map('@{}'.format, EXPERIMENT.variants))}|)",
    study=one_of(EXPERIMENT.studies),
    predictor=one_of(["measured", *config["predictors"]]),
    source=re.escape(config["source"]),


def gpu_files():
    """Facts of the devices, which predictors learn from."""
    gpus = {profile.gpu.gpu_id for profile in EXPERIMENT.profiles.values()}
    return [f"{config['gpus']}/{gpu}.yaml" for gpu in sorted(gpus)]


def library(*modules):
    """Return library files for a CPU rule to list, so that an edit makes its results stale.

    A package stands for all of its files.
    """
    root = Path(workflow.basedir) / "scripts" / "sextant"
    packages = {module: sorted((root / module).glob("*.py")) for module in modules}
    return [str(file) for name in modules for file in packages[name] or [root / f"{name}.py"]]


def predictor_library(wildcards):
    """Files that a predictor's results depend on: its own, and what all of them share."""
    shared = (
        "evaluate",
        "folds",
        "job",
        "features",
        "references",
        "tuning",
        "weights",
        "latencies",
    )
    modules = ["llm", "gpu", "memory", "recommend", "score"]
    modules += [f"predict/{name}" for name in (*shared, "forest", "network")]
    if wildcards.predictor in PREDICTORS:
        modules += [f"predict/{name}" for name in PREDICTORS[wildcards.predictor].modules]
    return library(*modules)


def trace_source(wildcards):
    name = EXPERIMENT.traces[wildcards.trace]["dataset"]
    dataset = EXPERIMENT.datasets.get(name)
    # The file keeps its name, whose ending tells how it is compressed.
    return f"<results>/downloads/{name}/{dataset.file_name}" if dataset else name


def archive_data():
    """Return the archive to import: a download, or the path that the user gave."""
    name = config["archive"]["data"]
    dataset = EXPERIMENT.datasets.get(name)
    return f"<results>/downloads/{name}/{dataset.file_name}" if dataset else name


def workload_origin(wildcards):
    """Return what a workload is made from: its trace, or the use cases that ship, if any."""
    row = EXPERIMENT.workloads[wildcards.workload]
    if "trace_id" in row:
        return f"<results>/traces/{row['trace_id']}.parquet"
    return str(USE_CASES_FILE) if "use_case" in row else []


def trace_workloads(wildcards):
    """Return the files of all workloads that are fitted to a trace."""
    rows = EXPERIMENT.workloads.items()
    names = [name for name, row in rows if row.get("trace_id") == wildcards.trace]
    files = {"requests": "requests.parquet", "arrivals": "arrivals.json"}
    return {
        key: [f"<results>/workloads/{name}/{file}" for name in names] for key, file in files.items()
    }


def trace_reports():
    """Return the pages on every trace, and the one on all workloads; archives have neither."""
    pages = [f"<results>/report/traces/{trace}.html" for trace in EXPERIMENT.traces]
    return [*pages, "<results>/report/workloads.html"] if EXPERIMENT.workloads else pages


def trace_page_files():
    """Return the templates and styles of the pages on traces and workloads."""
    root = Path(workflow.basedir) / "scripts" / "sextant"
    return [
        str(root / "report" / "page.css"),
        *map(str, sorted((root / "trace_report").glob("*.j2"))),
    ]


def cell_key(wildcards):
    variant = wildcards.variant.removeprefix("@") or DEFAULT_VARIANT
    place = (wildcards.llm, wildcards.gpu_profile, wildcards.workload, wildcards.scenario)
    return CellKey(*place, variant)


def definition(wildcards):
    return cell_definition(EXPERIMENT, cell_key(wildcards), config)


def cell_threads(wildcards):
    """A cell takes a whole workstation, so that no other job disturbs it or takes its GPUs.

    A cluster's scheduler keeps jobs apart itself: there, LLM-Pilot's two cores per GPU, or what
    the variant asks for, and one for the load client.
    """
    n_gpus = EXPERIMENT.profiles[wildcards.gpu_profile].n_gpus
    variant = cell_variant(wildcards)
    cores = max(2 * n_gpus, variant.cpu_cores or 0) * variant.n_device_sets
    return workflow.cores or cores + 1


def cell_memory_mb(wildcards):
    """Host memory: each server's limit, or room for its weights while they load."""
    variant, llm = cell_variant(wildcards), EXPERIMENT.llm_facts[wildcards.llm]
    server_gib = variant.memory_limit_gib or llm.weight_bytes / 2**30
    return 8000 + int(1024 * server_gib * variant.replicas)


def cell_variant(wildcards):
    return EXPERIMENT.variants[cell_key(wildcards).variant_id]


def cell_gpus(wildcards):
    devices = EXPERIMENT.profiles[wildcards.gpu_profile].devices
    return 0 if devices.kind == "cpu" else devices.n_gpus * cell_variant(wildcards).n_device_sets


def cell_minutes(wildcards, attempt):
    """Time for the server starts and the levels, with room for slow last requests."""
    scenario, engine = EXPERIMENT.scenarios[wildcards.scenario], config["engine"]
    starts_s = engine["max_server_starts"] * engine["start_timeout_s"]
    return attempt * (int(starts_s + scenario.longest_s(engine["request_timeout_s"])) // 60 + 5)


def cell_files(name, cells=EXPERIMENT.cells):
    return [f"<results>/benchmarks/{config['source']}/{cell.folder}/{name}" for cell in cells]


def study_cells(wildcards):
    """Return the files of the cells that feed a study."""
    cells = EXPERIMENT.studies[wildcards.study]
    files = {"runs": "run.json", "tunings": "tuning.json"}
    files |= {name: f"{name}.parquet" for name in ("requests", "server", "telemetry")}
    return {key: cell_files(name, cells) for key, name in files.items()}


def evaluated(table):
    """Files of one table, one a predictor."""
    return [
        f"<results>/predictions/{config['source']}/{predictor}/{table}.parquet"
        for predictor in ["measured", *config["predictors"]]
    ]
