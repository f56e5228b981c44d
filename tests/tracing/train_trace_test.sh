#!/usr/bin/env bash
# The LLaMA example's traces as a user gets them. train_trace_test.sh TRAIN DTRUN CHECK_TRACE_FILE
set -uo pipefail
train=$PWD/$1 dtrun=$PWD/$2 check=$PWD/$3
cd "$TEST_TMPDIR" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
for i in $(seq 1 3000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >text
small=(--dim=32 --layers=1 --seq=16 --steps=2 --batch=4 --text=text --mesh=dp=2,tp=2)

"$train" "${small[@]}" --trace=threads.json >/dev/null 2>err || fail "with --trace: $(cat err)"
"$check" threads.json >threads.sums || fail "threads.json"
[[ $(grep -c ' ' threads.sums) -ge 20 && $(grep -vc ' ' threads.sums) == 4 ]] ||
  fail "four ranks, and what they moved: $(cat threads.sums)"

DTENSOR_TRACE=variable.json "$train" "${small[@]}" >/dev/null 2>err || fail "with DTENSOR_TRACE: $(cat err)"
"$check" variable.json | diff - threads.sums || fail "DTENSOR_TRACE gives another trace than --trace"

DTENSOR_TRACE=compared.json "$train" "${small[@]}" --compare=1 >/dev/null 2>err || fail "with --compare: $(cat err)"
[[ $("$check" compared.json | grep -vc ' ') == 4 ]] || fail "the comparison's one rank is traced"

"$dtrun" -n 4 "$train" "${small[@]}" --trace=processes.json >/dev/null 2>err || fail "on processes: $(cat err)"
"$check" processes.{0,1,2,3}.json | diff - threads.sums || fail "processes moved something else than threads"

"$train" "${small[@]}" --trace=trace.txt >/dev/null 2>err || fail "as tables: $(cat err)"
grep -q 'model.layers.0.mlp.down_proj .*reduce-scatter(tp): .*result 0 of the module, by the plan' trace.txt ||
  fail "the table: $(head -n 20 trace.txt)"
"$train" "${small[@]}" --trace=/nowhere/trace.json >/dev/null 2>err
[[ $? == 2 && $(wc -l <err) == 1 ]] && grep -q -- '--trace: cannot write' err || fail "a file that cannot be: $(cat err)"
[[ $failures == 0 ]]
