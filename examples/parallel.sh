#!/bin/bash
# A dataset by GNU parallel, on this machine or on several that ssh reaches.
#
#   examples/parallel.sh OUT PARTS SOURCE... [options of shardmill plan]
#
# SERVERS=2/:,8/node1,8/node2 names the machines and how many parts each makes at a time (by default two, here). They all
# see OUT and the sources under the same names. To run the same line again is safe: parts that are there are not made
# again. A part that fails, or whose machine is lost, is tried three times.
set -euo pipefail

out=$1 parts=$2
shift 2
shardmill plan "$@" -o "$out" --parts "$parts"
seq 0 $((parts - 1)) | parallel --sshlogin "${SERVERS:-2/:}" --retries 3 --halt soon,fail=1 --workdir . \
    shardmill prepare --plan "$out" --part '{}' --workers "${WORKERS:-1}" --memory "${MEMORY:-1GB}" --quiet
shardmill merge "$out"
