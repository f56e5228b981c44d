#!/usr/bin/env bash
# Worlds of processes, as users start them: dtrun, mpirun, by hand. They give what threads give, and
# whatever happens to a rank, every other one says which it was, soon, and nothing is left behind.
# processes_test.sh DTRUN RANK_PROGRAM
set -uo pipefail
dtrun=$PWD/$1 program=$PWD/$2
work=$(mktemp -d)
trap 'kill "${keeper:-}" 2>/dev/null; rm -rf "$work"' EXIT
failures=0

fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# The fingerprint that all lines of a run agree about; nothing if they differ.
fingerprint() { sed -n 's/.*rank [0-9]* of [0-9]*: //p' | sort -u | { mapfile -t f; ((${#f[@]} == 1)) && echo "${f[0]}"; }; }
seconds() { date +%s.%N; }
# Whether $1 to now is less than $2 seconds.
within() { awk -v a="$1" -v b="$(seconds)" -v most="$2" 'BEGIN { exit !(b - a < most) }'; }
# All processes whose command line has our marker.
left_behind() { pgrep -f -- "--marker=$marker" | wc -l; }
marker=world-$$
# Waits until a command succeeds, at most so many seconds: until SECONDS COMMAND...
until_() {
  local start
  start=$(seconds)
  while ! "${@:2}"; do
    within "$start" "$1" || return 1
    sleep 0.05
  done
}
are_left() { [[ $(left_behind) == "$1" ]]; }

# --- The bits of threads, under each launcher.
for n in 1 2 3 4 8; do
  for size in 7 4000; do
    want=$("$program" --threads=$n --size=$size --steps=3 | fingerprint)
    got=$("$dtrun" -n $n "$program" --size=$size --steps=3 | fingerprint)
    [[ -n $want && $got == "$want" ]] || fail "dtrun -n $n, size $size: $got, threads $want"
  done
done
want=$("$program" --threads=3 --steps=3 | fingerprint)
if command -v mpirun >/dev/null; then
  got=$(mpirun --allow-run-as-root --oversubscribe -n 3 "$program" --steps=3 | fingerprint)
  [[ $got == "$want" ]] || fail "mpirun -n 3: $got, threads $want"
fi
# Where a limit of addresses leaves less than arenas have: each maps its own and the others'.
for limit in 5000000 40000000 2000000000; do
  got=$("$dtrun" -n 2 sh -c "ulimit -v $limit; exec \"\$@\"" sh "$program" --steps=3 | fingerprint)
  [[ $got == "$("$program" --threads=2 --steps=3 | fingerprint)" ]] || fail "ulimit -v $limit: $got"
done
# A port that no other program is given: a dtrun keeps it for its rank 0, which does not listen.
"$dtrun" -n 1 sh -c 'echo "$DTENSOR_ADDRESS"; exec sleep 1000' >"$work/address" &
keeper=$!
is_known() { grep -q ':[0-9]*$' "$work/address"; }
until_ 30 is_known || fail "dtrun gives no address: $(cat "$work/address")"
port=$(sed 's/.*://' "$work/address")
ranks=()
for rank in 0 1 2; do  # torchrun's variables
  RANK=$rank WORLD_SIZE=3 LOCAL_RANK=$rank MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
    "$program" --steps=3 >"$work/$rank" &
  ranks+=($!)
done
wait "${ranks[@]}"
got=$(cat "$work"/[012] | fingerprint)
[[ $got == "$want" ]] || fail "by torchrun's variables: $got, threads $want"

# --- Two nodes, which are folders of one machine here.
export DTENSOR_SECRET=two-nodes
"$dtrun" -n 2 --nnodes 2 --node 1 --address "127.0.0.1:$port" "$program" --steps=3 >"$work/b" &
other=$!
"$dtrun" -n 2 --nnodes 2 --node 0 --address "127.0.0.1:$port" "$program" --steps=3 >"$work/a"
wait $other
unset DTENSOR_SECRET
got=$(cat "$work/a" "$work/b" | fingerprint)
[[ -n $got && $got == "$("$program" --threads=4 --steps=3 | fingerprint)" ]] || fail "two nodes: $got"

# --- Faults that a rank causes itself: what dtrun makes of them (faults.cc tries them at random moments,
# and what others say). DEED STATUS TEXT: what dtrun ends with, and what each of the two other ranks says.
# The time-out is also the time in which all must come: short where it is what ends the world.
deed() {
  local start status timeout=5
  [[ $3 == *' 2 s'* ]] && timeout=2
  start=$(seconds)
  "$dtrun" -n 3 --grace 5 "$program" --marker="$marker" --steps=100000 --timeout=$timeout --rank=1 \
    --at=$((RANDOM % 6 + 1)) --do="$1" >"$work/out" 2>&1
  status=$?
  [[ $status == "$2" ]] || fail "$1: status $status, not $2: $(cat "$work/out")"
  within "$start" 20 || fail "$1: took longer than 20 s"
  for rank in 0 2; do
    grep -q "^\[$rank\] error: .*$3" "$work/out" || fail "$1: rank $rank says not '$3': $(cat "$work/out")"
  done
  [[ $(left_behind) == 0 ]] || fail "$1: left $(left_behind) processes behind"
}
deed exit 7 'rank 1: its process is gone'
deed kill 137 'rank 1: its process is gone'
deed abort 134 'rank 1: its process is gone'
deed return 1 'rank 1: the dog ate it'
deed throw 1 'rank 1: threw an exception: thrown'
deed leave 1 'rank 1: returned while rank'
deed disagree 1 'ranks disagree about call'
deed stop 1 'rank 1: silent for 2 s\|rank 1: its process has given no sign of life for 2 s'
deed sleep 1 'rank 1: silent for 2 s'

# --- A rank that a signal killed counts, though another exits sooner; not those whom dtrun ends.
ends() {  # STATUS ARGUMENTS...
  "$dtrun" "${@:2}" >"$work/out" 2>&1
  local status=$?
  [[ $status == "$1" ]] || fail "dtrun ${*:2}: status $status, not $1: $(cat "$work/out")"
}
ends 137 -n 2 sh -c '[ $DTENSOR_RANK = 0 ] && exit 1; sleep 0.3; kill -9 $$'
ends 134 -n 3 sh -c 'case $DTENSOR_RANK in 0) exit 1;; 1) sleep 0.1; kill -6 $$;; 2) sleep 1; kill -9 $$;; esac'
ends 137 -n 2 sh -c '[ $DTENSOR_RANK = 0 ] && exit 1; sleep 0.3; sh -c "kill -9 \$\$"; exit $?'  # behind a shell
ends 3 -n 2 sh -c '[ $DTENSOR_RANK = 1 ] && exit 3; sleep 1; exit 1'
ends 3 --grace 0.1 -n 2 sh -c '[ $DTENSOR_RANK = 1 ] && exit 3; exec sleep 60'
# Rank 0 ends well at the moment at which another is killed.
for ((i = 0; i < 5; ++i)); do
  ends 137 -n 3 sh -c 'case $DTENSOR_RANK in 0) sleep 0.1;; 1) sleep 0.1; kill -9 $$;; 2) sleep 0.2; exit 1;; esac'
done

# --- What ranks print passes through, however much; who reads it no more disturbs nobody.
lines=$("$dtrun" -n 2 seq 1 200000 | wc -l)
[[ $lines == 400000 ]] || fail "of 400000 lines $lines came"
[[ $("$dtrun" -n 1 sh -c 'printf "no end of line"') == '[0] no end of line' ]] || fail "the last words"
lines=$("$dtrun" -n 1 sh -c 'head -c 3000000 /dev/zero | tr "\0" x' | wc -l)
[[ $lines == 3 ]] || fail "3 MB without an end of line are $lines lines"
"$dtrun" -n 1 sh -c "yes & sleep 0.3; seq 1 100000; echo end >'$work/end'" | head -1 >"$work/out"
[[ $(wc -l <"$work/out") == 1 && -f $work/end ]] || fail "a reader that stops: $(cat "$work/out")"
# A shell has what it starts in the background ignore SIGINT, and dtrun lets its ranks do so. In the background only.
hears_int() { exec env --default-signal=INT "$@"; }
hears_int "$dtrun" -n 1 yes "$marker" >/dev/null &
world=$!
begins() { pgrep -f "^yes $marker" >/dev/null; }
until_ 30 begins || fail "an endless printer does not begin"
kill -INT $world
wait $world
[[ $? == 130 ]] || fail "an endless printer does not hear of signals"

# --- Signals reach the ranks, and dtrun's death is theirs.
for signal in TERM INT KILL; do
  hears_int "$dtrun" -n 3 "$program" --marker="$marker" --steps=100000 >"$work/out" 2>&1 &
  world=$!
  until_ 30 are_left 4 || fail "SIG$signal: $(left_behind) processes begin, not 4"
  kill -$signal $world
  wait $world 2>/dev/null
  until_ 10 are_left 0 || fail "SIG$signal: left $(left_behind) processes behind"
done

# --- What a beginner does.
says() {  # TEXT COMMAND...: fails, and says so
  local text=$1
  shift
  "$@" >"$work/out" 2>&1 && fail "$*: succeeds"
  grep -q -- "$text" "$work/out" || fail "$*: says $(cat "$work/out")"
}
says 'DTENSOR_RANK is set, and DTENSOR_SIZE is not' env DTENSOR_RANK=1 "$program"
says 'set DTENSOR_ADDRESS=host:port' env RANK=1 WORLD_SIZE=2 "$program"
says 'nobody answers at 127.0.0.1' env RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
  "$program" --timeout=0.5
says 'rank 1 of 2 did not come within 0.5 s' env RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 \
  MASTER_PORT=$port "$program" --timeout=0.5
says 'set DTENSOR_SECRET' env RANK=0 WORLD_SIZE=2 MASTER_ADDR=0.0.0.0 MASTER_PORT=$port "$program"
says 'cannot be run: No such file' "$dtrun" -n 2 ./nothing
says 'are more than 1048576' "$dtrun" -n 65536 --nnodes 65536 "$program"
says 'several nodes need --address' "$dtrun" -n 2 --nnodes 2 "$program"

((failures == 0)) && echo "all passed"
exit $((failures > 0))
