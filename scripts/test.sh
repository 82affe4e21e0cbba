#!/usr/bin/env bash
# Runs all tests under every instruction set (ISA) of the processor, and prints how many passed. Tests that run every set themselves, or
# whose subject does not compute with the selected one, run once. Then compares the encoder with its goldens on emulated AMX tiles.
#
#     scripts/test.sh [ISA …]      only under these
#
# First builds sconce, downloads all-MiniLM-L6-v2 if it is not in the cache, reads Sconce's output files with numpy, pyarrow, pandas,
# polars, DuckDB and safetensors, runs the examples of docs/recipes.md, and tests the Python package.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
# The checks run target/release/sconce, so it has to be built there.
export CARGO_TARGET_DIR=$PWD/target

cargo build --release --locked
scripts/fetch_model.sh >/dev/null
requirements=scripts/check/requirements-readers.txt
readers=$PWD/target/readers/$(sha256sum "$requirements" | cut -c1-16)
if [ ! -e "$readers/complete" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --target "$readers" -r "$requirements"
    touch "$readers/complete"
fi
PYTHONPATH=$readers python3 scripts/check/read_back.py | tail -n 1
PYTHONPATH=$readers python3 scripts/check/recipes.py | tail -n 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
PYTHONPATH=$readers:python SCONCE_COMMAND=$PWD/target/release/sconce \
    python3 -m unittest discover --start-directory tests/python >"$log" 2>&1 || { cat "$log"; exit 1; }
tail -n 3 "$log"
: >"$log"
status=0
isas=("$@")
if [ ${#isas[@]} -eq 0 ]; then
    # The error for an unknown ISA lists those of this processor.
    names='amx|avx512-bf16|avx512-vnni|avx512|avx2|neon-dotprod|neon|portable'
    mapfile -t isas < <(SCONCE_ISA=unknown target/release/sconce embed x 2>&1 | grep -oE "$names" | awk '!seen[$0]++')
fi
[ ${#isas[@]} -gt 0 ] || { echo "test.sh: sconce does not list its instruction sets" >&2; exit 1; }
# kernels:: and cuda_kernels:: run every set of the processor and an emulator of GPUs; the others are about files, the hub and terminals.
once=(kernels:: hub:: fuzz_input:: fuzz_model:: terminal:: layering:: contributing::)
run() {
    echo "== SCONCE_ISA=$isa"
    SCONCE_ISA=$isa cargo test --release --workspace --locked --no-fail-fast "$@" 2>&1 | tee -a "$log" || status=$?
}
isa=${isas[0]}
run
for isa in "${isas[@]:1}"; do
    run --lib --bins
    run --test integration -- "${once[@]/#/--skip=}"
done
if [ $# -eq 0 ]; then
    # Tests that compare bits take minutes on emulated tiles; those of kernels:: do so for the tiles themselves.
    isa=emulated-tiles
    run --test integration -- goldens:: --skip=common_prefix --skip=selected_tokens
fi
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$log"
exit "$status"
