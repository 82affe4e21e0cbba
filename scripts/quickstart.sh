#!/usr/bin/env bash
# From a clone to vectors: builds and installs sconce, downloads all-MiniLM-L6-v2, and prints the similarity of three texts.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/.."

need() { # command, what to do without it
    command -v "$1" >/dev/null && return
    echo "quickstart: $1 is not installed; $2" >&2
    exit 1
}
need cargo "install Rust from https://rustup.rs, open a new shell, and run scripts/quickstart.sh again"
need cc "install a C compiler (apt-get install gcc), and run scripts/quickstart.sh again"

echo "quickstart: building and installing sconce (takes a few minutes the first time)" >&2
cargo install --path . --locked
echo "quickstart: fetching all-MiniLM-L6-v2 (90 MB the first time)" >&2
scripts/fetch_model.sh >/dev/null

bin=${CARGO_INSTALL_ROOT:-${CARGO_HOME:-$HOME/.cargo}}/bin
command -v sconce >/dev/null || echo "quickstart: add $bin to PATH to run sconce by name" >&2

texts=("A lamp in the window" "A light left on for someone" "Quarterly earnings rose")
echo
echo "Cosine similarity of three texts, from 'sconce embed':"
"$bin/sconce" embed --quiet --normalize --output-format csv "${texts[@]}" |
    awk -F, -v texts="$(printf '%s|' "${texts[@]}")" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i ~ /^e[0-9]+$/) column[++width] = i; next }
        { rows++; for (d = 1; d <= width; d++) vector[rows, d] = $(column[d]) }
        END {
            split(texts, text, "|")
            for (a = 1; a <= rows; a++) for (b = a + 1; b <= rows; b++) {
                sum = 0
                for (d = 1; d <= width; d++) sum += vector[a, d] * vector[b, d]
                printf "  %5.2f  %s | %s\n", sum, text[a], text[b]
            }
        }'
