#!/usr/bin/env bash
# Fills a small disk in the middle of a run, for every output format: one sentence, exit 1, nothing under the final name;
# after space is made, --resume ends in the bytes of a run that had space from the beginning. Needs the right to mount a
# tmpfs. Usage: scripts/full_disk.sh [SCONCE]
set -euo pipefail
cd "$(dirname "$0")/.."
sconce=$(realpath "${1:-target/release/sconce}")
model=$PWD/tests/fixtures/bert-tiny
work=$(mktemp -d)
trap 'umount "$work/disk" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/disk"
if ! mount -t tmpfs -o size=12m tmpfs "$work/disk" 2>/dev/null; then
    # Whoever is not root may be it in a namespace of their own.
    [ -z "${FULL_DISK_INSIDE:-}" ] || { echo "a tmpfs cannot be mounted here"; exit 1; }
    FULL_DISK_INSIDE=1 exec unshare --user --map-root-user --mount "$0" "$sconce"
fi
for i in $(seq 160000); do echo "the wick burns $i"; done > "$work/texts.txt"

for format in jsonl csv npy parquet arrow safetensors; do
    embed=("$sconce" embed -m "$model" -i "$work/texts.txt")
    "${embed[@]}" -o "$work/whole.$format"
    status=0
    "${embed[@]}" -o "$work/disk/out.$format" 2> "$work/said" || status=$?
    [ "$status" = 1 ] || { echo "$format: exit $status"; cat "$work/said"; exit 1; }
    [ "$(wc -l < "$work/said")" = 1 ] && grep -q "the disk is full; free some space and run again with --resume" "$work/said" ||
        { echo "$format:"; cat "$work/said"; exit 1; }
    [ ! -e "$work/disk/out.$format" ] || { echo "$format: a file under the final name"; exit 1; }
    mount -o remount,size=200m "$work/disk"
    "${embed[@]}" -o "$work/disk/out.$format" --resume 2> "$work/said"
    grep -q "resuming after [1-9]" "$work/said" || { echo "$format: started over:"; cat "$work/said"; exit 1; }
    cmp "$work/whole.$format" "$work/disk/out.$format"
    rm -f "$work"/disk/* "$work"/disk/.[!.]* "$work/whole.$format"
    mount -o remount,size=12m "$work/disk"
    echo "$format: full, resumed, the same bytes"
done
