#!/usr/bin/env bash
# The program as a user meets it: what it refuses, in one line with status 2, and what its report holds.
set -u
train=$1
text=$TEST_TMPDIR/text
for i in $(seq 1 3000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >"$text"
: >"$TEST_TMPDIR/empty"
small=(--dim=32 --layers=1 --seq=16 --batch=2 --steps=3 --text="$text")
bad=0

# refuses WORDS ARG...: status 2, one line that has WORDS.
refuses() {
  local words=$1 out status
  shift
  out=$("$train" "$@" 2>&1 >/dev/null)
  status=$?
  if ((status != 2)) || [[ $out != *"$words"* ]] || [[ $(wc -l <<<"$out") != 1 ]]; then
    echo "expected status 2 and one line with '$words' from: $*"
    echo "got status $status: $out"
    bad=1
  fi
}

refuses "the axes are dp, cp and tp" "${small[@]}" --mesh=pp=2
refuses "choose ring, zigzag" "${small[@]}" --mesh=cp=2 --cp_pattern=spiral
refuses "a group of two axes" "${small[@]}" --mesh=cp=2 --cp_pattern=double_ring
refuses "a multiple of 6" "${small[@]}" --mesh=cp=3
refuses "tp" "${small[@]}" --mesh=tp=2,tp=2
refuses "tp" "${small[@]}" --mesh=tp=0
refuses "choose tp, tp+sp or none" "${small[@]}" --plan=best
refuses "allow uneven" "${small[@]}" --mesh=tp=3
refuses "tools/setup" --seq=16 --text=/nowhere/text
refuses "is empty" --seq=16 --text="$TEST_TMPDIR/empty"
refuses "--seq" --seq=1000000 --text="$text"
refuses "--help lists the flags" "${small[@]}" --colour=red
refuses "kv_heads must divide heads" "${small[@]}" --kv_heads=3
refuses "--steps" --steps=0 --text="$text"
refuses "f32" "${small[@]}" --dtype=f33

report=$TEST_TMPDIR/report.json
"$train" "${small[@]}" --mesh=dp=2,tp=2 --compare=3 --report="$report" --dump="$TEST_TMPDIR/dump.safetensors" ||
  { echo "the run failed"; bad=1; }
for key in mesh plan dtype steps losses grad_norms heldout_loss tokens_per_second collectives bytes predicted counted \
  peak_bytes_per_rank max_relative_loss_difference; do
  grep -q "\"$key\"" "$report" || { echo "the report lacks $key"; bad=1; }
done
head -c 20000 "$TEST_TMPDIR/dump.safetensors" | grep -aq 'grad.model.layers.0.self_attn.q_proj.weight' ||
  { echo "the dump lacks a gradient"; bad=1; }
"$train" "${small[@]}" --mesh=dp=2,cp=2,tp=2 --compare=3 --report="$report" >/dev/null || { echo "the run with cp failed"; bad=1; }
grep -q '"cp_pattern": "zigzag"' "$report" || { echo "the report lacks cp_pattern"; bad=1; }
"$train" "${small[@]}" '--mesh=a=2,b=2;cp=a*b' --cp_pattern=double_ring >/dev/null || { echo "the double ring failed"; bad=1; }
"$train" "${small[@]}" --mesh=dp=2,tp=2 --dtype=bf16 --compare=3 >/dev/null || { echo "the bf16 run failed"; bad=1; }
"$train" "${small[@]}" --mesh=dp=2,tp=2 --report=/nowhere/report.json >/dev/null 2>&1
(($? == 1)) || { echo "an unwritable report must end with status 1"; bad=1; }
exit $bad
