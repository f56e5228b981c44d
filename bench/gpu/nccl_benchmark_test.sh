#!/usr/bin/env bash
# That exchanges by NCCL are measured between processes, over fakes: each gets a line, with both rates, from
# one of them, and a share of NCCL's own calls where it has some. Times are not looked at.
set -u
dtrun=$1 benchmark=$2
export DTENSOR_FAKE_GPUS=3
log=$TEST_TMPDIR/log

fail() { cat "$log"; echo "FAILED: $*"; exit 1; }

"$dtrun" -n 3 "$benchmark" --tiny nccl >"$log" 2>&1 || fail "three processes"
for exchange in all_gather reduce_scatter all_reduce all_to_all; do
  lines=$(grep -c "nccl/$exchange/3/8KiB .* GB/s .*bus [0-9]" "$log")
  ((lines == 1)) || fail "$lines lines of $exchange in place of one"
done
lines=$(grep -c "nccl/all_.* of bare NCCL" "$log")
((lines == 2)) || fail "$lines lines beside bare NCCL in place of two"

"$benchmark" --tiny nccl >"$log" 2>&1 && fail "it takes itself for a rank"
grep -q "start it by dtrun" "$log" || fail "it does not say how to start it"
"$dtrun" -n 4 "$benchmark" --tiny nccl >"$log" 2>&1 && fail "four processes on three GPUs"
grep -q "GPU" "$log" || fail "it does not say what is missing"
