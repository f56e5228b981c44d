#!/bin/sh
# The README's program runs, prints where its two tensors lie, and is short.
set -e
program=$1 source=$2
output=$("$program")
echo "$output"
echo "$output" | grep -q 'P(sum: tp)' || { echo "y is not Partial over tp"; exit 1; }
[ "$(echo "$output" | wc -l)" = 2 ] || { echo "expected two lines"; exit 1; }
lines=$(grep -c . "$source")
[ "$lines" -le 25 ] || { echo "the README's program has $lines lines; at most 25"; exit 1; }
