#!/bin/bash
# Make a dataset on a Slurm cluster: each task of an array makes one part, and a final job merges them.
#
#   examples/slurm.sh OUT PARTS SOURCE... [options of shardmill plan]
#
# for example: examples/slurm.sh /shared/tokens 200 '/shared/crawl/*.parquet' -t gpt2 -f shards
#
# OUT and the sources must be on a file system that every node sees, or in an object store. You can run the same line
# again: finished parts are not repeated.
#SBATCH --job-name=shardmill
#SBATCH --cpus-per-task=16
#SBATCH --mem=8G
#SBATCH --requeue
set -euo pipefail

if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then # in a task: Slurm has started this script again
    exec shardmill prepare --plan "$1" --part "$SLURM_ARRAY_TASK_ID" \
        --workers "${SLURM_CPUS_PER_TASK:-1}" --memory 6GB --quiet
fi

out=$1 parts=$2
shift 2
shardmill plan "$@" -o "$out" --parts "$parts"
job=$(sbatch --parsable --array="0-$((parts - 1))" "$0" "$out")
sbatch --dependency="afterok:$job" --job-name=shardmill-merge --cpus-per-task=4 --mem=2G \
    --wrap="$(printf 'shardmill merge %q' "$out")"
