#!/usr/bin/env bash
# Makes the wheel sconce-embed for this platform, and checks it: its size, on Linux the versions of the symbols of glibc that it needs, and a
# first vector from an empty virtual environment.
#
#     scripts/release/wheel.sh [DIR]      the wheel goes to DIR, by default target/wheels
#
# On Linux, zig from PyPI is the linker and the C compiler, so that the wheel needs no more than glibc 2.17 wherever it is made. Needs
# the model of scripts/fetch_model.sh for the last check.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

max_bytes=25000000
max_seconds=10
out=${1:-target/wheels}
target=${CARGO_TARGET_DIR:-target}
requirements=scripts/release/requirements.txt
tools=$target/release-tools/$(sha256sum "$requirements" | cut -c1-16)
if [ ! -e "$tools/complete" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    touch "$tools/complete"
fi
PATH=$PWD/$tools/bin:$PATH
case $tools in /*) PATH=$tools/bin:$PATH ;; esac

fail() {
    echo "wheel.sh: $*" >&2
    exit 1
}

rm -f "$out"/sconce_embed-*.whl
if [ "$(uname -s)" = Linux ]; then
    maturin build --profile dist --locked --zig --compatibility manylinux_2_17 --auditwheel check --out "$out"
else
    maturin build --profile dist --locked --out "$out"
fi
wheel=$(ls "$out"/sconce_embed-*.whl)
bytes=$(wc -c <"$wheel")
[ "$bytes" -le "$max_bytes" ] || fail "$wheel has $bytes bytes, more than $max_bytes"
if [ "$(uname -s)" = Linux ]; then
    shown=$(auditwheel show "$wheel")
    tr -s '\n ' '  ' <<<"$shown" | grep -qE 'consistent with the following platform tag: "manylinux_2_(5|12|17)_' ||
        fail "auditwheel finds symbols that glibc 2.17 has not: $shown"
fi

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
# The dependency is not part of what is measured: it comes from the network or the cache of pip.
python3 -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$empty/wheels" "$wheel"
start=$(date +%s%N)
python3 -m venv "$empty/venv"
"$empty/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$empty/wheels" "$wheel"
"$empty/venv/bin/sconce-embed" embed --quiet "a lamp" >"$empty/row.jsonl"
"$empty/venv/bin/python" -c 'from sconce_embed import Embedder
with Embedder() as embedder: print(embedder.embed(["a lamp"])[0].tolist())' >"$empty/vector.txt"
milliseconds=$((($(date +%s%N) - start) / 1000000))
[ "$milliseconds" -le $((max_seconds * 1000)) ] || fail "installing and embedding takes $milliseconds ms"
python3 - "$empty" <<'PYTHON' || fail "the vector of the package is not that of the command"
import json, pathlib, struct, sys
folder = pathlib.Path(sys.argv[1])
bits = [struct.pack(f"{len(v)}f", *v) for v in (json.loads((folder / "row.jsonl").read_text())["embedding"], json.loads((folder / "vector.txt").read_text()))]
sys.exit(bits[0] != bits[1])
PYTHON
echo "$wheel: $bytes bytes; installed and embedded in $milliseconds ms"
