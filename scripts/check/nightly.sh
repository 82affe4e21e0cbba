#!/usr/bin/env bash
# The checks that are too slow for every change, or that rarely fail: every night, and before a release. Run .ci/run first, which
# installs compilers and the model. The packages of the reference implementation take 5 GB, and are downloaded here.
#
#     scripts/check/nightly.sh
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR=$PWD/target

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }

step "PyTorch, transformers and sentence-transformers"
[ -x .venv/bin/python ] || python3 -m venv .venv
# Python compiles what is imported, which is a small part of them.
.venv/bin/pip install --quiet --no-compile --disable-pip-version-check -r scripts/fixtures/requirements-reference.txt

step "clippy with the feature cuda and a stub of nvcc"
# In a separate target directory: a real build must not use the empty files of the stub.
PATH="$PWD/scripts/gpu/stand_in_nvcc:$PATH" NVCC="$PWD/scripts/gpu/stand_in_nvcc/nvcc" CUDA_COMPUTE_CAP=80 \
    cargo clippy --release --workspace --all-targets --locked --features cuda --target-dir target/cuda-check -- -D warnings

step "CUDA kernels and their emulator compile"
scripts/check/check_cuda_kernels.sh

step "fuzzing of inputs and models"
SCONCE_FUZZ_CASES=8000 cargo test --release --locked --test integration fuzz_input::
SCONCE_FUZZ_CASES=2000 cargo test --release --locked --test integration fuzz_model::

step "killed runs into the other formats"
cargo test --release --locked --test integration -- --ignored

step "sconce without the features of the tests: vectors of the real model, full disk, start-up"
cargo build --release --locked
.venv/bin/python scripts/check/compare.py
scripts/check/full_disk.sh
python3 scripts/check/startup.py

step "clients of embedding servers ask sconce serve"
python3 scripts/check/clients.py

step "the Python package: types, classes for frameworks, leaks, throughput"
python3 scripts/check/python_package.py

step "schemathesis asks sconce serve what its document describes"
python3 scripts/check/openapi.py

step "hidden states compared with the reference: random models of every family, and one full-size model"
.venv/bin/python scripts/check/fuzz_families.py --seeds 3
.venv/bin/python scripts/check/full_size.py --only xlm-roberta

step "recipes: data frames, databases, evaluation, a finder"
type fzf jq sqlite3 >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq fzf jq sqlite3; }
recipes=target/recipes
[ -x $recipes/bin/python ] || python3 -m venv $recipes
$recipes/bin/pip install --quiet --no-compile --disable-pip-version-check -r scripts/check/requirements-recipes.txt
$recipes/bin/python scripts/check/recipes.py --twice

step "token ids of SentencePiece models compared with the reference"
.venv/bin/python scripts/check/sentence_pieces.py

step "the page of sconce attend in headless Chromium"
.venv/bin/pip install --quiet --disable-pip-version-check -r scripts/check/requirements-browser.txt
.venv/bin/python scripts/check/attend_page.py

step "an input of 2 GB"
python3 scripts/check/scale.py --formats npy --input-gb 2

step "faults in the source, another part of them every night"
# cargo-mutants exits with 2 if no test fails for a fault, and prints it: a person decides what it is worth.
export PATH="$PATH:$PWD/target/tools/bin"
command -v cargo-mutants >/dev/null || cargo install --quiet --locked --root target/tools cargo-mutants@27.1.0
night=$(($(date +%s) / 86400))
CARGO_TARGET_DIR=$PWD/target/mutants cargo mutants --package sconce --shard $((night % 1000))/1000 --output target || [ $? -eq 2 ]

step "all tests under every ISA"
scripts/test.sh --all
