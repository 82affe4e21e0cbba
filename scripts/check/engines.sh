#!/usr/bin/env bash
# Runs the scripts of examples/ in Ray Data, Spark, Daft, Dask and xargs: 100,000 texts, with a worker killed in the middle. Writes the
# results to docs/engines.md. Takes some minutes, so that it is part of a release and not of .ci/run.
#
#     scripts/check/engines.sh [OPTION …]      options of engines.py, such as --only Spark
#
# Installs the engines from PyPI into target/engines (about 1 GB). Spark needs Java (`apt-get install default-jre-headless`).
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

command -v java >/dev/null || { echo "engines.sh: Spark needs Java: apt-get install default-jre-headless" >&2; exit 1; }
target=${CARGO_TARGET_DIR:-target}
requirements=scripts/check/requirements-engines.txt
engines=$target/engines/$(sha256sum "$requirements" | cut -c1-16)
if [ ! -e "$engines/complete" ]; then
    python3 -m venv "$engines"
    "$engines/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
    touch "$engines/complete"
fi
sconce=(--sconce "$target/release/sconce")
case " $* " in
*" --sconce "*) sconce=() ;;
*) cargo build --release --locked ;;
esac
page=()
[ $# -gt 0 ] || page=(--page docs/engines.md)
exec "$engines/bin/python" scripts/check/engines.py "${sconce[@]}" "${page[@]}" "$@"
