#!/usr/bin/env bash
# Checks that the compiler has inlined all vector instructions into the kernels. A closure, or the one of `array::map`, that it leaves
# as a function of its own is compiled without the target features of the ISA, and gets vectors through memory.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."
for features in '' emulated-tiles,peak; do
    library=$(cargo build --release --locked --package sconce-kernels --features "$features" --message-format json |
        grep -o '"[^"]*/libsconce_kernels[^"]*\.rlib"' | tail -n 1 | tr -d '"')
    symbols=$(nm --demangle "$library" 2>/dev/null)
    if found=$(grep 'core_arch::' <<<"$symbols"); then
        printf 'inlined.sh: not inlined%s:\n%s\n' "${features:+ with $features}" "$found" >&2
        exit 1
    fi
done
echo "all vector instructions are inlined"
