# `make help` lists the targets. From nothing, `make demo` and `make test` install and build what they need.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
PEERS ?=
CONFORMANCE_ARGS ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(HOME)/.cargo/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

REQUIREMENTS := $(wildcard requirements/*.txt)
RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) $(shell find crates csrc -type f ! -name '*.snap*')
BUILT := $(VENV)/.built
INSTALLED := $(VENV)/.installed
COUNTER := $(TARGET)/release/libpjrt_count.so
# Looked up when a recipe runs: the packages may have been installed a moment before.
SITE = $(abspath $(wildcard $(VENV)/lib/python3*/site-packages))

.PHONY: help venv build demo train test test-rust test-python ahead-of-time bench conformance conformance-tpu wheel lint docs clean FORCE

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

# --no-deps: the files hold everything, so pip need not resolve. --no-compile: byte code is made where it is used.
$(INSTALLED): $(REQUIREMENTS)
	@echo "==> Installing the pinned packages into $(VENV)/ (PyTorch from PyPI takes 5.4 GB and a minute or two)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python -m venv failed. On Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps $(addprefix -r ,$(REQUIREMENTS))
	@touch $@

venv: $(INSTALLED) ## Create .venv/ and install the pinned packages

# The extension is built in place (python/torch_pjrt/) and the package installed as editable.
$(BUILT): $(INSTALLED) pyproject.toml $(RUST_SOURCES) $(if $(wildcard python/torch_pjrt/_core*.so),,FORCE)
	@echo "==> Building the Rust core and the C++ shim"
	@command -v cargo >/dev/null || { echo "cargo is missing. Fix: install Rust 1.95 or newer"; exit 1; }
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --quiet
	@touch $@

build: $(BUILT) ## Build the Rust core and the C++ shim, and install torch-pjrt into .venv/

$(COUNTER): $(RUST_SOURCES)
	@echo "==> Building the counting plugin for the tests"
	@cargo build --quiet --release -p pjrt-count
	@touch $@

demo: build ## Run two models on CPU and tpu and compare them
	@$(BIN)/python tools/demo.py

train: build ## Train two models on CPU and tpu, stop and resume one, and compare
	@$(BIN)/python tools/train.py

test: test-rust test-python ## Run every test

test-rust: venv ## Run the Rust tests
	@echo "==> Rust tests"
	@export TORCH_PJRT_TEST_PLUGIN="$${TORCH_PJRT_TEST_PLUGIN:-$(SITE)/fastatomstruct_xla_cpu/libpjrt_cpu.so}"; \
	export TORCH_PJRT_TEST_LIBTPU="$${TORCH_PJRT_TEST_LIBTPU:-$(SITE)/libtpu/libtpu.so}"; \
	if cargo nextest --version >/dev/null 2>&1; \
	then cargo nextest run --workspace; cargo nextest run -p pjrt --test topology --run-ignored only; \
	else cargo test --workspace; cargo test -p pjrt --test topology -- --ignored; fi

test-python: build $(COUNTER) ## Run the Python tests
	@echo "==> Python tests"
	@export TORCH_PJRT_COUNTER=$(abspath $(COUNTER)) TORCH_PJRT_CACHE_DIR="$${TORCH_PJRT_CACHE_DIR:-$(CURDIR)/target/test-cache}"; \
	$(BIN)/python -m pytest $(PYTEST_ARGS)

ahead-of-time: build ## Compile the flagship operators and a whole language model for TPUs that are not here
	@$(BIN)/python tools/ahead_of_time.py $(PYTEST_ARGS)

bench: build ## Compare speed with CPU eager, case by case (PEERS=1: with other backends too)
	@$(BIN)/python benches/bench.py $(if $(PEERS),--peers) $(BENCH_ARGS)

conformance: build ## Run PyTorch's operator samples on the device against the CPU (CONFORMANCE_ARGS="--help" tells more)
	@$(BIN)/python -m conformance $(CONFORMANCE_ARGS)

conformance-tpu: build ## Compile one sample of every green pair, and the examples, for a TPU that is not here
	@$(BIN)/python -m conformance.tpu $(CONFORMANCE_ARGS)

wheel: venv ## Build the wheel into dist/ and check its size
	@VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin build --release --quiet --interpreter $(abspath $(BIN)/python) --out dist
	@$(BIN)/python tools/wheel.py dist

lint: ## Check formatting and run the linters
	@echo "==> rustfmt, clippy"
	@cargo fmt --all --check
	@cargo clippy --quiet --workspace --all-targets -- -D warnings
	@$(MAKE) venv
	@echo "==> ruff"
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@if command -v clang-format >/dev/null; then echo "==> clang-format"; clang-format --dry-run -Werror csrc/*; fi

docs: venv ## Build the Rust documentation and check the links of the Markdown pages
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
	@$(BIN)/python tools/check_links.py README.md docs

clean: ## Remove what was built, keep .venv/
	@rm -rf target dist $(BUILT)
	@rm -f python/torch_pjrt/*.so
