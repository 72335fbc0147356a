# make setup | train | test | test-long | test-part | check | fmt | docs | bench | sweep | gpu. Works with GNU make 3.81 (macOS) and later.
#   make train ARGS="env=cartpole algo=ppo"     train; the default is env=halfcheetah
#   make train EXTRA=cuda13                     with an accelerator: cuda13, cuda12 or tpu
#   make bench ROWS="ppo_cartpole"              measure against peers (an hour; run nothing beside it); default: all rows
#   make bench-host                             the same for environments on the host: the pool, SAC on HalfCheetah-v5
#   make bench-returns                          wall-clock to a return, ours and the peers' (three hours; goes on where it was)
#   make bench-ray                              parallel Q-learning, ours and Ray's (an hour)
#   make bench-agents                           several agents act, ours and Ray's (goes on where it was)
#   make bench-gate                             has training become slower than committed? (6 minutes; no peers)
#   make sweep ENV="cartpole algo=ppo"          find the fastest settings here (minutes; run nothing beside it)
#   make sweep SWEEP="objective=sampling"       more words for the autotuner
#   make sweep-all                              five of them, of brax, gymnax and Gymnasium (an hour)
#   make gpu EXTRA=cuda13                       measure everything on a GPU or TPU (a quarter of an hour; run nothing beside it)
#   make targets                                compilers for GPUs and TPUs that are not here (1.5 GB), for explain target=
#   make test-targets                           what programs cost there has not grown (minutes)
#   make suites                                 the environments of all suites that install together, and their tests
#   make newcomer                               what a newcomer waits for: clone, set-up, first trainings, tests (an hour)
#   make newest                                 the newest version of every dependency, and the tests with it
#   make docs                                   the site, in build/site/html/index.html; a warning is an error
#   make viewer-assets                          bundle three.js and uPlot for our pages again (npm; to change a version)
#   make test TESTS=tests/test_losses.py        some tests; add COSTS=check or COSTS=record
#   make costs                                  record what each test costs, which selects what make test runs
#   make test-breaks                            break the package in 128 places: each must fail its test (a quarter of an hour)
#   make setup PYTHON=/path/to/python3.12       with a chosen Python
#   make test-part VENV=.venv-3.12 PYTHON=/path/to/python3.12   a part of the tests, with a second Python

THREE := 0.187.0
ESBUILD := 0.28.2
UPLOT := 1.6.32
ASSETS := jaxrl_fast/views/assets

ARGS ?= env=halfcheetah
TESTS ?= tests
COSTS ?=
BREAK ?=
TEXTS := tests/test_words.py tests/test_docs.py tests/test_packaging.py
PARTS := third_party jaxprs worker_acting api graph chain placement explain hlo agents traffic_junction ppo sac dqn td3 pqn impala sac_discrete flash_sac prioritized learners between_chunks old_policies losses returns buffers networks \
	distributions pool from_gymnasium cli config train custom_env signals checkpointing packaging ci
SUITE_TESTS := tests/test_suites.py tests/test_envs_jaxmarl.py tests/test_envs_jumanji.py
WORKERS ?= 2
EXTRA ?=
STEPS ?=
ROWS ?=
ENV ?= halfcheetah
SWEEP ?=
SWEEPS ?= experiments/results/sweeps
SWEEP_ALL ?= "halfcheetah algo=sac" "halfcheetah algo=ppo" "cartpole algo=ppo" "pendulum algo=sac" \
	"gymnasium env.id=HalfCheetah-v5 algo=ppo algo.rollout_length=128"
GPU ?=
A ?=
B ?=
PEERS ?= .venv-peers
PEERS_HOST ?= .venv-peers-host
PEERS_RAY ?= .venv-peers-ray
PEERS_PYTHON ?= python3.11
TARGETS ?= .venv-targets
TARGETS_PYTHON ?= python3.11
DOCS ?= .venv-docs
SUITES ?= .venv-suites
NEWEST ?= .venv-newest
VENV ?= .venv

# The first Python that really runs (a version manager's stand-in may not), is 3.11 to 3.13 and can make environments.
PROBE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	if $$python -c '$(PROBE)' >/dev/null 2>&1; then echo $$python; break; fi; done)

comma := ,
EXTRAS := dev$(if $(EXTRA),$(comma)$(EXTRA))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(EXTRAS)

.PHONY: setup train test test-long test-part test-break test-breaks costs suites newest test-targets targets check docs fmt lint types bench bench-host bench-returns bench-ray bench-agents bench-gate newcomer gpu sweep sweep-all viewer-assets clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	@if [ -z "$(PYTHON)" ]; then \
		echo "make: no Python 3.11, 3.12 or 3.13 found: install one, or write make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	@[ -x $(BIN)/python ] || { echo "$(PYTHON) -m venv $(VENV)"; $(PYTHON) -m venv $(VENV); }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c requirements.lock -e ".[$(EXTRAS)]"
	@touch $@

train: $(STAMP)
	@exec $(BIN)/python -m jaxrl_fast.train $(ARGS)

# A file is tested by one worker, since its tests share what they prepare.
PYTEST = $(BIN)/python -m pytest -p no:cacheprovider -q
WORKER = $(if $(filter %.py,$(TESTS)),$(if $(word 2,$(TESTS)),-n $(WORKERS)),-n $(WORKERS))
SPREAD = $(WORKER) --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	@exec $(PYTEST) $(SPREAD) -m "not long and not text" $(COSTS:%=--costs %) $(TESTS)

test-long: $(STAMP)
	@exec $(PYTEST) $(SPREAD) -m "long and not text" $(COSTS:%=--costs %) $(TESTS)

# Run all tests and record what each costs, in tests/costs.json.
costs: $(STAMP)
	@exec $(PYTEST) $(SPREAD) --costs record $(TESTS)

# One deliberate break of the package, chosen by the commit, must fail the test that is named for it.
test-break: $(STAMP)
	@exec $(BIN)/python experiments/laws/breaks.py $(or $(BREAK),--one $$(git rev-parse HEAD))

test-breaks: $(STAMP)
	@exec $(BIN)/python experiments/laws/breaks.py

test-targets: $(STAMP)
	@exec $(BIN)/python -m pytest -p no:cacheprovider -q -rs -n $(WORKERS) tests/targets/check_programs.py

# Without the lock file and without our upper bounds.
newest: $(STAMP)
	$(BIN)/python experiments/startup/newest.py $(NEWEST)
	@exec $(NEWEST)/bin/python -m pytest -p no:cacheprovider -q $(SPREAD) -m "not long and not text" $(TESTS)

newcomer: $(STAMP)
	@exec $(BIN)/python experiments/startup/newcomer.py $(STEPS)

# In a separate environment, since the suites bring two hundred packages.
suites:
	@$(MAKE) --no-print-directory test VENV=$(SUITES) EXTRA=suites WORKERS=1 TESTS="$(SUITE_TESTS)"

test-part: TESTS := $(PARTS:%=tests/test_%.py)
test-part: test

check: lint types test test-long

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@exec $(PYTEST) -m text $(TEXTS)

types: $(STAMP)
	$(BIN)/mypy

fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Zensical, which follows Material for MkDocs, in an environment of its own.
docs: $(STAMP) $(DOCS)/.installed
	$(BIN)/python docs/site/assemble.py build/site
	$(DOCS)/bin/zensical build --strict --clean --config-file build/site/mkdocs.yml
	$(BIN)/python docs/site/assemble.py build/site --finish

$(DOCS)/.installed: docs/site/requirements.lock
	@[ -n "$(PYTHON)" ] && { [ -x $(@D)/bin/python ] || { echo "$(PYTHON) -m venv $(@D)"; $(PYTHON) -m venv $(@D); }; }
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@touch $@

# Without their dependencies: compiling for an accelerator needs none of NVIDIA's or Google's libraries.
targets: $(TARGETS)/.installed

$(TARGETS)/.installed: requirements.lock experiments/gpu/targets.lock
	@$(TARGETS_PYTHON) -c 'import ensurepip, venv' || { \
		echo "make: the compilers need Python 3.11: write make targets TARGETS_PYTHON=/path/to/python3.11" >&2; exit 1; }
	@[ -x $(@D)/bin/python ] || { echo "$(TARGETS_PYTHON) -m venv $(@D)"; $(TARGETS_PYTHON) -m venv $(@D); }
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet -c requirements.lock -e .
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r experiments/gpu/targets.lock
	@touch $@

bench: $(STAMP) $(PEERS)/.installed
	BENCH_PEERS=$(abspath $(PEERS)/bin/python) $(BIN)/python experiments/bench/run.py $(ROWS)
	$(BIN)/python experiments/bench/profile_rows.py $(filter-out cartpole_8_seeds,$(ROWS))

bench-host: $(STAMP) $(PEERS_HOST)/.installed
	$(PEERS_HOST)/bin/python experiments/bench/pool.py
	BENCH_PEERS=$(abspath $(PEERS_HOST)/bin/python) $(BIN)/python experiments/bench/host_sac.py

bench-returns: $(STAMP) $(PEERS)/.installed $(PEERS_HOST)/.installed
	$(BIN)/python experiments/learning/time_to_return.py $(ROWS)

bench-ray: $(STAMP) $(PEERS_RAY)/.installed
	BENCH_RAY=$(abspath $(PEERS_RAY)/bin/python) $(BIN)/python experiments/bench/q_learning.py $(ROWS)

bench-agents: $(STAMP) $(PEERS_RAY)/.installed $(PEERS_RAY)/magym/.installed
	BENCH_RAY=$(abspath $(PEERS_RAY)/bin/python) BENCH_MAGYM=$(abspath $(PEERS_RAY)/magym) \
		$(BIN)/python experiments/bench/agents_inference.py $(ROWS)

bench-gate: $(STAMP)
	@exec $(BIN)/python experiments/bench/gate.py $(ROWS)

gpu: $(STAMP)
	@exec $(BIN)/python experiments/gpu/gpu.py $(GPU)

sweep: $(STAMP)
	@exec $(BIN)/python -m jaxrl_fast.autotune env=$(ENV) out=$(SWEEPS) $(SWEEP)

sweep-all: $(STAMP)
	@for env in $(SWEEP_ALL); do \
		$(BIN)/python -m jaxrl_fast.autotune env=$$env out=$(SWEEPS) $(SWEEP) || exit $$?; done

$(PEERS)/.installed: experiments/bench/peers.lock
$(PEERS_HOST)/.installed: experiments/bench/peers_host.lock
$(PEERS_RAY)/.installed: experiments/bench/peers_ray.lock
$(PEERS)/.installed $(PEERS_HOST)/.installed $(PEERS_RAY)/.installed:
	@$(PEERS_PYTHON) -c 'import ensurepip, venv' || { \
		echo "make: the peers need Python 3.11: write make bench PEERS_PYTHON=/path/to/python3.11" >&2; exit 1; }
	@[ -x $(@D)/bin/python ] || { echo "$(PEERS_PYTHON) -m venv $(@D)"; $(PEERS_PYTHON) -m venv $(@D); }
	$(@D)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@touch $@

# For both sides, from a folder of its own: gym 0.20 is built only by a setuptools of its time.
$(PEERS_RAY)/magym/.installed: experiments/bench/magym.lock $(PEERS_RAY)/.installed
	$(PEERS_RAY)/bin/python -m pip install --disable-pip-version-check --quiet "setuptools<66" "wheel<0.40"
	$(PEERS_RAY)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation \
		--upgrade --target $(@D) -r $<
	@touch $@

# Only what three_parts.js names, so that a page of 1,000 steps stays below 2 MB. Not needed to install: the result is
# in the repository.
viewer-assets:
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	npm install --prefix "$$folder" --no-save --no-audit --no-fund three@$(THREE) esbuild@$(ESBUILD) uplot@$(UPLOT) && \
	cp "$$folder"/node_modules/uplot/dist/uPlot.iife.min.js "$$folder"/node_modules/uplot/dist/uPlot.min.css $(ASSETS) && \
	cp "$$folder/node_modules/uplot/LICENSE" $(ASSETS)/uPlot.LICENSE && \
	cp $(ASSETS)/three_parts.js "$$folder" && \
	cp "$$folder/node_modules/three/LICENSE" $(ASSETS)/three.LICENSE && \
	"$$folder/node_modules/.bin/esbuild" "$$folder/three_parts.js" --bundle --minify --format=iife \
		--global-name=THREE --legal-comments=inline --outfile=$(ASSETS)/three.min.js

clean:
	rm -rf $(VENV) $(PEERS) $(PEERS_HOST) $(PEERS_RAY) $(DOCS) build dist *.egg-info
