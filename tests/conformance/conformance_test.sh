#!/bin/bash
# A suite whose ranks are processes makes the same assertions as on threads, and all that its ranks
# return has the same bits.
# conformance_test.sh DTRUN RANKS WAYS PROGRAM FILTER [ARG...]: WAYS are of `dtrun` (memory of one host),
# `tcp` (by dtrun too, messages alone), `pairs` (two and two share memory; of two ranks none), `mpirun`
# (memory of one host) and `mpi` (by mpirun too, messages alone, of a PROGRAM that links MPI), with commas
# between them; or `nccl` (by dtrun, a GPU for each) and `cuda`: threads whose ranks share the GPUs there are, twice, with the same bits. FILTER is --gtest_filter=..., each of whose patterns must be of some test.
set -uo pipefail
dtrun=$1 ranks=$2 ways=${3//,/ }
shift 3
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE GTEST_OUTPUT  # which processes would write together
gpus=${DTENSOR_FAKE_GPUS-}
unset "${!DTENSOR_@}"
[[ -z $gpus ]] || export DTENSOR_FAKE_GPUS=$gpus
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="${HOME:-$work}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

fail() { echo "FAILED: $*"; exit 1; }

# What exchanges of a rank go by.
way_of() {  # WAY RANK
  case $1 in
    dtrun | mpirun) echo memory ;;
    tcp) echo TCP ;;
    mpi) echo MPI ;;
    nccl) echo NCCL ;;
    cuda) echo threads ;;
    pairs) ((ranks == 2 || ($2 == ranks - 1 && ranks % 2 == 1))) && echo TCP || echo "memory and TCP" ;;
  esac
}

# run NAME COMMAND...: with digests in $work/NAME.
run() {
  local name=$1 begin
  shift
  begin=$(date +%s)
  mkdir "$work/$name"
  if ! DTENSOR_SUITE_DIGESTS=$work/$name "$@" >"$work/out" 2>&1; then
    tail -n 200 "$work/out"
    echo "FAILED on $ranks ranks: $name"
    exit 1
  fi
  echo "$name: $(($(date +%s) - begin)) s"
}

patterns=${2#--gtest_filter=}
left_out=
[[ $patterns == *-* ]] && left_out=-${patterns#*-}
IFS=: read -ra each <<<"${patterns%%-*}"
for pattern in "${each[@]}"; do
  tests=$("$1" "--gtest_filter=$pattern$left_out" --gtest_list_tests | grep -c '^ ')
  ((tests > 0)) || fail "no test is $pattern"
done

[[ $ways == cuda || $ways == nccl ]] && export DTENSOR_SUITE_DEVICE=cuda
mpirun=(mpirun --oversubscribe --tag-output --mca mpi_yield_when_idle 1 -n "$ranks")
run threads env "DTENSOR_SUITE_RANKS=$ranks" "$@"
grep -q 'functions$' "$work/threads/0" || fail "nothing runs on $ranks ranks"
for way in $ways; do
  case $way in
    dtrun) run dtrun "$dtrun" -n "$ranks" "$@" ;;
    nccl) run nccl "$dtrun" -n "$ranks" "$@" ;;
    tcp) run tcp env DTENSOR_TRANSPORT=tcp "$dtrun" -n "$ranks" "$@" ;;
    pairs)
      run pairs "$dtrun" -n "$ranks" sh -c 'DTENSOR_HOST=$((DTENSOR_RANK / (DTENSOR_SIZE == 2 ? 1 : 2)))
        export DTENSOR_HOST; exec "$0" "$@"' "$@"
      ;;
    mpirun) run mpirun "${mpirun[@]}" "$@" ;;
    cuda) run cuda env "DTENSOR_SUITE_RANKS=$ranks" "$@" ;;
    mpi) run mpi "${mpirun[@]}" -x DTENSOR_TRANSPORT=mpi "$@" ;;
    *) fail "no such way: $way" ;;
  esac
  writers=$ranks
  [[ $way != cuda ]] || writers=1
  for ((rank = 0; rank < writers; ++rank)); do
    diff "$work/threads/0" "$work/$way/$rank" ||
      fail "rank $rank of $ranks processes (>) has other bits than threads (<): $way"
    diff <(way_of "$way" "$rank") "$work/$way/$rank.way" ||
      fail "rank $rank of $ranks goes another way (>) than it should (<): $way"
  done
done
echo "the bits of threads on $ranks processes:"
cat "$work/threads/0"
