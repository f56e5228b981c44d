#!/bin/sh
# fuzz_test.sh PROGRAM SEEDS WORDS LONGEST: tries the kept inputs in the folder SEEDS. Under
# --config=fuzz, which sets FUZZ_SECONDS, libFuzzer makes others of them for so long, of at most
# LONGEST bytes, with the words in the file WORDS. One that fails is kept among the test's outputs.
set -eu
program=$1 seeds=$2 words=$3 longest=$4
if [ -z "${FUZZ_SECONDS-}" ]; then
  exec "$program" "$seeds"/*
fi
mkdir -p "$TEST_TMPDIR/corpus"
exec "$program" -max_total_time="$FUZZ_SECONDS" -max_len="$longest" -dict="$words" \
  -timeout=25 -rss_limit_mb=1024 -malloc_limit_mb=256 -print_final_stats=1 \
  -artifact_prefix="$TEST_UNDECLARED_OUTPUTS_DIR/" "$TEST_TMPDIR/corpus" "$seeds"
