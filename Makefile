# Everything happens in .venv; Python 3.11, git, gcc and make are all that must be there.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
OUT ?= .cache/demo
MODELS ?=
# Rules, and pages held against the program: they take seconds to check, and would otherwise end a run of half an hour.
RULES := $(addprefix tests/unit/test_, architecture.py documents.py glossary.py packaging.py page_style.py public_types.py style.py walks.py) \
  $(wildcard tests/unit/*/test_docs.py) tests/unit/report/test_verdict_page.py tests/unit/pattern/test_tutorial.py

# Two at a time: no test asserts what a busy machine decides. Those that compile stay with the others of their file, which share
# what was compiled, and are four at a time: most of them wait for the measurements of another one.
SMALL := -n 2 tests/unit tests/hostile tests/toolchain tests/fuzz $(addprefix --ignore=,$(RULES))
# Those of tests/crash take longest, and are few in each file: they begin first.
WHOLE := -n 4 --dist loadfile --no-loadscope-reorder tests/crash tests/e2e
# Toolchains that are no part of the package `collage`: each has its tests, in a run of their own.
PACKAGES := $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))
APART := -n 2 packages

.PHONY: demo test test-all lowest coverage types fuzz lint docs bench paper gpu clean

demo: $(VENV)/demo.stamp  ## compile, run and bench two real models
	$(BIN)/python examples/demo.py $(OUT)

test: $(VENV)/dev.stamp lint  ## the default tests
	$(BIN)/python -m pytest -m "not slow" $(SMALL)
	$(BIN)/python -m pytest -m "not slow" $(WHOLE)
	$(BIN)/python -m pytest -m "not slow" $(APART)

test-all: $(VENV)/dev.stamp lint  ## the long ones too, and random graphs that are new each time
	$(BIN)/python -m pytest --hypothesis-profile=fresh $(SMALL)
	$(BIN)/python -m pytest --hypothesis-profile=fresh $(WHOLE)
	$(BIN)/python -m pytest --hypothesis-profile=fresh $(APART)

# Tests that need neither torch nor a toolchain beside those of the extra `cpu`, with the oldest versions that pyproject.toml admits.
LOWEST := tests/unit/graph tests/unit/pattern tests/unit/transform tests/unit/database tests/unit/numerics tests/unit/search \
  tests/unit/cli tests/unit/runtime/test_artefact.py tests/toolchain/test_onnxruntime.py tests/toolchain/test_openvino.py

lowest:  ## small tests with the lowest versions of everything that pyproject.toml names
	$(PYTHON) -m venv .cache/lowest
	.cache/lowest/bin/pip install -q --disable-pip-version-check uv
	.cache/lowest/bin/uv pip install -q --python .cache/lowest/bin/python --resolution lowest-direct -e '.[cpu,exact,postgres,store]'
	.cache/lowest/bin/pip install -q --disable-pip-version-check pytest pytest-timeout hypothesis
	.cache/lowest/bin/python -m pytest -m "not slow" $(LOWEST)

coverage: $(VENV)/dev.stamp  ## the default tests, with the floor of pyproject.toml
	$(BIN)/pip install -q --disable-pip-version-check pytest-cov
	$(BIN)/python -m pytest -m "not slow" --cov $(SMALL)

types: $(VENV)/dev.stamp  ## a user's script with planted errors, by mypy and pyright, and completion by Jedi
	$(BIN)/pip install -q --disable-pip-version-check pyright
	$(BIN)/python -m pytest tests/unit/test_public_types.py

fuzz: $(VENV)/dev.stamp  ## random models of all kinds against the original files; SEED=1 TIME=10m
	$(BIN)/python -m tests.fuzz --seed $(or $(SEED),0) --time-limit $(or $(TIME),10m)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m "not slow" $(RULES)

docs: $(VENV)/docs.stamp  ## the site, in .cache/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The runtime has no source distribution: its sources are those of the whole, outside of its folder.
dist:  ## the distributions, in .cache/dist: sources and wheels of the whole and of each package, wheel of the runtime
	rm -rf .cache/dist && $(PYTHON) -m venv .cache/build
	.cache/build/bin/pip install -q --disable-pip-version-check build
	for folder in . $(PACKAGES); do .cache/build/bin/python -m build -o .cache/dist $$folder || exit 1; done
	.cache/build/bin/python -m build --wheel -o .cache/dist packaging/runtime

try-dist:  ## the wheel with its extra `cpu` in a clean environment: the quick start of the README
	rm -rf .cache/clean && $(PYTHON) -m venv .cache/clean
	.cache/clean/bin/pip install -q --disable-pip-version-check "$$(ls $(CURDIR)/.cache/dist/collage_compiler-*.whl)[cpu]"
	cd .cache/clean && bin/python $(CURDIR)/tools/quick_start.py

bench: $(VENV)/dev.stamp  ## us against every single toolchain; MODELS=a,b picks some
	$(BIN)/python -m benchmarks.bench $(if $(MODELS),--models $(MODELS))

paper: $(VENV)/dev.stamp  ## the five models of the Collage paper, as a table of plans and ratios
	$(BIN)/python -m benchmarks.bench --models paper --table

# On a machine with a device, PYTHON_GPU is one with a CUDA build of torch and what Collage needs; see packages/collage-cuda/README.md.
PYTHON_GPU ?= $(BIN)/python
EMPTY :=
SOURCES := $(subst $(EMPTY) ,:,src . $(addsuffix /src,$(PACKAGES)))

gpu:  ## the contract of every CUDA toolchain, then us against each; needs an NVIDIA GPU
	PYTHONPATH=$(SOURCES) $(PYTHON_GPU) -m pytest -p no:cacheprovider -n 8 -rs packages/collage-cuda/tests/gpu tests/unit/runtime/test_device_chain.py
	PYTHONPATH=$(SOURCES) $(PYTHON_GPU) -m benchmarks.bench --device cuda $(if $(MODELS),--models $(MODELS))

$(VENV)/demo.stamp: requirements.txt pyproject.toml $(wildcard packages/*/pyproject.toml)
	$(PYTHON) -m venv $(VENV) 2>/dev/null || python3 -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -e . $(addprefix -e ,$(PACKAGES))
	touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp requirements-dev.txt
	$(BIN)/pip install -q --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/docs.stamp: $(VENV)/demo.stamp
	$(BIN)/pip install -q --disable-pip-version-check -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
