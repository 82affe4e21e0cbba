#!/usr/bin/env bash
# Installs the Python packages that read Sconce's output files into target/readers/, unless they are there, and prints their folder, for
# PYTHONPATH.
#
#     scripts/check/readers.sh
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

requirements=scripts/check/requirements-readers.txt
readers=$PWD/target/readers/$(sha256sum "$requirements" | cut -c1-16)
if [ ! -e "$readers/complete" ]; then
    # Python compiles what is imported, which is a small part of them.
    python3 -m pip install --quiet --no-compile --disable-pip-version-check --target "$readers" -r "$requirements" >&2
    touch "$readers/complete"
fi
echo "$readers"
