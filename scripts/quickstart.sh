#!/usr/bin/env bash
# From a fresh clone to vectors: builds and installs sconce, fetches all-MiniLM-L6-v2, embeds some text.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo install --path . --locked --quiet
scripts/fetch_model.sh >/dev/null

bin=${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin
command -v sconce >/dev/null || echo "quickstart: add $bin to PATH to call sconce by its name" >&2
"$bin/sconce" embed "A lamp in the window" "A light left on for someone" "Quarterly earnings rose"
