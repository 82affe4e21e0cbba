#!/usr/bin/env bash
# Makes a release archive of this platform: the stripped binary, completions, man pages, and the licences of the dependencies; and
# beside it, its SHA-256.
#
#     scripts/release/archive.sh [DIR [BINARY]]      the archive goes to DIR, by default target/archives
#
# Without BINARY, builds one. On Linux, releases use that of the wheel (scripts/release/wheel.sh), which needs no more than glibc 2.17.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

out=${1:-target/archives}
binary=${2-}
if [ -z "$binary" ]; then
    cargo build --profile dist --locked
    binary=${CARGO_TARGET_DIR:-target}/dist/sconce
    [ -e "$binary" ] || binary=$binary.exe
fi
host=$(rustc -vV | sed -n 's/^host: //p')
version=$("$binary" -V | awk '{ print $2 }')
name=sconce-$version-$host

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/$name
mkdir -p "$folder/completions" "$folder/man"
cp "$binary" README.md CHANGELOG.md LICENSE "$folder"
chmod 755 "$folder/$(basename "$binary")"
"$binary" completions bash >"$folder/completions/sconce.bash"
"$binary" completions zsh >"$folder/completions/_sconce"
"$binary" completions fish >"$folder/completions/sconce.fish"
"$binary" completions powershell >"$folder/completions/_sconce.ps1"
"$binary" man "$folder/man"
python3 scripts/release/licences.py >"$folder/THIRD-PARTY-LICENSES.txt"

case $host in
*-windows-*)
    archive=$name.zip
    python3 -c 'import shutil, sys; shutil.make_archive(sys.argv[1], "zip", sys.argv[2], sys.argv[3])' "$out/$name" "$work" "$name"
    ;;
*)
    archive=$name.tar.gz
    tar -C "$work" -cf - "$name" | gzip -9n >"$out/$archive"
    ;;
esac
python3 - "$out/$archive" <<'PYTHON'
import hashlib, pathlib, sys
path = pathlib.Path(sys.argv[1])
pathlib.Path(f"{path}.sha256").write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
PYTHON
echo "$out/$archive"
