#!/bin/sh
# The programs of docs/embedding.md run. The first prints three steps of a world and one of another, and
# the number of a rank alone; started by dtrun, the three steps of its processes.
set -e
line='\[4\] f32 on \["tp"=2\] as \[tp\] ends with'
threads=$("$1")
echo "$threads"
[ "$(echo "$threads" | grep -c "^$line")" = 4 ] || { echo "expected four steps"; exit 1; }
[ "$(echo "$threads" | grep -c 'ends with 32$')" = 1 ] || { echo "expected 32 after three"; exit 1; }
[ "$(echo "$threads" | tail -n 1)" = 7 ] || { echo "expected 7"; exit 1; }
processes=$("$2" -n 2 "$1" processes)
echo "$processes"
[ "$(echo "$processes" | grep -c "$line")" = 3 ] || { echo "expected three steps"; exit 1; }
memory=$("$3")
echo "$memory"
[ "$memory" = "[3] f32 on cpu
[40 50 60]
6 numbers, the last is 60" ] || { echo "expected the second half, and all of it"; exit 1; }
