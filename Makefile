# The commands of the project. `make run` and `make test` set up what they need.
.PHONY: run test lint soak bench install clean help
.DEFAULT_GOAL := help

BIN := $(or $(CARGO_TARGET_DIR),target)/release/onggi

help: ## what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## set up, build, and show the main job on real data
	@scripts/setup.sh run
	@cargo build --release --locked -p onggi
	@scripts/demo.sh $(BIN)

test: ## every test, in its short form
	@scripts/setup.sh test
	@scripts/test.sh

lint: ## formatting and clippy, warnings are errors
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --locked -- -D warnings

soak: ## the long forms: a thousand kills, long crash and hostile-image campaigns
	@scripts/setup.sh test
	@ONGGI_SOAK=1 scripts/test.sh --release

bench: ## Onggi, Linux ext4 over loop and fuse2fs in one run; writes docs/BENCHMARKS.md (needs root)
	@scripts/setup.sh bench
	@cargo build --release --locked -p onggi
	@scripts/bench.sh $(BIN)

install: ## the binary, its mount helper, man pages and completions into PREFIX (/usr/local)
	@scripts/install.sh $(BIN)

clean: ## what was built
	@cargo clean
	@rm -rf out
