#!/usr/bin/env bash
# Checks and benchmarks sconce on a machine with a GPU, in under ten minutes.
#
#     scripts/gpu/gpu_check.sh --sconce target/gpu/sconce.xz --out PAGE.md      and other options of gpu_check.py
#     scripts/gpu/gpu_check.sh --rehearse                                       on the CPU with small sizes, to test the script
#
# Needs neither Rust nor network access, but a Python with PyTorch, transformers and numpy ($PYTHON, or python3). The CUDA libraries are
# those of PyTorch's packages.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
scripts=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
fail() { echo "gpu_check: $*" >&2; exit 1; }

if ! reason=$("$python" -c 'import numpy, tokenizers, torch, transformers' 2>&1); then
    fail "$python lacks a package (${reason##*$'\n'}); set PYTHON to one with PyTorch, transformers and numpy"
fi
case " $* " in *' --rehearse '*) exec "$python" "$scripts/gpu_check.py" "$@" ;; esac

libraries=$("$python" -c '
import importlib.util, pathlib
folders = [pathlib.Path(folder, "cu13", "lib") for folder in importlib.util.find_spec("nvidia").submodule_search_locations]
print(":".join(str(folder) for folder in folders if list(folder.glob("libcublas.so.13"))))' 2>/dev/null) || libraries=''
[ -n "$libraries" ] || echo "gpu_check: no nvidia/cu13/lib in the packages of $python; using the system's CUDA 13" >&2
# Directories of the driver that the dynamic loader does not search by default.
for driver in '' /usr/local/nvidia/lib64 /usr/local/cuda/compat /usr/lib/wsl/lib; do
    path=$libraries${driver:+:$driver}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    LD_LIBRARY_PATH=$path "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null && found=$path && break
done
[ -n "${found:-}" ] || fail "libcuda.so.1, which the driver installs, not found; add its directory to LD_LIBRARY_PATH"

export LD_LIBRARY_PATH=$found CUDA_DEVICE_ORDER=PCI_BUS_ID
# All processes share the driver's cache of compiled kernels.
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-${TMPDIR:-/tmp}/sconce-cuda-cache} CUDA_CACHE_MAXSIZE=1073741824
exec "$python" "$scripts/gpu_check.py" "$@"
