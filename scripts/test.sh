#!/usr/bin/env bash
# Builds sconce, fetches all-MiniLM-L6-v2 if it is not in the cache, has numpy, pyarrow, pandas, polars, duckdb and safetensors
# read back what it writes, runs the README's recipes and all tests. Ends with their count.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked
scripts/fetch_model.sh >/dev/null
readers=target/readers/$(sha256sum scripts/requirements-readers.txt | cut -c1-16)
if [ ! -e "$readers/complete" ]; then
    python3 -m pip install --quiet --disable-pip-version-check --target "$readers" -r scripts/requirements-readers.txt
    touch "$readers/complete"
fi
PYTHONPATH=$readers python3 scripts/read_back.py | tail -n 1
PYTHONPATH=$readers python3 scripts/recipes.py | tail -n 1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
cargo test --release --locked --no-fail-fast 2>&1 | tee "$log" || status=$?
awk '/^test result:/ { passed += $4; failed += $6 } END { print passed + 0 " passed, " failed + 0 " failed" }' "$log"
exit "$status"
