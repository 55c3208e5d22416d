# Two commands: `make run` and `make test`. Both set up what they need in .venv, and are quick the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: run test pytest test-busy golden coverage test-system debian-packages horovod bench lint clean

run: $(VENV)/.base
	$(BIN)/rigdyno

# Everything that the tests need.
TESTED := $(addprefix $(VENV)/., test private peers prv monai ome openvino tensorflow-cpu figures readers)
TESTS := tests/unit tests/contract tests/golden tests/integration
# Three processes for two cores: integration tests wait for others now and then.
PYTEST := -m pytest -n 3 --dist loadfile

test: $(TESTED) lint
	@$(MAKE) --no-print-directory pytest

pytest:
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) --strict-skips $(TESTS)

# The same tests next to two busy loops and one memory-bandwidth loop.
test-busy: $(TESTED)
	$(BIN)/python tests/busy.py $(MAKE) --no-print-directory pytest

# Lines and branches that the tests run, child processes included.
coverage: $(TESTED)
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run $(PYTEST) $(TESTS)
	-$(BIN)/coverage combine --quiet --append
	$(BIN)/coverage report --skip-covered --sort=cover

# Rewrites what the golden tests compare with: read the difference before you commit it.
golden: $(VENV)/.test $(VENV)/.private $(VENV)/.figures
	OMP_NUM_THREADS=1 UPDATE_GOLDEN=1 $(BIN)/python -m pytest tests/golden tests/unit/analyse/validity/test_rule_table.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/lint.py
	$(BIN)/python tools/language.py
	$(BIN)/mypy
	$(BIN)/lint-imports

# Needs root and Debian packages.
test-system: $(VENV)/.test $(VENV)/.tensorflow-cpu
	@$(MAKE) --no-print-directory debian-packages
	@$(MAKE) --no-print-directory $(VENV)/.axe
	@$(MAKE) --no-print-directory horovod
	$(BIN)/python -m pytest --strict-skips --timeout 700 tests/system

# Only what is missing: a Node.js from elsewhere, say, conflicts with Debian's npm.
COMMANDS := ip:iproute2 tc:iproute2 sshd:openssh-server ssh:openssh-client munged:munge slurmctld:slurmctld slurmd:slurmd \
  srun:slurm-client chromium:chromium npm:npm g++:g++ cmake:cmake mpirun:openmpi-bin

debian-packages:
	@missing=; for pair in $(COMMANDS); do \
	  PATH="$$PATH:/usr/sbin:/sbin" command -v $${pair%%:*} > /dev/null || missing="$$missing $${pair#*:}"; done; \
	echo '#include <mpi.h>' | mpicxx -E -x c++ - > /dev/null 2>&1 || missing="$$missing libopenmpi-dev"; \
	test -z "$$missing" || { apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $$missing; }

# For the PyTorch and TensorFlow in .venv; some minutes the first time, the wheel is kept in the user's cache.
horovod: $(VENV)/.horovod
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tensorflow") is None)' || \
	  $(MAKE) --no-print-directory $(VENV)/.tensorflow-cpu
	@$(BIN)/python tools/horovod/build.py

# What looks for barriers in the page.
$(VENV)/.axe: $(VENV)/bin/python
	@npm install --silent --no-audit --no-fund --no-save --prefix $(VENV)/axe axe-core@4.14.0
	@touch $@

bench: $(VENV)/.bench $(VENV)/.peers $(VENV)/.monai $(VENV)/.openvino $(VENV)-jax/.made
	@failed=0; for benchmark in benchmarks/[a-z]*.py; do \
	  echo "== $$benchmark"; $(BIN)/python $$benchmark || failed=1; \
	done; exit $$failed

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Rigdyno needs Python 3.11 or later") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --editable '.[test]'
	@touch $@

# The accountant, and what our own engines are held against.
$(VENV)/.private $(VENV)/.peers $(VENV)/.prv $(VENV)/.monai $(VENV)/.ome $(VENV)/.openvino $(VENV)/.tensorflow-cpu $(VENV)/.horovod $(VENV)/.figures $(VENV)/.readers: $(VENV)/.%: $(VENV)/.base
	@$(PIP) --editable '.[$*]' || { echo "rigdyno[$*] can't be installed here, and its tests can't run: see above"; exit 1; }
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) --editable '.[bench]'
	@touch $@

# A peer whose pins aren't ours; without it what it is measured for says so.
$(VENV)-jax/.made:
	@$(PYTHON) -m venv $(VENV)-jax
	@if $(VENV)-jax/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt jax; \
	then touch $@; else echo "JAX can't be installed here"; fi

clean:
	rm -rf $(VENV) $(VENV)-jax build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
