#!/usr/bin/env bash
# Builds sconce with CUDA on a machine without a GPU and without a CUDA toolkit, and checks how the binary behaves without a GPU.
#
#     scripts/gpu/build_cuda.sh [OUT]      writes OUT/sconce and OUT/sconce.xz; default: target/gpu
#
# With a CUDA toolkit, run `cargo install --path . --locked --features cuda` instead.
#
# nvcc is installed from PyPI into ${SCONCE_NVCC:-~/.cache/sconce-nvcc} (105 MB to download, 270 MB on disk). The first build takes a few
# minutes. The binary needs a GPU of compute capability 8.0 or later (A100, L4, RTX 4090, H100, H200 …), driver 580 or later with
# libcuda.so.1, and libcublas.so.13, libcublasLt.so.13, libcurand.so.10 and libnvrtc.so.13, which PyTorch's packages include.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
out=$(realpath -m "${1:-"$(dirname "$0")/../../target/gpu"}")
cd "$(dirname "$0")/../.."

toolkit=$(realpath -m "${SCONCE_NVCC:-$HOME/.cache/sconce-nvcc}")
target=$PWD/target/cuda
# Outside of the toolkit, so that no other build links with them, and outside of every library path of a GPU machine.
stubs=$target/stubs

say() { echo "build_cuda: $*" >&2; }
fail() { say "$@"; exit 1; }

for tool in cargo python3 c++ cc strip xz; do
    command -v "$tool" >/dev/null || fail "$tool is missing; install it (on Debian: g++, binutils, python3-pip, xz-utils)"
done

# scripts/check/check_cuda_kernels.sh uses the same installation.
export CUDA_HOME=$toolkit/nvidia/cu13
if [ ! -e "$toolkit/complete" ]; then
    say "installing nvcc 13.0 into $toolkit"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --target "$toolkit" \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
        nvidia-cuda-cccl==13.0.85
    # nvcc looks for libraries in lib64.
    ln -sfn lib "$CUDA_HOME/lib64"
    touch "$toolkit/complete"
fi

# Stub libraries to link with: every function that cudarc may call, each of which returns CUDA_ERROR_STUB_LIBRARY (34). The lock file
# names the version of cudarc.
cudarc=$(cargo metadata --locked --format-version 1 --features cuda | python3 -c '
import json, pathlib, sys
found = [pathlib.Path(p["manifest_path"]).parent for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"]
len(found) == 1 or sys.exit(f"build_cuda: expected one version of cudarc in Cargo.lock, found {len(found)}")
print(found[0])')
stub() { # name to link with, soname, cudarc's module, prefix of its functions
    local functions
    functions=$(grep -ohP "pub unsafe fn \K$4\w+(?=\s*\()" "$cudarc/src/$3/sys/mod.rs" | sort -u)
    [ -n "$functions" ] || fail "no functions $4… in the module $3 of $cudarc; update the list of stubs in this script"
    printf 'int %s(void) { return 34; }\n' $functions | cc -shared -fPIC -x c - -Wl,-soname,"$2" -o "$stubs/$2"
    ln -sfn "$2" "$stubs/lib$1.so"
}
mkdir -p "$stubs"
stub cuda libcuda.so.1 driver 'cu[A-Z]'
stub cublas libcublas.so.13 cublas cublas
stub cublasLt libcublasLt.so.13 cublaslt cublasLt
stub curand libcurand.so.10 curand curand
stub nvrtc libnvrtc.so.13 nvrtc nvrtc
# The CUDA runtime is linked statically.
echo "INPUT($CUDA_HOME/lib/libcudart_static.a)" >"$stubs/libcudart.so"

# 80: candle's kernels are embedded as PTX for compute_80, which the driver compiles for Ampere and later. 90 would give PTX for
# compute_90a, which runs on Hopper only. candle's kernels for quantised weights and mixtures of experts are machine code for sm_80 to
# sm_89; sconce calls none of them.
CUDA_COMPUTE_CAP=80 NVCC=$CUDA_HOME/bin/nvcc PATH=$CUDA_HOME/bin:$PATH LIBRARY_PATH=$stubs \
    cargo build --locked --release --features cuda --target-dir "$target"
mkdir -p "$out"
strip -o "$out/sconce" "$target/release/sconce"
xz --keep --force -9 "$out/sconce"

# How it behaves without a GPU: with the stubs, the binary starts.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
embed() {
    LD_LIBRARY_PATH=$stubs "$out/sconce" embed --offline --no-progress --model tests/fixtures/bert-tiny "$@" hello \
        >"$work/out" 2>"$work/err"
}
embed --device auto || fail "--device auto failed without a GPU: $(cat "$work/err")"
[ "$(wc -l <"$work/out")" = 1 ] || fail "--device auto wrote no row without a GPU"
[ "$(grep -ciE 'no (nvidia )?gpu' "$work/err")" = 1 ] ||
    fail "--device auto has to report once that no GPU was found: $(cat "$work/err")"
status=0
embed --device cuda || status=$?
[ "$status" = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] && grep -q '^sconce: error: ' "$work/err" ||
    fail "--device cuda without a GPU has to exit with 1 and one error, exited with $status: $(cat "$work/err")"

say "--device cuda without a GPU reports: $(sed 's/^sconce: error: //' "$work/err")"
ls -l "$out/sconce" "$out/sconce.xz"
