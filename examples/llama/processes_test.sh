#!/usr/bin/env bash
# The program on processes is the program on threads: the same losses, tensors and report, written
# once. A mistake is told once, and no rank ends well. processes_test.sh TRAIN DTRUN
set -uo pipefail
train=$PWD/$1 dtrun=$PWD/$2
cd "$TEST_TMPDIR" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
for i in $(seq 1 3000); do echo "in the beginning was line $i, and the line was $((i * i % 97))"; done >text
small=(--dim=32 --layers=1 --seq=16 --steps=3 --batch=4 --text=text)

# What is not of the machine's speed, and not of its memory: messages take staging.
plain() { sed '/tokens_per_second/d; /"peak_bytes_per_rank"/,/}/d; /^speed /d; /^peak memory /d' "$@"; }

# like_threads N ARG...
like_threads() {
  local n=$1
  shift
  rm -f threads.* processes.*
  "$train" "${small[@]}" "$@" --compare=2 --report=threads.json --dump=threads.dump >threads.out 2>threads.err ||
    fail "on threads: $*: $(cat threads.err)"
  "$dtrun" -n "$n" "$train" "${small[@]}" "$@" --compare=2 --report=processes.json --dump=processes.dump \
    >processes.out 2>processes.err || fail "on $n processes: $*: $(cat processes.err)"
  grep -v '^\[0\] ' processes.out processes.err && fail "$n processes: other ranks than the first print"
  cmp threads.dump processes.dump || fail "$n processes, $*: weights, losses or gradients differ"
  for file in json out err; do
    diff <(plain threads.$file) <(sed 's/^\[0\] //' processes.$file | plain) || fail "$n processes, $*: .$file differs"
  done
  [[ $(grep -c . threads.out) -ge 4 ]] || fail "nothing was printed"
}
like_threads 2 --mesh=tp=2
like_threads 2 --mesh=dp=2 --plan=fsdp --dtype=bf16
like_threads 4 --mesh=dp=2,tp=2
like_threads 4 --mesh=cp=2,tp=2 --plan=cp+tp+sp

# Each rank with the text of its number, and its status.
cat >rank <<'SCRIPT'
#!/usr/bin/env bash
texts=($TEXTS)
"$@" --text="${texts[DTENSOR_RANK]:-text}"
status=$?
echo "ended $status"
exit $status
SCRIPT
chmod +x rank

# once WORDS N ARG...: N processes end with status 2, and one of them says why, in a line.
once() {
  local words=$1 n=$2 status
  shift 2
  "$dtrun" -n "$n" ./rank "$train" "${small[@]:0:4}" "$@" >out 2>err
  status=$?
  [[ $status == 2 && $(grep -c 'ended 2$' out) == "$n" ]] || fail "'$words': status $status, and $(cat out)"
  [[ $(wc -l <err) == 1 && $(<err) == "[0] train: "*"$words"* ]] || fail "not once '$words': $(cat err)"
}
export TEXTS=""
once '["dp"=2, "tp"=4] has 8 ranks, and 4 processes were started; start 8' 4 --mesh=dp=2,tp=4
once "axis 'xp'" 4 --mesh=xp=4
once 'there is no flag --colour' 2 --colour=red
once 'there is no "tpp"' 2 --mesh=tp=2 --plan=tpp
once '--report: cannot write' 2 --mesh=tp=2 --report=/nowhere/report.json
once 'MiB are free' 2 --mesh=dp=2 --batch=1000000000
TEXTS="text nowhere text text" once "rank 1: --text: " 4 --mesh=dp=4
TEXTS="nowhere text nowhere" once "ranks 0, 2: --text: " 3 --mesh=tp=3 --allow-uneven
sed 's/line 7,/line 8,/' text >other
TEXTS="text text other text" once "rank 2 has another text than rank 0" 4 --mesh=dp=4

"$dtrun" -n 2 "$train" --help >out 2>err || fail "--help fails"
[[ $(grep -c -- '--mesh' out) == "$("$train" --help | grep -c -- --mesh)" ]] || fail "--help is printed twice"

# A rank that dies is named by the other. It is killed once rank 0 has told of a step.
cat >dying <<'SCRIPT'
#!/usr/bin/env bash
if ((DTENSOR_RANK == 1)); then
  (
    for _ in $(seq 1 600); do grep -q '^\[0\] step ' err && break; sleep 0.1; done
    kill -KILL $$
  ) &
fi
exec "$@"
SCRIPT
chmod +x dying
"$dtrun" -n 2 ./dying "$train" --mesh=tp=2 --text=text --seq=16 --steps=1000000 >out 2>err
status=$?
# Mostly 137; the first to end, on a busy machine, may be the one that says so.
[[ $status != 0 && $(grep -c '^\[0\] train: rank 1: its process is gone' err) == 1 ]] ||
  fail "killed: status $status: $(cat err)"

((failures == 0)) && echo "all passed"
exit $((failures > 0))
