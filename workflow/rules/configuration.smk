# What Snakemake says of a configuration that is not there, or not YAML, names neither line nor fix.
import sys
from pathlib import Path

from sextant.base.errors import InputError
from sextant.base.sheets import DEFAULT_FILES, read_yaml

ROOT = Path(workflow.basedir).parent  # of this file's project, wherever Snakemake runs

try:
    for name in DEFAULT_FILES:
        if Path(name).is_file():
            read_yaml(name)
        elif not workflow.overwrite_configfiles:
            problem = "there is no such file here"
            raise InputError(problem, file=name, fix=f"add --directory {ROOT}")
except InputError as error:
    # The message says everything; a traceback would hide it.
    sys.exit(f"Error: {error}")
