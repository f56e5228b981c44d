#!/bin/bash
# A suite whose ranks are processes makes the same assertions as on threads, and all that its ranks
# return has the same bits.
# conformance_test.sh DTRUN RANKS WAYS PROGRAM [ARG...]: WAYS are of `dtrun` (memory of one host), `tcp`
# (by dtrun too, messages alone), `pairs` (two and two share memory) and `mpirun` (left out where there
# is none), with commas between them.
set -uo pipefail
dtrun=$1 ranks=$2 ways=${3//,/ }
shift 3
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE GTEST_OUTPUT  # which processes would write together
unset DTENSOR_TRANSPORT
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="${HOME:-$work}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

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

run threads env "DTENSOR_SUITE_RANKS=$ranks" "$@"
grep -q 'functions$' "$work/threads/0" || { echo "FAILED: nothing runs on $ranks ranks"; exit 1; }
for way in $ways; do
  case $way in
    dtrun) run dtrun "$dtrun" -n "$ranks" "$@" ;;
    tcp) run tcp env DTENSOR_TRANSPORT=tcp "$dtrun" -n "$ranks" "$@" ;;
    pairs)
      run pairs "$dtrun" -n "$ranks" sh -c 'DTENSOR_HOST=$((DTENSOR_RANK / 2)) exec "$0" "$@"' "$@"
      ;;
    mpirun)
      command -v mpirun >/dev/null || { echo "no mpirun here"; continue; }
      run mpirun mpirun --oversubscribe --tag-output -n "$ranks" "$@"
      ;;
    *) echo "FAILED: no such way: $way"; exit 1 ;;
  esac
  for ((rank = 0; rank < ranks; ++rank)); do
    diff "$work/threads/0" "$work/$way/$rank" && continue
    echo "FAILED: rank $rank of $ranks processes (>) has other bits than threads (<): $way"
    exit 1
  done
done
echo "the bits of threads on $ranks processes:"
cat "$work/threads/0"
