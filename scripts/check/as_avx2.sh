#!/usr/bin/env bash
# Runs a command, and what it starts, on a processor that reports AVX2 and nothing newer, at full speed: for example the tests as
# they run on an AVX2 machine.
#
#     scripts/check/as_avx2.sh scripts/test.sh
#
# Needs Linux on x86-64, a processor that can trap CPUID (`cpuid_fault` in /proc/cpuinfo) and a C compiler.
set -euo pipefail
case "${1-}" in '' | -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
here=$(cd "$(dirname "$0")" && pwd)
library=$(mktemp -d)/avx2_cpuid.so
trap 'rm -r "$(dirname "$library")"' EXIT
cc -O2 -Wall -Werror -fPIC -shared -o "$library" "$here/avx2_cpuid.c"
# AddressSanitizer, in the emulator of the CUDA kernels, would refuse to be second and replace the handler.
ASAN_OPTIONS=verify_asan_link_order=0:handle_segv=0 LD_PRELOAD="$library" "$@"
