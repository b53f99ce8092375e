#!/bin/bash
# Make a dataset with GNU parallel, on this machine or on several over ssh.
#
#   examples/parallel.sh OUT PARTS SOURCE... [options of shardmill plan]
#
# SERVERS=2/:,8/node1,8/node2 lists the machines and the number of parts that each makes at a time (default: two, on
# this machine). All machines must see OUT and the sources under the same names. You can run the same line again:
# finished parts are not repeated. A part that fails, or whose machine is lost, is tried three times.
set -euo pipefail

out=$1 parts=$2
shift 2
shardmill plan "$@" -o "$out" --parts "$parts"
seq 0 $((parts - 1)) | parallel --sshlogin "${SERVERS:-2/:}" --retries 3 --halt soon,fail=1 --workdir . \
    shardmill prepare --plan "$out" --part '{}' --workers "${WORKERS:-1}" --memory "${MEMORY:-1GB}" --quiet
shardmill merge "$out"
