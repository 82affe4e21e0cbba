#!/usr/bin/env bash
# Builds sconce for NVIDIA GPUs where there is neither a GPU nor CUDA: `scripts/build_cuda.sh [OUT]` puts OUT/sconce and, packed,
# OUT/sconce.xz there (default target/gpu), and tries how the binary behaves without a GPU. With a CUDA toolkit this is not
# needed: `cargo install --path . --features cuda`.
#
# The compiler comes from PyPI and stays in ${SCONCE_NVCC:-~/.cache/sconce-nvcc} (105 MB to fetch, 270 MB on the disk). The first
# build takes some minutes. The binary runs on Ampere and later (A100, L4, RTX 4090, H100, H200 …) with a driver of 580 or later
# and needs there libcuda.so.1, from the driver, and libcublas.so.13, libcublasLt.so.13, libcurand.so.10 and libnvrtc.so.13, which
# PyTorch's packages have, too.
set -euo pipefail
out=$(realpath -m "${1:-"$(dirname "$0")/../target/gpu"}")
cd "$(dirname "$0")/.."

toolkit=$(realpath -m "${SCONCE_NVCC:-$HOME/.cache/sconce-nvcc}")
target=$PWD/target/cuda
# Not in the toolkit, where other builds would find them, and nowhere that a GPU machine looks for libraries.
stubs=$target/stubs

say() { echo "build_cuda: $*" >&2; }
fail() { say "$@"; exit 1; }

for tool in cargo python3 c++ cc strip xz; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install it (on Debian: g++, binutils, python3-pip, xz-utils)"
done

# scripts/check_cuda_kernels.sh has it from the same place.
export CUDA_HOME=$toolkit/nvidia/cu13
if [ ! -e "$toolkit/complete" ]; then
    say "fetching nvcc 13.0 into $toolkit"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target "$toolkit" \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-cccl==13.0.85
    # Where nvcc looks for it.
    ln -sfn lib "$CUDA_HOME/lib64"
    touch "$toolkit/complete"
fi

# Libraries to link with, in place of those that only a machine with CUDA has: every function that cudarc may call, each of
# which says CUDA_ERROR_STUB_LIBRARY. The lock file says which cudarc.
cudarc=$(cargo metadata --locked --format-version 1 --features cuda | python3 -c '
import json, pathlib, sys
found = [pathlib.Path(p["manifest_path"]).parent for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"]
len(found) == 1 or sys.exit(f"build_cuda: one cudarc was expected, and there are {len(found)}")
print(found[0])')
stub() { # the name to link with, the library's own name, cudarc's module, how its functions begin
    local functions
    functions=$(grep -ohP "pub unsafe fn \K$4\w+(?=\s*\()" "$cudarc/src/$3/sys/mod.rs" | sort -u)
    [ -n "$functions" ] || fail "cudarc has no functions $4… in $3; this script needs a look at $cudarc"
    printf 'int %s(void) { return 34; }\n' $functions | cc -shared -fPIC -x c - -Wl,-soname,"$2" -o "$stubs/$2"
    ln -sfn "$2" "$stubs/lib$1.so"
}
mkdir -p "$stubs"
stub cuda libcuda.so.1 driver 'cu[A-Z]'
stub cublas libcublas.so.13 cublas cublas
stub cublasLt libcublasLt.so.13 cublaslt cublasLt
stub curand libcurand.so.10 curand curand
stub nvrtc libnvrtc.so.13 nvrtc nvrtc
# The runtime is linked in whole.
echo "INPUT($CUDA_HOME/lib/libcudart_static.a)" >"$stubs/libcudart.so"

# 80: candle's kernels are embedded as PTX of compute_80, which the driver compiles for Ampere and all that came later. 90 would be
# PTX of compute_90a, which runs on Hopper alone. Only candle's kernels for quantised weights and mixtures of experts are
# machine code, of sm_80 to sm_89; sconce calls none of them.
CUDA_COMPUTE_CAP=80 NVCC=$CUDA_HOME/bin/nvcc PATH=$CUDA_HOME/bin:$PATH LIBRARY_PATH=$stubs \
    cargo build --locked --release --features cuda --target-dir "$target"
mkdir -p "$out"
strip -o "$out/sconce" "$target/release/sconce"
xz --keep --force -9 "$out/sconce"

# Without a GPU: the stubs let the binary start.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
embed() {
    LD_LIBRARY_PATH=$stubs "$out/sconce" embed --offline --no-progress --model tests/fixtures/bert-tiny "$@" hello \
        >"$work/out" 2>"$work/err"
}
embed --device auto || fail "--device auto failed without a GPU: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 1 ] || fail "--device auto gave no row without a GPU"
[ "$(grep -c 'there is no GPU' "$work/err")" = 1 ] ||
    fail "--device auto has to say once that there is no GPU: $(cat "$work/err")"
status=0
embed --device cuda || status=$?
[ "$status" = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -q '^sconce: error: ' "$work/err" ||
    fail "--device cuda has to end with 1 and one sentence without a GPU, and ended with $status: $(cat "$work/err")"

say "without a GPU, $(sed 's/^sconce: error: //' "$work/err")"
ls -l "$out/sconce" "$out/sconce.xz"
