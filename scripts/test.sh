#!/usr/bin/env bash
# Runs all tests with the fastest instruction set (ISA) of the processor, those whose results depend on the ISA under every other one,
# and the goldens on emulated AMX tiles. Prints how many passed.
#
#     scripts/test.sh [ISA …]      only under these
#     scripts/test.sh --all        all tests under every ISA
#
# First builds sconce, downloads all-MiniLM-L6-v2 if it is not in the cache, reads Sconce's output files with numpy, pyarrow, pandas,
# polars, DuckDB and safetensors, runs the recipes of docs/recipes.md that need no more and the commands of
# docs/attention.md and docs/tour.md, and tests the Python package.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
# The checks run target/release/sconce, so it has to be built there.
export CARGO_TARGET_DIR=$PWD/target

# With the features of the tests, so that sconce is compiled once.
cargo test --release --workspace --locked --no-run
scripts/fetch_model.sh >/dev/null
readers=$(scripts/check/readers.sh)
PYTHONPATH=$readers python3 scripts/check/read_back.py | tail -n 1
PYTHONPATH=$readers python3 scripts/check/recipes.py Python polars pandas "NumPy and pyarrow" Joins DuckDB LanceDB | tail -n 1
for page in attention tour; do
    PYTHONPATH=$readers python3 scripts/check/recipes.py --page docs/$page.md | tail -n 1
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
PYTHONPATH=$readers:python SCONCE_COMMAND=$PWD/target/release/sconce \
    python3 -m unittest discover --start-directory tests/python >"$log" 2>&1 || { cat "$log"; exit 1; }
tail -n 3 "$log"
: >"$log"
status=0
every_test=
[ "${1-}" = --all ] && every_test=1 && shift
isas=("$@")
if [ ${#isas[@]} -eq 0 ]; then
    # The error for an unknown ISA lists those of this processor.
    names='amx|avx512-bf16|avx512-vnni|avx512|avx2|neon-dotprod|neon|portable'
    mapfile -t isas < <(SCONCE_ISA=unknown target/release/sconce embed x 2>&1 | grep -oE "$names" | awk '!seen[$0]++')
fi
[ ${#isas[@]} -gt 0 ] || { echo "test.sh: sconce does not list its instruction sets" >&2; exit 1; }
# What computes with the selected ISA. kernels::, cuda_kernels:: and same_vector:: select every ISA themselves; the others are about
# files, the hub and terminals.
computing=(
    goldens ops neighbours packed_weights real_model embedded_texts long_texts verify similarity pipelines
    adapters causal_rerankers decoders heads masked_lm multi_vector sparse spans static_embeddings t5 towers unified
)
# Tests that compare bits take minutes with portable vectors and on emulated tiles; those of kernels:: do so for both.
bits=(--skip=common_prefixes_have --skip=selected_tokens_have)
# Tests wait for processes and for the disk.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
run() {
    echo "== SCONCE_ISA=$isa"
    SCONCE_ISA=$isa cargo test --release --locked --no-fail-fast "$@" 2>&1 | tee -a "$log" || status=$?
}
isa=${isas[0]}
run --workspace
for isa in "${isas[@]:1}"; do
    if [ -n "$every_test" ]; then
        run --workspace
        continue
    fi
    run --lib -- nn:: ops:: neighbours::
    # A run that is killed and resumed, bounds of memory, and candle's operations are the same code under every ISA.
    modules=("${computing[@]}") skipped=(--skip=killed --skip=memory --skip=reference_path)
    if [ "$isa" = portable ]; then
        # The portable vectors are a reference for the others; what is computed with them is slow, and the same code.
        modules=(goldens ops) skipped+=("${bits[@]}")
    fi
    run --test integration -- "${modules[@]/%/::}" "${skipped[@]}"
done
if [ $# -eq 0 ]; then
    isa=emulated-tiles
    modules=(goldens::hidden_states_after goldens::sentence_vectors)
    [ -z "$every_test" ] || modules=(goldens:: "${bits[@]}")
    run --test integration -- "${modules[@]}"
fi
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$log"
exit "$status"
