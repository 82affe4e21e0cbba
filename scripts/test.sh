#!/usr/bin/env bash
# Builds sconce, fetches all-MiniLM-L6-v2 if it is not in the cache, has numpy, pyarrow, pandas, polars, duckdb and safetensors
# read back what it writes, runs the README's recipes, and all tests under every instruction set of the processor. Ends with their count.
#
#     scripts/test.sh [ISA …]      only under these
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked
scripts/fetch_model.sh >/dev/null
readers=$PWD/target/readers/$(sha256sum scripts/requirements-readers.txt | cut -c1-16)
if [ ! -e "$readers/complete" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --target "$readers" -r scripts/requirements-readers.txt
    touch "$readers/complete"
fi
PYTHONPATH=$readers python3 scripts/read_back.py | tail -n 1
PYTHONPATH=$readers python3 scripts/recipes.py | tail -n 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
sets=("$@")
if [ ${#sets[@]} -eq 0 ]; then
    # The error that names an unknown set lists those there are.
    read -ra sets < <(SCONCE_ISA=none target/release/sconce embed x 2>&1 | sed -n 's/.*it has //p' | tr -d ,)
fi
[ ${#sets[@]} -gt 0 ] || { echo "test.sh: sconce does not list its instruction sets" >&2; exit 1; }
for set in "${sets[@]}"; do
    echo "== SCONCE_ISA=$set"
    SCONCE_ISA=$set cargo test --release --locked --no-fail-fast 2>&1 | tee -a "$log" || status=$?
done
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$log"
exit "$status"
