#!/usr/bin/env bash
# kill_test.sh DTENSOR TRAIN DTRUN: a run that saves each of its steps is killed at random moments,
# DTENSOR_KILLS times (10), as threads and one of its processes, and resumed each time; up to four
# times as often until a kill comes while it saves. After each kill the latest checkpoint is whole,
# and no older than it was.
set -uo pipefail
dtensor=$PWD/$1 train=$PWD/$2 dtrun=$PWD/$3
cd "$TEST_TMPDIR" || exit 1
RANDOM=${DTENSOR_SEED:-17}
fail() {
  echo "FAILED: $*"
  exit 1
}
for i in $(seq 1 3000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >text
run=(--dim=256 --layers=2 --seq=8 --batch=4 --text=text --steps=1000000 --mesh=dp=2 --plan=zero2
  --save=run --save-every=1 --resume)
latest() { ls run 2>/dev/null | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1; }

before=0 left=0 kills=${DTENSOR_KILLS:-10}
for ((kill = 1; kill <= kills || (left == 0 && kill <= 4 * kills); ++kill)); do
  if ((kill % 2)); then
    "$train" "${run[@]}" >out 2>&1 &
  else
    "$dtrun" -n 2 "$train" "${run[@]}" >out 2>&1 &
  fi
  job=$!
  # Begun, and on its way.
  for _ in $(seq 1 4000); do
    [[ $(latest) -gt $before ]] && break
    kill -0 "$job" 2>/dev/null || fail "it ended by itself: $(tail -n 3 out)"
    sleep 0.01
  done
  seen=$(latest)
  [[ $seen -gt $before ]] || fail "kill $kill: nothing is saved after step $before: $(tail -n 3 out)"
  sleep "0.$(printf %03d $((RANDOM % 200)))"
  victim=$job
  ((kill % 2)) || victim=$(pgrep -P "$job" | sed -n "$((1 + RANDOM % 2))p")
  kill -KILL "$victim" || fail "kill $kill: there is no rank: $(tail -n 3 out)"
  wait "$job" 2>/dev/null
  ls -d run/.step-* >/dev/null 2>&1 && left=$((left + 1))
  after=$(latest)
  "$dtensor" checkpoint verify run >out 2>&1 || fail "kill $kill: $(cat out)"
  [[ $after -ge $seen ]] || fail "kill $kill: step $seen was there, and now $after is"
  before=$after
done
[[ $(ls -d run/step-* | wc -l) -le 3 ]] || fail "more than the latest two stay: $(ls run)"
echo "killed $((kill - 1)) times, $left of them while it saved; each time it had come farther, to step $before"
[[ $left -gt 0 ]] || fail "no kill came while it saved"
