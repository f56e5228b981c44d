#!/usr/bin/env bash
# What dtrun says about its own command line, whatever started it, and which signals it leaves alone.
# dtrun_test.sh DTRUN
set -uo pipefail
dtrun=$PWD/$1
cd "$TEST_TMPDIR" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }

# It may be started by a rank, of torchrun's or its own, and is none.
for rank in "RANK=1 WORLD_SIZE=2" "DTENSOR_RANK=1 DTENSOR_SIZE=2" "SLURM_PROCID=1 SLURM_NTASKS=2" "NONE="; do
  read -ra variables <<<"$rank"
  env "${variables[@]}" "$dtrun" --bogus >out 2>err
  [[ $? == 2 ]] || fail "$rank: --bogus is taken"
  grep -q '^dtrun: there is no flag --bogus' err || fail "$rank: --bogus: $(cat out err)"
  env "${variables[@]}" "$dtrun" --help >out 2>err || fail "$rank: --help fails"
  grep -q -- '--nnodes' out || fail "$rank: --help prints $(cat out err)"
done

# The port that it chose is its own until all have ended, by a socket that no rank has; of one that it was
# told it has none.
sockets() { grep -c 'socket:' "$1"; }
"$dtrun" -n 2 sh -c '[ $DTENSOR_RANK = 1 ] || ls -l /proc/$PPID/fd; ls -l /proc/$$/fd >fds.$DTENSOR_RANK' >out
[[ $(sockets out) == 1 ]] || fail "dtrun does not keep its port: $(cat out)"
[[ $(cat fds.0 fds.1 | sockets -) == 0 ]] || fail "ranks have dtrun's socket: $(cat fds.0 fds.1)"
"$dtrun" -n 1 --address 127.0.0.1:29500 sh -c 'ls -l /proc/$PPID/fd' >out
[[ $(sockets out) == 0 ]] || fail "dtrun has a port of its own beside --address: $(cat out)"

# What it was told to ignore, ranks ignore as well: nohup dtrun ... & outlives its terminal, and Ctrl-C is
# not for what runs in the background.
ignored() { sed -n 's/.*SigIgn:[[:space:]]*//p' "$1"; }  # a bit for each signal, from SIGHUP on
(trap '' HUP INT QUIT; "$dtrun" -n 2 cat /proc/self/status >out)
for mask in $(ignored out); do
  (((16#$mask & 7) == 7)) || fail "of HUP, INT and QUIT ranks ignore $mask"
done
(trap - HUP INT QUIT TERM; env --default-signal=HUP,INT,QUIT "$dtrun" -n 1 cat /proc/self/status >out)
(((16#$(ignored out) & 7) == 0)) || fail "ranks ignore $(ignored out), and dtrun does not"
(trap '' HUP; exec "$dtrun" -n 1 sh -c \
  'echo up; until [ -f hung_up ]; do sleep 0.1; done; sleep 1; echo alive' >lives) &
world=$!
for ((i = 0; i < 600; ++i)); do [[ -f lives ]] && grep -q up lives && break; sleep 0.1; done
kill -HUP $world || fail "dtrun is not there to hear SIGHUP: $(cat lives)"
touch hung_up
wait $world || fail "SIGHUP, which is ignored, ends dtrun with $?"
grep -q alive lives || fail "SIGHUP, which dtrun ignores, ends its ranks: $(cat lives)"

# Ctrl-Z stops ranks as well, and fg lets them go on.
state() { sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status"; }
awaits() {  # PROCESS STATES
  for ((i = 0; i < 100; ++i)); do [[ $(state "$1") == [$2] ]] && return; sleep 0.1; done
  fail "process $1 is in state $(state "$1"), not one of $2"
}
(exec env --default-signal=TSTP "$dtrun" -n 1 sh -c \
  'echo $$ >process; until [ -f go_on ]; do sleep 0.1; done; echo done' >stops) &
world=$!
for ((i = 0; i < 600; ++i)); do [[ -s process ]] && break; sleep 0.1; done
kill -TSTP $world
awaits $world T
awaits "$(cat process)" T
kill -CONT $world
awaits "$(cat process)" RSD
touch go_on
wait $world || fail "after SIGTSTP and SIGCONT dtrun ends with $?"
grep -q done stops || fail "after SIGTSTP and SIGCONT a rank prints $(cat stops)"

# A program has its arguments as they were written. is ARGUMENT... === WHAT IT PRINTS...
is() {
  local given=() wanted=()
  while [[ $1 != === ]]; do given+=("$1"); shift; done
  shift
  [[ $# == 0 ]] || wanted=("$@")
  "$dtrun" -n 1 "${given[@]}" >out 2>err || fail "${given[*]}: $(cat err)"
  printf '<%s>' "${wanted[@]}" >wanted
  [[ $(cat out) == "[0] $(cat wanted)" ]] || fail "of ${given[*]} a program gets $(cat out)"
}
is printf '<%s>' --from '[S(0),R]' --to R === --from '[S(0),R]' --to R
is printf '<%s>' '[dp] []' === '[dp] []'
is printf '<%s>' '[]' x '[a,b]' '' "[" === '[]' x '[a,b]' '' "["
is -- printf '<%s>' a -n 5 --a_b --grace nan === a -n 5 --a_b --grace nan
is printf '<%s>' -- a -- b === -- a -- b
is -- printf '<%s>' -- --help === -- --help
"$dtrun" -n 2 bash -c '[ -d / ] && [ $# == 1 ]' name '[1,2]' >out 2>err || fail "bash -c [: $(cat out err)"
for none in "" "--" "-n 2" "-n 2 --"; do
  read -ra words <<<"$none"
  "$dtrun" "${words[@]}" >out 2>err
  [[ $? == 2 ]] || fail "'$none' starts something: $(cat out)"
  grep -q '^dtrun: there is no program to start' err || fail "'$none': $(cat err)"
done

# Numbers are decimal, and finite.
[[ $("$dtrun" -n 010 echo x | wc -l) == 10 ]] || fail "-n 010 is not 10"
refuses() {  # WORDS ARGUMENT...: is refused with a line that has these words
  timeout 60 "$dtrun" "${@:2}" true >out 2>err
  [[ $? == 2 ]] || fail "${*:2} is taken: $(cat out err)"
  grep -qF -- "$1" err || fail "${*:2}: $(cat err)"
}
refuses '"0x2" is no whole number' -n 0x2
refuses '"nan" is no finite number' --grace nan
refuses '--grace: -1 is less than 0 seconds' --grace -1
refuses '--ranks: 0 is not from 1 to 65536' -n 0
refuses '--nnodes: 65537 is not from 1 to 65536' --nnodes 65537

# After a failure all start again, as often as was said: in a world of their own, when all before have ended.
rm -rf begun.* worlds
again() {  # RESTARTS FAILURES: a program whose rank 1 fails that often
  rm -rf begun.*
  timeout 60 "$dtrun" -n 2 --grace 0.1 --max-restarts "$1" bash -c '
    [[ $DTENSOR_RANK == 0 ]] && { echo "$DTENSOR_ADDRESS $DTENSOR_JOB $DTENSOR_SECRET" >>worlds; sleep 0.3; exit; }
    for ((k = 1; k <= $1; ++k)); do mkdir begun.$k 2>/dev/null && exit $((40 + k)); done; exit 0' rank "$2" >out 2>err
}
again 3 2 || fail "two failures, three restarts: $? $(cat err)"
[[ $(cat err) == "dtrun: rank 1 ended with status 41; all ranks start again, 1 of 3
dtrun: rank 1 ended with status 42; all ranks start again, 2 of 3" ]] || fail "two restarts: $(cat err)"
[[ $(sort -u worlds | wc -l) == 3 && $(cut -d' ' -f2 worlds | sort -u | wc -l) == 3 ]] || fail "worlds: $(cat worlds)"
again 1 2
[[ $? == 42 && $(wc -l <err) == 1 ]] || fail "more failures than restarts: $(cat err)"
again 0 1
[[ $? == 41 && ! -s err ]] || fail "no restart was asked for: $(cat err)"
for ends in TERM INT; do  # who tells it to end means it
  rm -f up
  env --default-signal=INT,TERM timeout 60 "$dtrun" -n 1 --max-restarts 5 bash -c 'touch up; while :; do sleep 0.05; done' >out 2>err &
  world=$!
  until [[ -f up ]]; do sleep 0.05; done
  kill -"$ends" $world
  wait $world
  [[ ! -s err ]] || fail "after SIG$ends: $(cat err)"
done
# A restart leaves nothing open of ranks whose pipes something that they left behind has still.
(ulimit -n 40; timeout 60 "$dtrun" -n 1 --max-restarts 30 bash -c 'setsid sleep 8 & exit 3') >out 2>err
[[ $? == 3 && $(wc -l <err) == 30 ]] || fail "30 restarts with 40 open files: $(tail -n 2 err)"

# Nobody reads what it says of restarts: it waits, and ends without another one when it is told to.
rm -f released
mkfifo stuck
(exec 3<stuck; until [[ -f released ]]; do sleep 0.1; done) &
"$dtrun" -n 1 --max-restarts 100000 bash -c 'echo >>begun; exit 3' 2>stuck &
world=$!
before=-1 now=0
until ((now > 0 && now == before)); do before=$now; sleep 1; now=$(cat begun 2>/dev/null | wc -l); done
kill -TERM $world
wait $world
[[ $? == 3 && $(wc -l <begun) == "$now" ]] || fail "it starts ranks after SIGTERM: $now, $(wc -l <begun)"
touch released
rm stuck

# Ranks that ignore what tells them to end are killed by a second signal, but not by the first, twice.
rm -f up
env --default-signal=INT,TERM "$dtrun" -n 2 bash -c 'trap "" INT TERM; touch up; while :; do sleep 0.05; done' >out 2>err &
world=$!
until [[ -f up ]]; do sleep 0.05; done
kill -INT $world
sleep 0.3
kill -INT $world
sleep 1.5
kill -0 $world 2>/dev/null || fail "ranks do not outlive one Ctrl-C that came twice"
kill -INT $world
wait $world
[[ $? == 137 ]] || fail "a second Ctrl-C does not kill: $(cat out err)"
rm -f up.*  # the status is that of the rank that failed by itself
env --default-signal=INT,TERM "$dtrun" -n 2 --grace 30 bash -c '
  ((DTENSOR_RANK == 1)) && trap "" INT || trap "exit 3" INT
  touch up.$DTENSOR_RANK; while :; do sleep 0.05; done' >out 2>err &
world=$!
until [[ -f up.0 && -f up.1 ]]; do sleep 0.05; done
kill -INT $world
sleep 1.5
kill -INT $world
wait $world
[[ $? == 3 ]] || fail "the status is lost to the second Ctrl-C: $(cat out err)"
refuses '--max-restarts: -1 is less than 0' --max-restarts -1

# It says what to raise where it has no pipes.
(ulimit -n 9; "$dtrun" -n 8 true) >out 2>err && fail "8 ranks by 9 open files"
grep -q 'no pipe for .*: Too many open files; start fewer ranks, or raise .*(ulimit -n)' err ||
  fail "no pipe: $(cat out err)"

# The last words of a rank, where something that it left behind has its pipe still.
"$dtrun" -n 2 sh -c 'setsid sleep 20 & printf "last words"' >out
[[ $(sort out) == $'[0] last words\n[1] last words' ]] || fail "last words without an end of line: $(cat out)"

# Nobody takes what ranks print: dtrun ends all the same when a rank has failed, or it is told to. The reader
# stays until then.
stuck() {  # COMMAND...: its status, while nobody reads what it prints
  local status
  rm -f released
  mkfifo stuck
  (exec 3<stuck; until [[ -f released ]]; do sleep 0.1; done) &
  timeout 60 "$@" >stuck
  status=$?
  touch released
  rm stuck
  return $status
}
stuck "$dtrun" -n 2 --grace 1 sh -c '[ $DTENSOR_RANK = 1 ] && exit 3; exec yes'
[[ $? == 3 ]] || fail "a rank's status is lost while nobody reads, or dtrun does not end: $?"
stuck sh -c '"$0" -n 2 sh -c "touch up.\$DTENSOR_RANK; exec yes" & dtrun=$!
  until [ -f up.0 ] && [ -f up.1 ]; do sleep 0.1; done; kill $dtrun; wait $dtrun' "$dtrun"
[[ $? == 143 ]] || fail "SIGTERM does not end dtrun while nobody reads: $?"

((failures == 0)) || exit 1
echo "dtrun speaks, and ignores what it is told to"
