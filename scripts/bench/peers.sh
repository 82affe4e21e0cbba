#!/usr/bin/env bash
# Benchmarks Sconce and its peers side by side and writes a Markdown page.
#
#     scripts/bench/peers.sh --out PAGE.md      and other options of peers.py
#
# First creates what is missing in ${XDG_CACHE_HOME:-~/.cache}/sconce-peers (6 GB, a few minutes): a Python environment with the peers,
# the binary of candle_peer, and the converted models.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
scripts=$(cd "$(dirname "$0")" && pwd)
peers=${XDG_CACHE_HOME:-$HOME/.cache}/sconce-peers
python=$peers/v/bin/python

[ -x "$python" ] || python3 -m venv "$peers/v"
"$python" -c 'import ctranslate2, onnxruntime, onnxscript, openvino, pyarrow, sentence_transformers' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check -r "$scripts/requirements-peers.txt"
CARGO_TARGET_DIR=$peers/candle_peer cargo build --release --locked --quiet --manifest-path "$scripts/candle_peer/Cargo.toml"

exec "$python" "$scripts/peers.py" "$@"
