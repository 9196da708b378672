# The commands of this project. CI calls the same ones.
#
# Everything but `release` and `bench` uses cargo's dev profile and the same features, so that the dependencies,
# which take most of the time, are compiled once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo clean-demo test check fmt-check fmt clippy doc release bench setup s3-server

CARGO ?= cargo
DEMO_DIR ?= demo-rollouts
# Wherever cargo is configured to build.
TARGET_DIR = $(shell $(CARGO) metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Build, then run the demo on a local folder (DEMO_DIR, default ./demo-rollouts)
	$(CARGO) build --bin rollouts
	@ROLLOUTS="$(TARGET_DIR)/debug/rollouts" DEMO_DIR="$(DEMO_DIR)" demo/run.sh

clean-demo: ## Remove the demo's folder
	@DEMO_DIR="$(DEMO_DIR)" demo/run.sh --clean

test: setup s3-server ## Run every test: unit, integration, sqllogictest, documentation
	$(CARGO) test --no-fail-fast

check: fmt-check clippy ## Formatting and lints, warnings denied

fmt-check: ## Whether the code is formatted
	$(CARGO) fmt --all --check

fmt: ## Format the code
	$(CARGO) fmt --all

clippy: setup ## Lints on all targets, warnings denied
	$(CARGO) clippy --all-targets -- -D warnings

doc: setup ## Build the API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps

release: setup ## Build the optimized binary, for use (much slower to build)
	$(CARGO) build --release --bin rollouts
	@echo "Built $(TARGET_DIR)/release/rollouts"

bench: setup ## Run the benchmarks (optimized build)
	$(CARGO) bench --bench ingest --bench bulk --bench merge --bench scan --bench memory

s3-server: ## Install the S3 server some tests run against, beside the build; without it they are skipped
	@.ci/s3-server "$(TARGET_DIR)/s3-server"

setup: ## Check for what the build needs; install protoc if it is missing
	@.ci/setup
