#!/usr/bin/env bash
# Checks that a run whose output disk becomes full prints one sentence, exits with 1 and leaves no file under the final name, and that
# --resume with more space then writes the same bytes as a run that always had enough space. For every output format. A cache
# (--cache) on a full disk affects no row.
#
#     scripts/check/full_disk.sh [SCONCE]      default: target/release/sconce
#
# Mounts a tmpfs: as root, or in a user namespace.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
self=$(realpath "$0")
cd "$(dirname "$0")/../.."
sconce=$(realpath "${1:-target/release/sconce}")
[ -x "$sconce" ] || { echo "full_disk: $sconce not found; run cargo build --release" >&2; exit 1; }
model=$PWD/tests/fixtures/bert-tiny
work=$(mktemp -d)
trap 'umount "$work/disk" 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/disk"
if ! mount -t tmpfs -o size=8m tmpfs "$work/disk" 2>/dev/null; then
    # A user who is not root can mount one in a namespace.
    [ -z "${FULL_DISK_INSIDE:-}" ] || { echo "full_disk: cannot mount a tmpfs here" >&2; exit 1; }
    FULL_DISK_INSIDE=1 exec unshare --user --map-root-user --mount "$self" "$sconce"
fi
# Texts of different tokens: equal ones are encoded once, and written sooner than a checkpoint is due.
for i in $(seq 80000); do echo "the wick burns $i"; done | sed 's/[0-9]/& /g' > "$work/texts.txt"

for format in jsonl csv npy parquet arrow safetensors; do
    embed=("$sconce" embed -m "$model" -i "$work/texts.txt")
    "${embed[@]}" --quiet -o "$work/expected.$format"
    status=0
    # On one thread, so that a checkpoint is due before the disk is full.
    "${embed[@]}" --threads 1 -o "$work/disk/out.$format" 2> "$work/stderr" || status=$?
    [ "$status" = 1 ] || { echo "$format: exit $status"; cat "$work/stderr"; exit 1; }
    [ "$(wc -l < "$work/stderr")" = 1 ] && grep -q "disk is full; .*--resume" "$work/stderr" ||
        { echo "$format: not the expected error:"; cat "$work/stderr"; exit 1; }
    [ ! -e "$work/disk/out.$format" ] || { echo "$format: a file under the final name"; exit 1; }
    mount -o remount,size=200m "$work/disk"
    "${embed[@]}" -o "$work/disk/out.$format" --resume 2> "$work/stderr"
    grep -q "resuming after [1-9]" "$work/stderr" || { echo "$format: did not resume:"; cat "$work/stderr"; exit 1; }
    cmp "$work/expected.$format" "$work/disk/out.$format"
    rm -f "$work"/disk/* "$work"/disk/.[!.]* "$work/expected.$format"
    mount -o remount,size=8m "$work/disk"
    echo "$format: disk full, resumed, same bytes"
done

embed=("$sconce" embed --quiet -m "$model" -i "$work/texts.txt")
"${embed[@]}" -o "$work/expected.npy"
for space in 8m 200m; do
    mount -o remount,size=$space "$work/disk"
    "${embed[@]}" -o "$work/out.npy" --cache "$work/disk/cache" --restart --stats "$work/stats-$space.json" 2> "$work/stderr"
    [ ! -s "$work/stderr" ] || { echo "cache:"; cat "$work/stderr"; exit 1; }
    cmp "$work/expected.npy" "$work/out.npy"
done
grep -q '"cached": [1-9][0-9]*' "$work/stats-200m.json" && ! grep -q '"cached": 80000,' "$work/stats-200m.json" ||
    { echo "cache: the disk was not full"; exit 1; }
echo "cache: disk full, same bytes"
