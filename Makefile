# Everything runs inside .venv; each command sets it up first where that is still to be done.
#   make test    lint and run the tests         make demo    run the demonstration
#   make lint    ruff and mypy                  make format  let ruff rewrite the files
#   make setup   only the environment           make clean   remove what these commands made
#   make docs    the site, in docs/_build/html
#   make test-models   models of transformers and the libraries that train them, in .venv-models
#   make test-torch TORCH=2.15.0   all tests with another torch than the pinned one, in an environment of its own
#   make bench   all benchmarks beside the peers, in .venv-bench (QUICK=1: in about two minutes)

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
WORKERS ?= 2
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# The first interpreter that runs, is new enough and can make environments. A name on the
# path proves nothing (version managers leave names that refuse to run), so each is asked.
SUITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
FIND_PYTHON = for p in $(PYTHON) python3 python3.12 python3.11 python3.13; do \
	"$$p" -c '$(SUITS)' >/dev/null 2>&1 && { echo "$$p"; break; }; done

# An environment in a folder (1), with a word on how long it takes (2); one that is there and still runs is kept.
define ENVIRONMENT
@set -e; python=$$($(FIND_PYTHON) || true); \
if [ -z "$$python" ]; then \
	echo "weft needs Python 3.11, 3.12 or 3.13 with the venv module: install one, or say make PYTHON=/path/to/python." >&2; exit 1; \
fi; \
echo "setting up $(1) with $$("$$python" --version) (the first time takes $(2))"; \
[ -x $(1)/bin/python ] && $(1)/bin/python -c '$(SUITS)' 2>/dev/null || "$$python" -m venv --clear $(1)
endef

# The environment is ready when it was made from these very files, in this place; their
# content counts, not their time, so that a fresh checkout of the same pins changes nothing.
LOCKS := requirements.lock requirements-triton.lock
KEY := $(shell { echo "$(CURDIR)"; cat pyproject.toml $(LOCKS); } | cksum | tr ' ' '-')
READY := $(VENV)/.ready-$(KEY)

# The site's tools are kept apart from what the tests need.
DOCS_READY := $(VENV)/.docs-ready-$(shell cat requirements-docs.lock requirements.lock | cksum | tr ' ' '-')

# The peers that Weft is measured against have an environment of their own.
BENCH := .venv-bench
BENCH_PY := $(BENCH)/bin/python
BENCH_READY := $(BENCH)/.ready-$(shell { echo "$(CURDIR)"; cat benchmarks/requirements.lock; } | cksum | tr ' ' '-')

# MAX has one too, where it can be installed; benchmarks do without it elsewhere.
MAX := .venv-max
MAX_READY := $(MAX)/.ready-$(shell { echo "$(CURDIR)"; cat benchmarks/requirements-max.lock; } | cksum | tr ' ' '-')

# So have the libraries of models and trainers, which the tests do without.
MODELS := .venv-models
MODELS_PY := $(MODELS)/bin/python
MODELS_READY := $(MODELS)/.ready-$(shell { echo "$(CURDIR)"; cat requirements.lock tests/models/requirements.lock; } | cksum | tr ' ' '-')

# A torch that is not the pinned one has an environment of its own, too. Newer ones bring gigabytes of GPU libraries.
OTHER := .venv-torch-$(TORCH)
OTHER_PY := $(OTHER)/bin/python
OTHER_READY := $(OTHER)/.ready-$(shell { echo "$(CURDIR)"; cat $(LOCKS); } | cksum | tr ' ' '-')

.PHONY: setup test test-models test-torch lint format demo docs bench clean
.DEFAULT_GOAL := test

setup: $(READY)
	@echo "$(VENV) is ready"

$(READY):
	$(call ENVIRONMENT,$(VENV),a minute or two)
	@rm -f $(VENV)/.ready-*
	$(PY) -m pip install --quiet -r requirements.lock
	@$(PY) -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("triton") is None)' \
		|| $(PY) -m pip install --quiet -r requirements-triton.lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

test: lint
	$(PY) -m pytest -n $(WORKERS) --dist loadgroup --durations=15 $(PYTEST_ARGS)

$(MODELS_READY):
	$(call ENVIRONMENT,$(MODELS),some minutes)
	@rm -f $(MODELS)/.ready-*
	$(MODELS_PY) -m pip install --quiet -r tests/models/requirements.lock
	@touch $@

test-models: $(MODELS_READY)
	PYTHONPATH=. $(MODELS_PY) -m pytest tests/models --durations=15 $(PYTEST_ARGS)

$(OTHER_READY):
	@test -n "$(TORCH)" || { echo "say which torch: make test-torch TORCH=2.15.0" >&2; exit 1; }
	$(call ENVIRONMENT,$(OTHER),some minutes)
	@grep -v '^torch==' requirements.lock > $(OTHER)/others.lock
	$(OTHER_PY) -m pip install --quiet torch==$(TORCH) -r $(OTHER)/others.lock
	@$(OTHER_PY) -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("triton") is None)' \
		|| $(OTHER_PY) -m pip install --quiet -r requirements-triton.lock
	@touch $@

test-torch: $(OTHER_READY)
	PYTHONPATH=$(CURDIR) $(OTHER_PY) -m pytest -n $(WORKERS) --dist loadgroup --durations=15 $(PYTEST_ARGS)

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(READY)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

demo: $(READY)
	$(PY) examples/demo.py

$(DOCS_READY): $(READY)
	@rm -f $(VENV)/.docs-ready-*
	$(PY) -m pip install --quiet -r requirements-docs.lock
	@touch $@

docs: $(DOCS_READY)
	$(PY) -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

$(BENCH_READY):
	$(call ENVIRONMENT,$(BENCH),some minutes)
	@rm -f $(BENCH)/.ready-*
	$(BENCH_PY) -m pip install --quiet -r benchmarks/requirements.lock
	@touch $@

$(MAX_READY): $(BENCH_READY)
	@$(BENCH_PY) -m venv --clear $(MAX)
	@echo "setting up $(MAX) for MAX, a peer"
	@$(MAX)/bin/python -m pip install --quiet -r benchmarks/requirements-max.lock 2>$(MAX)/why-not && touch $@ || true

bench: $(BENCH_READY) $(if $(QUICK),,$(MAX_READY))
	PYTHONPATH=. $(BENCH_PY) benchmarks/run.py $(if $(QUICK),--quick) $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(BENCH) $(MAX) $(MODELS) .venv-torch-* build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find weft tests -name __pycache__ -type d -prune -exec rm -rf {} +
