#!/usr/bin/env bash
# Runs Sconce and its peers side by side: `scripts/peers.sh --out TABLE.md`, and other options of scripts/peers.py.
# What they need is made first, where it is missing: a Python with the peers and the peer that is written in Rust; scripts/peers.py
# converts the model. All of it lies in ${XDG_CACHE_HOME:-~/.cache}/sconce-peers (some minutes, 6 GB).
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
peers=${XDG_CACHE_HOME:-$HOME/.cache}/sconce-peers
python=$peers/v/bin/python

[ -x "$python" ] || python3 -m venv "$peers/v"
"$python" -c 'import ctranslate2, onnxruntime, onnxscript, openvino, sentence_transformers' 2>/dev/null ||
    "$python" -m pip install --quiet --disable-pip-version-check -r "$scripts/requirements-peers.txt"
CARGO_TARGET_DIR=$peers/candle_peer cargo build --release --locked --quiet --manifest-path "$scripts/candle_peer/Cargo.toml"

exec "$python" "$scripts/peers.py" "$@"
