#!/usr/bin/env bash
# Builds a program of another crate that embeds a thousand texts with the library, and compares its vectors with those of `sconce embed`,
# bit by bit. Prints the seconds of both, the median of alternating runs.
#
#     scripts/check/library.sh [MODEL]
#
# MODEL is a directory or an id; by default all-MiniLM-L6-v2, which scripts/fetch_model.sh downloads. The program is built with the
# profiles and the versions of Sconce, so that the crates that both need are built once.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
model=${1-sentence-transformers/all-MiniLM-L6-v2}
[ -n "${1-}" ] || scripts/fetch_model.sh >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"; rm -f tests/library/Cargo.lock' EXIT
cargo build --release --locked
cp Cargo.lock tests/library/Cargo.lock
sed -n '/^\[profile/,/^\[\[/{/^\[\[/!p}' Cargo.toml >"$folder/profiles.toml"
cargo --config "$folder/profiles.toml" build --release --manifest-path tests/library/Cargo.toml

python3 - "$CARGO_TARGET_DIR/release" "$model" "$folder" <<'PYTHON'
import os
import random
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

programs, model, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
words = "a lamp lights the page while its reader weighs every word of a question against all others ünïcödé 灯".split()
random.seed(1)
texts, npy, raw = folder / "texts.txt", folder / "vectors.npy", folder / "vectors.f32"
texts.write_text("".join(" ".join(random.choices(words, k=random.randint(1, 120))) + "\n" for _ in range(1000)))
commands = {
    "sconce embed": [programs / "sconce", "embed", "-q", "-m", model, "-i", texts, "-o", npy],
    "library": [programs / "sconce-library-check", model, texts, raw],
}
environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
seconds = {name: [] for name in commands}
for run in range(8):
    for name, command in commands.items():
        npy.unlink(missing_ok=True)
        start = time.perf_counter()
        subprocess.run(command, check=True, env=environment)
        # The first run of each may write packed weights.
        if run > 0:
            seconds[name].append(time.perf_counter() - start)
        if name == "sconce embed":
            written = npy.read_bytes()
(header,) = struct.unpack("<H", written[8:10])
if written[10 + header :] != raw.read_bytes():
    sys.exit("the vectors of the library are not those of sconce embed")
medians = {name: statistics.median(of_run) for name, of_run in seconds.items()}
ratio = medians["library"] / medians["sconce embed"]
print(f"the same bits; sconce embed {medians['sconce embed']:.2f} s, library {medians['library']:.2f} s: {ratio:.3f}")
PYTHON
