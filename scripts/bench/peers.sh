#!/usr/bin/env bash
# Benchmarks Sconce and its peers side by side and writes a Markdown page.
#
#     scripts/bench/peers.sh --out PAGE.md                  and other options of peers.py
#     scripts/bench/peers.sh full-size --out PAGE.md        and other options of full_size_peers.py: models of full size
#
# First creates what is missing in ${XDG_CACHE_HOME:-~/.cache}/sconce-peers (6 GB, a few minutes): a Python environment with the peers,
# the binary of candle_peer, and the converted models. With `full-size`, llama.cpp is compiled for this processor in place of candle_peer.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
scripts=$(cd "$(dirname "$0")" && pwd)
peers=${XDG_CACHE_HOME:-$HOME/.cache}/sconce-peers
python=$peers/v/bin/python
install() { "$python" -m pip install --quiet --disable-pip-version-check -r "$scripts/$1"; }

[ -x "$python" ] || python3 -m venv "$peers/v"
"$python" -c 'import ctranslate2, onnxruntime, onnxscript, openvino, pyarrow, sentence_transformers' 2>/dev/null ||
    install requirements-peers.txt
if [ "${1-}" = full-size ]; then
    shift
    # The other peers run without it.
    "$python" -c 'import gguf, llama_cpp' 2>/dev/null || install requirements-full-size.txt ||
        echo "peers.sh: llama.cpp cannot be installed" >&2
    exec "$python" "$scripts/full_size_peers.py" "$@"
fi
CARGO_TARGET_DIR=$peers/candle_peer cargo build --release --locked --quiet --manifest-path "$scripts/candle_peer/Cargo.toml"

exec "$python" "$scripts/peers.py" "$@"
