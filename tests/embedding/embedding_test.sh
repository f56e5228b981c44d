#!/bin/sh
# The program of docs/embedding.md runs, and prints its three steps and the number of a rank alone.
set -e
output=$("$1")
echo "$output"
[ "$(echo "$output" | grep -c '^\[4\] f32 on \["tp"=2\] as \[tp\]$')" = 3 ] || { echo "expected three steps"; exit 1; }
[ "$(echo "$output" | tail -n 1)" = 7 ] || { echo "expected 7"; exit 1; }
