#!/usr/bin/env bash
# What dtrun says about its own command line, whatever started it. dtrun_test.sh DTRUN
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

((failures == 0)) || exit 1
echo "dtrun speaks"
