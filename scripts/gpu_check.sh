#!/usr/bin/env bash
# Checks and measures sconce on a machine with a GPU, in under ten minutes: `scripts/gpu_check.sh --sconce target/gpu/sconce.xz
# --out PAGE.md`, and other options of scripts/gpu_check.py. Needs no Rust and no network, but a Python with PyTorch,
# transformers and numpy: $PYTHON, or python3. CUDA's libraries are those of PyTorch's packages.
# With --rehearse everything runs on the CPU and small, to try the script itself.
set -euo pipefail
scripts=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
fail() { echo "gpu_check: $*" >&2; exit 1; }

if ! reason=$("$python" -c 'import numpy, tokenizers, torch, transformers' 2>&1); then
    fail "$python will not do (${reason##*$'\n'}); set PYTHON to one with PyTorch, transformers and numpy"
fi
case " $* " in *' --rehearse '*) exec "$python" "$scripts/gpu_check.py" "$@" ;; esac

libraries=$("$python" -c '
import importlib.util, pathlib
folders = [pathlib.Path(folder, "cu13", "lib") for folder in importlib.util.find_spec("nvidia").submodule_search_locations]
print(":".join(str(folder) for folder in folders if list(folder.glob("libcublas.so.13"))))' 2>/dev/null) || libraries=''
[ -n "$libraries" ] || echo "gpu_check: no nvidia/cu13/lib in the packages of $python; the system's CUDA 13 has to serve" >&2
# The driver's own folder, where the loader does not look by itself.
for driver in '' /usr/local/nvidia/lib64 /usr/local/cuda/compat /usr/lib/wsl/lib; do
    path=$libraries${driver:+:$driver}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    LD_LIBRARY_PATH=$path "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null && found=$path && break
done
[ -n "${found:-}" ] || fail "libcuda.so.1, which comes with the driver, is nowhere to be found; put its folder on LD_LIBRARY_PATH"

export LD_LIBRARY_PATH=$found CUDA_DEVICE_ORDER=PCI_BUS_ID
# What the driver compiles once, every process finds.
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-${TMPDIR:-/tmp}/sconce-cuda-cache} CUDA_CACHE_MAXSIZE=1073741824
exec "$python" "$scripts/gpu_check.py" "$@"
