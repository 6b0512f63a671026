"""Fetch a data set of the registry, from `SEXTANT_MIRROR` if it is set, else by URL."""

import os

from sextant.base.job_log import job_log
from sextant.experiment.downloads import download

with job_log(snakemake.log[0]):
    download(snakemake.params.dataset, snakemake.output[0], os.environ.get("SEXTANT_MIRROR"))
