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

# What it was told to ignore, ranks ignore as well: nohup dtrun ... & outlives its terminal, and Ctrl-C is
# not for what runs in the background.
ignored() { sed -n 's/.*SigIgn:[[:space:]]*//p' "$1"; }  # a bit for each signal, from SIGHUP on
(trap '' HUP INT QUIT; "$dtrun" -n 2 cat /proc/self/status >out)
for mask in $(ignored out); do
  (((16#$mask & 7) == 7)) || fail "of HUP, INT and QUIT ranks ignore $mask"
done
(trap - HUP INT QUIT TERM; env --default-signal=HUP,INT,QUIT "$dtrun" -n 1 cat /proc/self/status >out)
(((16#$(ignored out) & 7) == 0)) || fail "ranks ignore $(ignored out), and dtrun does not"
(trap '' HUP; exec "$dtrun" -n 1 sh -c 'echo up; sleep 1; echo alive' >lives) &
world=$!
for ((i = 0; i < 600; ++i)); do [[ -f lives ]] && grep -q up lives && break; sleep 0.1; done
kill -HUP $world
wait $world || fail "SIGHUP, which is ignored, ends dtrun with $?"
grep -q alive lives || fail "SIGHUP, which dtrun ignores, ends its ranks: $(cat lives)"

((failures == 0)) || exit 1
echo "dtrun speaks, and ignores what it is told to"
