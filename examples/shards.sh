#!/usr/bin/env bash
# Vectors of files as shards: a process per shard. The same command after a crash runs what is missing.
#
#     shards.sh INPUT OUTPUT.parquet SHARDS JOBS [OPTION …]     on this machine, JOBS at a time, then merged
#     sbatch --array=1-SHARDS shards.sh INPUT OUTPUT.parquet [OPTION …]     as a Slurm array; merge the parts afterwards
#
# The options are those of `sconce embed`.
set -euo pipefail
input=$1 output=$2
shift 2

# Runs a shard, which resumes if it was interrupted, unless its part is complete.
embed_shard() {
    local part=$output.part-$1
    [ -e "$part" ] || sconce embed --quiet --resume -i "$input" --shard "$1/$2" --threads "$3" --output-format parquet -o "$part" "${@:4}"
}

if [ -n "${SLURM_ARRAY_TASK_ID-}" ]; then
    embed_shard "$SLURM_ARRAY_TASK_ID" "$SLURM_ARRAY_TASK_COUNT" "${SLURM_CPUS_PER_TASK:-1}" "$@"
    exit
fi
shards=$1 jobs=$2
shift 2
export -f embed_shard
export input output
threads=$(($(nproc) / jobs > 0 ? $(nproc) / jobs : 1))
seq "$shards" | xargs -P "$jobs" -I{} bash -euo pipefail -c 'embed_shard "$@"' embed {} "$shards" "$threads" "$@"
mapfile -t parts < <(seq -f "$output.part-%.0f" "$shards")
sconce merge "$output" "${parts[@]}"
