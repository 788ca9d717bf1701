# Every target sets itself up: virtual environment, pinned packages, native build. Second runs start in seconds.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
MODEL = cargo test --quiet -p streamlearn-table --features model --lib model::
NATIVE_TESTS = cargo test --quiet --workspace --exclude streamlearn-python --lib --tests && LOOM_MAX_PREEMPTIONS=1 $(MODEL)
NATIVE := Cargo.toml Cargo.lock pyproject.toml $(shell find native -name '*.rs' -o -name Cargo.toml)
.DEFAULT_GOAL := help
.PHONY: help setup services fetch test test-quick chaos chaos-parts test-arm fuzz fuzz-python fuzz-corpora model check bench peers demo demo-real format lock wheel release release-test image gpu-kit kube clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.built ## virtual environment, pinned packages, native build

$(VENV)/.python:
	@echo "== virtual environment ($$($(PYTHON) --version))"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "streamlearn needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check "uv>=0.8,<1"
	@touch $@

$(VENV)/.packages: requirements.lock $(VENV)/.python
	@echo "== packages (about 700 MB the first time)"
	@$(VENV)/bin/uv pip install --python $(RUN) --require-hashes -r requirements.lock
	@$(RUN) -m compileall -q -j 0 $(VENV)/lib  # else each process compiles all it imports, where Python may not write
	@touch $@

$(VENV)/.built: $(NATIVE) $(VENV)/.packages
	@command -v cargo >/dev/null || { echo "error: cargo not found"; echo "help: install Rust 1.89 or newer (rustup), then run this again"; exit 1; }
	@echo "== native build (one to five minutes the first time)"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/uv pip install --python $(RUN) --no-deps --no-build-isolation -e .
	@$(RUN) -m compileall -q streamlearn
	@touch $@

lock: $(VENV)/.python ## pin every package again, with hashes
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-annotate --group dev --extra access --extra ingest --extra train pyproject.toml -o requirements.lock
	@$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --no-annotate packaging/zig.in -o packaging/zig.lock
	@for name in feast mosec river tensorflow tfra torch triton vectors; do \
	  case $$name in triton) glibc=2_35;; *) glibc=2_28;; esac; \
	  $(VENV)/bin/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_$$glibc --generate-hashes \
	    --no-header --no-emit-index-url --no-annotate \
	    benchmarks/peers/requirements-$$name.in -o benchmarks/peers/requirements-$$name.lock || exit 1; \
	done
	@$(VENV)/bin/uv pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-header \
	  --no-emit-index-url --no-annotate tools/gpu/requirements-jax.in -o tools/gpu/requirements-jax.lock

wheel: setup ## the wheel for this processor, into dist/
	@$(RUN) -m tools.release wheel

release: setup ## wheels for x86-64 and aarch64, the source, bills of materials and sums, into dist/; status 3: a wheel cannot be built here
	@$(RUN) -m tools.release all

release-test: wheel ## the wheel in empty environments, beside the release before, and in an image
	@begin=$$(date +%s); \
	  $(RUN) -m pytest -q -p no:cacheprovider tests/release/test_neighbours.py $(PYTEST) >target/neighbours.txt 2>&1 & beside=$$!; \
	  $(RUN) -m pytest -q tests/release --ignore tests/release/test_neighbours.py $(PYTEST); status=$$?; \
	  wait $$beside || status=1; cat target/neighbours.txt; \
	  [ $$status -eq 0 ] && echo "ok: make release-test, $$(($$(date +%s) - begin)) seconds"

image: export PRISM := $(PRISM)
image: export EXTRAS := $(EXTRAS)
image: wheel ## an image of KIND (node, train, ingest, access or up) from the wheel; needs root, buildah and debootstrap
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" packaging/container/build.sh $(or $(KIND),node) dist/streamlearn-*_$$(uname -m).whl

services: setup ## fetch Kafka and Redis into the cache, then run them until Ctrl-C
	@$(RUN) -m tools.services fetch kafka redis
	@$(RUN) -m tools.services up kafka redis

fetch: setup
	@$(RUN) -m tools.services fetch || [ $$? -eq 3 ] # 3: some are not available here, as printed

# To compile so that a second time is short makes the first one longer by a tenth.
test: export CARGO_INCREMENTAL = 0
test: setup fetch ## every test, on real services where they can be had (with CI=1 a missing one fails)
	@begin=$$(date +%s); \
	  $(RUN) -m compileall -q streamlearn tools && \
	  $(RUN) -m tools.run_tests --beside '$(NATIVE_TESTS)' $(PYTEST) && \
	  echo "ok: make test, $$(($$(date +%s) - begin)) seconds"

test-quick: setup ## the tests that need no service and take less than half a second, for the edit loop
	@begin=$$(date +%s); $(RUN) -m tools.run_tests --quick -q $(PYTEST) && echo "ok: make test-quick, $$(($$(date +%s) - begin)) seconds"

chaos: setup fetch ## the whole loop under load for 20 minutes with random faults: kills, stops, damage, rollbacks; CHAOS="--minutes N --seed N --real"
	@$(RUN) -m tools.chaos $(CHAOS)

chaos-parts: setup fetch ## the random tests of the parts for about an hour: more kills, more processes, EXAMPLES_TIMES (20) times the examples
	@YEAR_DAYS=$${YEAR_DAYS:-365} WEEK_MINUTES=$${WEEK_MINUTES:-10080} \
	  CHAOS_KILLS=$${CHAOS_KILLS:-1000} INGEST_KILLS=$${INGEST_KILLS:-60} TRAINER_KILLS=$${TRAINER_KILLS:-60} \
	  KUAIRAND_DAYS=$${KUAIRAND_DAYS:-7} AWAY_S=$${AWAY_S:-60} \
	  LIFE_SEEDS=$${LIFE_SEEDS:-30} LIFE_VERSIONS=$${LIFE_VERSIONS:-200} EXAMPLES_TIMES=$${EXAMPLES_TIMES:-20} \
	  $(VENV)/bin/pytest -q tests/ps/test_chaos.py tests/ingest/test_restarts.py tests/ingest/test_broker_away.py \
	  tests/examples/test_kuairand_equal.py tests/trainer tests/versions tests/publisher tests/table $(PYTEST)

FUZZ ?= $(notdir $(wildcard native/fuzz/corpus/*))
FUZZ_RUN = CARGO_PROFILE_RELEASE_LTO=off cargo +nightly fuzz run --fuzz-dir native/fuzz/libfuzzer --target-dir target/fuzz any

fuzz: ## every native decoder against libFuzzer, FUZZ_S (600) seconds each; FUZZ="NAME ..." names some; needs a nightly compiler and cargo-fuzz
	@for name in $(FUZZ); do \
	  mkdir -p target/fuzz-corpus/$$name target/fuzz-found/$$name && \
	  FUZZ=$$name $(FUZZ_RUN) $(CURDIR)/target/fuzz-corpus/$$name $(CURDIR)/native/fuzz/corpus/$$name -- -max_total_time=$${FUZZ_S:-600} \
	    -timeout=20 -rss_limit_mb=2048 -max_len=8192 -artifact_prefix=$(CURDIR)/target/fuzz-found/$$name/ || exit 1; \
	done

fuzz-corpora: ## put what `make fuzz` has found into native/fuzz/corpus, minimised
	@for name in $(FUZZ); do \
	  rm -rf target/fuzz-merged && mkdir -p target/fuzz-merged && \
	  FUZZ=$$name $(FUZZ_RUN) $(CURDIR)/target/fuzz-merged $(CURDIR)/native/fuzz/corpus/$$name $(CURDIR)/target/fuzz-corpus/$$name -- \
	    -merge=1 -max_len=2048 && rm -rf native/fuzz/corpus/$$name && mv target/fuzz-merged native/fuzz/corpus/$$name || exit 1; \
	done

FUZZ_PYTHON = PATH="$(CURDIR)/$(VENV)/bin:$$PATH" PYTHONPATH=target/atheris:. tests/fuzz_python.py
fuzz-python: setup ## the Python decoders with Atheris, FUZZ_S (600) seconds; what is new goes to tests/corpus, minimised
	@mkdir -p target/fuzz-python target/fuzz-found/python
	@$(VENV)/bin/uv pip install --quiet --python $(RUN) --target target/atheris atheris==3.0.0
	@$(FUZZ_PYTHON) target/fuzz-python tests/corpus -max_total_time=$${FUZZ_S:-600} \
	  -timeout=20 -rss_limit_mb=4096 -max_len=8192 -artifact_prefix=target/fuzz-found/python/
	@rm -rf target/fuzz-merged && mkdir -p target/fuzz-merged
	@$(FUZZ_PYTHON) target/fuzz-merged tests/corpus target/fuzz-python -merge=1 -max_len=2048
	@rm -rf tests/corpus && mv target/fuzz-merged tests/corpus

ARM = aarch64-unknown-linux-musl
ARM_CRATES = $(addprefix -p streamlearn-,features join scan scheduler table wire)
test-arm: export RUSTFLAGS = -C linker=rust-lld -C link-self-contained=yes
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER = qemu-aarch64-static -cpu max
test-arm: ## native tests on an emulated ARM processor, about 4 minutes; needs the package qemu-user-static
	@qemu-aarch64-static --version >/dev/null && rustup target add $(ARM)
	@cargo clippy --quiet --target $(ARM) --target-dir target/arm $(ARM_CRATES) --all-targets -- -D warnings
	@cargo test --quiet --target $(ARM) --target-dir target/arm $(ARM_CRATES) --lib --tests

model: ## the model check of the table in full: every order of readers and writers with two preemptions
	@LOOM_MAX_PREEMPTIONS=$${LOOM_MAX_PREEMPTIONS:-2} $(MODEL)

check: setup ## ruff, mypy, rustfmt, clippy, the rules of tests/test_tidy.py, the documentation's links
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/mypy
	@cargo fmt --check
	@cargo clippy --quiet --all-targets -- -D warnings
	@cargo clippy --quiet -p streamlearn-table --lib --tests --features model -- -D warnings
	@$(VENV)/bin/pytest -q tests/test_tidy.py
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet --site-dir site
	@echo "ok: make check"

format: setup ## format Python and Rust
	@$(VENV)/bin/ruff check --fix --quiet . ; $(VENV)/bin/ruff format .
	@cargo fmt

bench: setup fetch ## every benchmark, quickly; `python -m benchmarks NAME` measures one in full
	@for name in wire table ps versions join ingest trainer learning freshness executables serving loop idle; do $(RUN) -m benchmarks $$name --quick; done

kube: setup ## the Helm chart into a real API server of Kubernetes: 13 sets of values; the first run builds it, which takes up to an hour
	@$(RUN) -m tools.kube

peers: setup ## the environments of the benchmarks' peers, into the cache (about 13 GB); 3: some are not available here
	@$(RUN) -m benchmarks.peers build

gpu-kit: setup ## export graphs and run them on processors without TensorFlow, as `prove.py --gpu` does on a GPU machine; GPU_KIT="--quick"
	@$(RUN) -m tools.gpu --out target/gpu-kit $(GPU_KIT)

demo: ## the whole loop, no service needed; the time it says includes what setup took
	@begin=$$(date +%s); $(MAKE) --silent --no-print-directory setup && $(RUN) -m tools.services fetch prism && \
	  $(VENV)/bin/streamlearn demo && echo "ok: make demo, $$(($$(date +%s) - begin)) seconds"

demo-real: setup ## the same on a real Kafka, Redis and Flink, which it fetches and starts
	@begin=$$(date +%s); $(RUN) -m tools.services fetch kafka flink envoy && $(RUN) -m tools.demo_real && \
	  echo "ok: make demo-real, $$(($$(date +%s) - begin)) seconds"

clean: ## remove what setup made (not the cache of services)
	rm -rf $(VENV) target site .hypothesis streamlearn/_native*.so
