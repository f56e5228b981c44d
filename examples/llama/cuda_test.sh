#!/usr/bin/env bash
# On GPUs the program trains with the CPU's losses, whatever the mesh: to 1e-4 of them, in f32.
set -u
train=$1
text=$TEST_TMPDIR/text
for i in $(seq 1 2000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >"$text"
small=(--dim=32 --layers=2 --seq=16 --batch=4 --steps=4 --text="$text")

# run NAME ARG...: the losses of its report, a line each, in $TEST_TMPDIR/NAME.
run() {
  local name=$1
  shift
  "$train" "${small[@]}" --report="$TEST_TMPDIR/report.json" "$@" >"$TEST_TMPDIR/out" 2>&1 ||
    { cat "$TEST_TMPDIR/out"; echo "$name: the run failed"; exit 1; }
  tr -d '\n ' <"$TEST_TMPDIR/report.json" | sed 's/.*"losses":\[\([^]]*\)\].*/\1\n/' | tr ',' '\n' >"$TEST_TMPDIR/$name"
  (($(wc -l <"$TEST_TMPDIR/$name") == 4)) || { echo "$name: not four losses"; cat "$TEST_TMPDIR/$name"; exit 1; }
}

run cpu --mesh=dp=1
for mesh in dp=1 tp=2 dp=2,cp=2; do
  run cuda --device=cuda --mesh="$mesh"
  paste "$TEST_TMPDIR/cpu" "$TEST_TMPDIR/cuda" | awk -v mesh="$mesh" '
    {d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4 * $1) {bad = 1; print "--mesh=" mesh ": step " NR ": " $2 " in place of " $1}}
    END {exit bad}' || exit 1
done
