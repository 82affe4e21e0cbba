#!/usr/bin/env bash
# Checks that the compiler has inlined all vector intrinsics into the kernels. A closure, also that of `array::map` or `array::from_fn`,
# that it does not inline is compiled without the target features of the ISA, and passes vectors through memory. Needs nm (binutils).
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
for features in '' emulated-tiles,peak; do
    library=$(cargo build --release --locked --package sconce-kernels --features "$features" --message-format json |
        grep -o '"[^"]*/libsconce_kernels[^"]*\.rlib"' | tail -n 1 | tr -d '"')
    symbols=$(nm --demangle --quiet "$library")
    if found=$(grep 'core_arch::' <<<"$symbols"); then
        printf 'inlined.sh: not inlined%s:\n%s\n' "${features:+ with $features}" "$found" >&2
        exit 1
    fi
done
echo "all vector intrinsics are inlined"
