# Needs python3 (3.11 or later) and make; everything else comes from the package index into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
# A command named python3.12 may exist and not run (pyenv's shims), so each candidate is asked.
FIND_PYTHON = for p in $(PYTHON) python3.14 python3.13 python3.12 python3.11 python3 python; do \
	if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$p"; exit; fi; done

# An install compiles these.
CORE = hatch_build.py $(wildcard src/shardmill/core/*.[ch])
# As pip does for what it copies: where Python may not write bytecode, every start would compile the package anew.
COMPILE = $(BIN)/python -m compileall -q src

FUZZ_SECONDS ?= 600

.PHONY: help demo test test-all lint soak bench docs pictures lowest core core-check fuzz-reading wheels clean

help:
	@echo "make demo          install into .venv, tokenize the source of Python's standard library, show the result"
	@echo "make test          install the test tools as well, and run the quick tests: five minutes on two cores"
	@echo "make test-all      run all tests but the slow ones"
	@echo "make lint          run ruff, and mypy --strict"
	@echo "make soak          run the slow tests: minutes, gigabytes"
	@echo "make bench         compare shardmill with other ways to tokenize (INPUT=file or folder for your own text)"
	@echo "make docs          build the documentation as a site in build/site that works offline"
	@echo "make pictures      make the pictures of the documentation again, from real runs"
	@echo "make lowest        run the tests with every dependency at its lower bound"
	@echo "make core          compile src/shardmill/core in place"
	@echo "make core-check    test the core with every installed compiler, with sanitizers, for ARM, under a fuzzer"
	@echo "make fuzz-reading  fuzz the core's JSON, UTF-8 and separator code with clang (FUZZ_SECONDS=600)"
	@echo "make wheels        build the sdist and a wheel for each platform in dist/, and test what can run here"
	@echo "make clean         remove everything that these commands have made"
	@echo "PYTHON=… chooses the interpreter when .venv is created."

.venv/made:
	@python="$$($(FIND_PYTHON))"; \
	if [ -z "$$python" ]; then \
		echo "error: no Python 3.11 or later with venv and pip was found" >&2; \
		echo "  hint:  install one (Debian: apt install python3-venv), or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	echo "making .venv with $$("$$python" -V)"; rm -rf .venv; "$$python" -m venv .venv
	@touch $@

.venv/installed: .venv/made pyproject.toml $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(COMPILE)
	@touch $@

.venv/tools: .venv/made pyproject.toml $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@$(COMPILE)
	@touch $@ .venv/installed

demo: .venv/installed
	@lib="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"; \
	echo "$$ shardmill prepare '$$lib/*.py' '$$lib/*/*.py' -o demo --val 0.02 --overwrite"; \
	$(BIN)/shardmill prepare "$$lib/*.py" "$$lib/*/*.py" -o demo --val 0.02 --overwrite
	@echo; echo '$$ ls -l demo'; ls -l demo
	@echo; echo 'the first 60 tokens of demo/train.bin, and what they say:'; $(BIN)/python -c "$$EXCERPT"

define EXCERPT
import numpy
from shardmill.tokens import load_tokenizer
tokens = numpy.fromfile("demo/train.bin", dtype="<u2", count=60)
print(tokens, load_tokenizer("gpt2").decode(tokens).decode(errors="replace"), sep="\n\n")
endef
export EXCERPT

test: .venv/tools
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow and not thorough'

test-all: .venv/tools
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow'

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: .venv/tools
	$(BIN)/python -m pytest -m slow --timeout 3600

bench: .venv/installed
	$(BIN)/python -m benchmarks compare $(if $(INPUT),--input '$(INPUT)')

.venv/docs: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: .venv/docs
	$(BIN)/python docs/site.py build/site

pictures: .venv/docs
	$(BIN)/python docs/pictures.py

# The oldest Python that is here: old releases have no wheels for the newest.
lowest: .venv/made pyproject.toml
	@python="$$(for p in $(PYTHON) python3.11 python3.12 python3; do "$$p" -c '' 2>/dev/null && echo "$$p" && break; done)"; \
	rm -rf .venv/lowest; "$$python" -m venv .venv/lowest
	sed -n '/^dependencies/,/^]/s/.*"\([a-z.]*\)>=\([0-9.]*\).*/\1==\2/p' pyproject.toml > .venv/lowest/lowest.txt
	.venv/lowest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv/lowest/lowest.txt --editable '.[test]'
	.venv/lowest/bin/python -m pytest -n auto --dist worksteal -m 'not slow'

core: .venv/made
	$(BIN)/python hatch_build.py

# Vectors against scalar under the sanitizers, on inputs that clang's fuzzer thinks of. What it finds stays in build/fuzz.
fuzz-reading:
	mkdir -p build/fuzz/reading
	clang -std=c11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Isrc/shardmill/core \
		src/shardmill/core/json.c src/shardmill/core/utf8.c src/shardmill/core/scan.c \
		src/shardmill/core/normal.c src/shardmill/core/pages.c src/shardmill/core/deal.c \
		tests/core/fuzz_reading.c \
		-o build/fuzz-reading
	build/fuzz-reading -max_total_time=$(FUZZ_SECONDS) -max_len=600 -dict=tests/core/json.dict build/fuzz/reading
# Uses gcc, clang, aarch64-linux-gnu-gcc and qemu-aarch64; what is not installed is skipped, and said.
core-check: .venv/tools core
	FUZZ_SECONDS=60 $(BIN)/python -m pytest tests/core

# For Linux and macOS, all on this machine; what can run here is tested.
wheels: .venv/tools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build hatchling 'ziglang>=0.13'
	$(BIN)/python wheels.py dist

clean:
	rm -f src/shardmill/core/_core.so
	rm -rf .venv demo build dist benchmarks/.cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
