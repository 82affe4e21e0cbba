#!/usr/bin/env bash
# Compiles the CUDA kernels of src/kernels/cuda for sm_80 and sm_90, without a GPU, and prints the registers, shared memory and spills
# of each. Exits with 1 if one does not compile or spills registers. Also compiles the emulator of the tests, with all warnings.
#
#     scripts/check/check_cuda_kernels.sh [--nvcc]
#
# nvcc is installed from PyPI into ${SCONCE_NVCC:-~/.cache/sconce-nvcc}; with --nvcc, the one of $CUDA_HOME or PATH is used (CUDA 12 or
# later).
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

if [ "${1:-}" = --nvcc ]; then
    nvcc=${CUDA_HOME:+$CUDA_HOME/bin/}nvcc
    major=$("$nvcc" --version | sed -nE 's/.*release ([0-9]+)\..*/\1/p')
    [ "${major:-0}" -ge 12 ] || { echo "check_cuda_kernels: $nvcc is older than CUDA 12" >&2; exit 1; }
elif [ $# -gt 0 ]; then
    echo "usage: scripts/check/check_cuda_kernels.sh [--nvcc]" >&2
    exit 2
else
    site=${SCONCE_NVCC:-$HOME/.cache/sconce-nvcc}
    if [ ! -e "$site/complete" ]; then
        python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target "$site" \
            nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
            nvidia-cuda-cccl==13.0.85
        # nvcc looks for libraries in lib64.
        ln -sfn lib "$site/nvidia/cu13/lib64"
        touch "$site/complete"
    fi
    export CUDA_HOME=$site/nvidia/cu13
    nvcc=$CUDA_HOME/bin/nvcc
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%-22s %-6s %9s %12s %6s\n' kernel arch registers "shared bytes" spills > "$work/table"
for source in src/kernels/cuda/*.cu; do
    for arch in sm_80 sm_90; do
        "$nvcc" -cubin -arch=$arch -O3 -Werror all-warnings -Xptxas -v -o "$work/cubin" "$source" 2> "$work/stderr" ||
            { cat "$work/stderr"; exit 1; }
        awk -v arch=$arch '
            function before(words,   i) { i = index($0, words); return i ? number(substr($0, 1, i - 1)) : 0 }
            function number(text,   n, parts) { n = split(text, parts, " "); return parts[n] }
            /Compiling entry function/ { split($0, quoted, "\047"); kernel = quoted[2] }
            /bytes spill stores/ { spills = before(" bytes spill stores") + before(" bytes spill loads") }
            /Used [0-9]+ registers/ {
                printf "%-22s %-6s %9d %12d %6d\n", kernel, arch, before(" registers"), before(" bytes smem"), spills
            }' "$work/stderr" >> "$work/table"
    done
done
cat "$work/table"
awk 'NR > 1 && $5 > 0 { print $1 " spills registers on " $2; spilt = 1 } END { exit spilt || NR < 2 }' "$work/table"

c++ -std=c++20 -O1 -pthread -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
    -I src/kernels/cuda tests/cuda/emulator.cpp -o "$work/emulator"
"$work/emulator" < /dev/null
echo "all kernels and the emulator compile; no kernel spills registers"
