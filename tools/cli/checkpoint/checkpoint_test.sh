#!/usr/bin/env bash
# checkpoint_test.sh DTENSOR TRAIN DTRUN: a training run is killed, and resumed on the same mesh, as
# processes, by dtrun, and on other meshes: it has the losses of the run that was not killed. What the
# program shows, verifies and exports of its checkpoints.
set -uo pipefail
dtensor=$PWD/$1 train=$PWD/$2 dtrun=$PWD/$3
cd "$TEST_TMPDIR" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
for i in $(seq 1 3000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >text
small=(--dim=32 --layers=2 --seq=16 --batch=4 --text=text)

# The losses of a report, a line each, from the step on that it begins with.
losses() { tr -d ' \n' <"$1" | sed 's/.*"losses":\[\([^]]*\)\].*/\1/' | tr ',' '\n'; }
first_step() { sed -n 's/.*"first_step": \([0-9]*\).*/\1/p' "$1"; }
latest() { ls "$1" | sed -n 's/^step-0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1; }

# resumes_like TOLERANCE COMMAND...: as the run that was not killed, whose losses are in full.
resumes_like() {
  local tolerance=$1
  shift
  rm -rf resumed resumed.json
  cp -r killed resumed
  "$@" "${small[@]}" --save=resumed --save-every=1000000 --resume --steps="$steps" --report=resumed.json >out 2>&1 ||
    { fail "$*: $(tail -n 2 out)"; return; }
  [[ $(first_step resumed.json) == "$(latest killed)" ]] || fail "$*: begins at $(first_step resumed.json)"
  losses resumed.json >resumed.losses
  tail -n 4 full.losses | paste - resumed.losses |
    awk -v t="$tolerance" 'NF != 2 || ($1 != $2 && ($1 - $2) ^ 2 > (t * $1) ^ 2) { bad = 1 } END { exit bad || NR != 4 }' ||
    fail "$* resumed: $(tail -n 4 full.losses | paste - resumed.losses)"
}

# Killed while it trains, and mostly while it writes: every second step is saved.
"$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --save=killed --save-every=2 --steps=1000000 >/dev/null 2>&1 &
run=$!
for _ in $(seq 1 600); do
  [[ -d killed && $(latest killed) -ge 4 ]] && break
  sleep 0.05
done
kill -KILL "$run"
wait "$run" 2>/dev/null
[[ $(latest killed) -ge 4 ]] || fail "nothing was saved: $(ls -a killed)"
[[ $(ls killed | wc -l) -le 3 ]] || fail "more than two stay: $(ls killed)"
steps=$(($(latest killed) + 4))
"$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --steps="$steps" --report=full.json >/dev/null 2>&1 || fail "the whole run"
losses full.json >full.losses
[[ $(grep -c . full.losses) == "$steps" ]] || fail "$steps losses, got $(grep -c . full.losses)"
resumes_like 0 "$train" --mesh=dp=2 --plan=fsdp
resumes_like 0 "$dtrun" -n 2 "$train" --mesh=dp=2 --plan=fsdp
resumes_like 1e-5 "$train" --mesh=tp=2
resumes_like 1e-5 "$train" --mesh=dp=2,tp=2 --plan=zero1+tp+sp
resumes_like 1e-5 "$train" --mesh=cp=1

# One of dtrun's ranks is killed when something is saved, and all start again from there.
"$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --steps=80 --report=full.json >/dev/null 2>&1 || fail "80 steps"
losses full.json >full.losses
DTENSOR_SECRET=text "$dtrun" -n 2 --max-restarts=1 bash -c '
  mkdir "first.$DTENSOR_RANK" 2>/dev/null || exec "$@" --steps=80
  "$@" --steps=1000000 &
  until ls restarted/step-* >/dev/null 2>&1; do sleep 0.01; done
  [[ $DTENSOR_RANK == 0 ]] || kill -KILL $!
  wait $!' rank "$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --save=restarted --save-every=2 --resume \
  --report=restarted.json >out 2>&1 || fail "dtrun with a restart: $(tail -n 5 out)"
grep -q 'dtrun: rank 1 ended with status 137; all ranks start again, 1 of 1' out || fail "no restart: $(cat out)"
losses restarted.json >restarted.losses
[[ -s restarted.losses && $(first_step restarted.json) -ge 2 ]] || fail "begins anew: $(cat restarted.json)"
tail -n "$(grep -c . restarted.losses)" full.losses | cmp - restarted.losses || fail "other losses after a restart"

"$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --save=killed --resume --steps="$steps" --seed=7 >out 2>&1 &&
  fail "another seed is not refused"
grep -q -- "--seed: the run in 'killed' was begun with 1, not 7" out || fail "another seed: $(cat out)"

"$dtensor" checkpoint show killed >out || fail "show: status $?"
for words in "tensors of" "training.position = $(($(latest killed) * 4))" "user.mesh = " \
  "model.norm.weight " "optimizer/exp_avg/model.norm.weight "; do
  grep -qF "$words" out || fail "show lacks '$words': $(head -n 20 out)"
done
"$dtensor" checkpoint show --json killed >out || fail "show --json: status $?"
grep -q '"step": '"$(latest killed)" out || fail "show --json: $(head -n 5 out)"
"$dtensor" checkpoint verify killed >out || fail "verify: status $?"
grep -q 'are what was written' out || fail "verify: $(cat out)"
"$dtensor" checkpoint export killed model >out || fail "export: status $?"
[[ -s model/model.safetensors ]] || fail "nothing was exported"
head -c 5000 model/model.safetensors >head  # no pipe: grep -q would end before head does
grep -aq '"model.layers.1.mlp.up_proj.weight"' head || fail "a weight is missing"
grep -aq 'exp_avg' head && fail "a state was exported"
"$dtensor" checkpoint export killed parts --max-file-bytes=20kB >/dev/null || fail "export in parts"
[[ -s parts/model.safetensors.index.json && $(ls parts/model-*.safetensors | wc -l) -ge 3 ]] || fail "parts: $(ls parts)"

# refuses STATUS WORDS ARG...
refuses() {
  local wanted=$1 words=$2 status
  shift 2
  "$dtensor" checkpoint "$@" >out 2>&1
  status=$?
  [[ $status == "$wanted" && $(<out) == *"$words"* && $(wc -l <out) == 1 ]] ||
    fail "expected status $wanted and '$words', got $status and $(cat out)"
}
refuses 2 "is there; remove it" export killed model
refuses 2 "no number of bytes" export killed other --max-file-bytes=none
refuses 2 "no number of bytes above 0" export killed other --max-file-bytes=0
refuses 2 "is no checkpoint, and none is in it" show model
refuses 2 "nowhere" verify nowhere
file=$(ls killed/step-*/rank-00001.safetensors | tail -n 1)
printf 'x' | dd of="$file" bs=1 seek=20000 conv=notrunc status=none
refuses 1 "rank-00001.safetensors': bytes " verify killed
"$train" "${small[@]}" --mesh=dp=2 --plan=fsdp --save=killed --resume --steps="$steps" >out 2>&1 &&
  fail "a changed file is loaded"
grep -q "tensor '.*rank-00001.safetensors': bytes" out || fail "a changed file: $(cat out)"

((failures == 0)) && echo "all passed"
exit $((failures > 0))
