#!/usr/bin/env bash
# Worlds under mpirun, of a program that links MPI and of one that does not. They give what threads
# give, and a rank that dies is named by every other one.
# mpi_test.sh RANK_PROGRAM RANK_PROGRAM_WITH_MPI RANK_PROGRAM_WITH_STUCK_MPI [FAULTS]: the last is
# how often a rank is killed.
set -uo pipefail
tcp=$PWD/$1 mpi=$PWD/$2 stuck=$PWD/$3 times=${4:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
export HOME="${HOME:-$work}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Messages alone: without it, ranks of one host share memory.
export DTENSOR_TRANSPORT=mpi
# Ranks yield the core when they wait: there may be fewer cores than ranks.
mpirun=(mpirun --oversubscribe --mca mpi_yield_when_idle 1)
recovery=("${mpirun[@]}" --enable-recovery)

fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# The fingerprint that all lines of a run agree about; nothing if they differ.
fingerprint() { sed -n 's/.*rank [0-9]* of [0-9]*: //p' | sort -u | { mapfile -t f; ((${#f[@]} == 1)) && echo "${f[0]}"; }; }

# --- The bits of threads.
for n in 1 2 3 4 8; do
  for size in 7 4000; do
    want=$("$tcp" --threads=$n --size=$size --steps=3 | fingerprint)
    got=$("${mpirun[@]}" -n $n "$mpi" --size=$size --steps=3 | fingerprint)
    [[ -n $want && $got == "$want" ]] || fail "mpirun -n $n, size $size: $got, threads $want"
  done
done
want=$("$tcp" --threads=3 --steps=3 --size=4000 | fingerprint)
same() {  # WHAT COMMAND...
  local what=$1 got
  shift
  "$@" --steps=3 --size=4000 >"$work/out" 2>"$work/err" || fail "$what: mpirun ends with $?"
  got=$(fingerprint <"$work/out")
  [[ $got == "$want" ]] || fail "$what: $got, threads $want: $(cat "$work/err")"
}
same "mpirun without MPI" env -u DTENSOR_TRANSPORT "${mpirun[@]}" -n 3 "$tcp"
same "memory of one host" env -u DTENSOR_TRANSPORT "${mpirun[@]}" -n 3 "$mpi"
same "memory of two hosts, and MPI" env -u DTENSOR_TRANSPORT "${mpirun[@]}" -n 3 \
  sh -c 'DTENSOR_HOST=$((OMPI_COMM_WORLD_RANK / 2)) exec "$0" "$@"' "$mpi"
same "MPI over TCP" "${mpirun[@]}" --mca btl tcp,self -n 3 "$mpi"
# MPI is done with short messages before the long ones that came first.
"${mpirun[@]}" --mca btl tcp,self -n 2 "$mpi" --uneven --steps=1 >"$work/out" 2>&1 ||
  fail "long and short messages in turn: $(cat "$work/out")"
# An MPI that cannot start is not missed by those who do not want it, and by nobody else.
same "DTENSOR_TRANSPORT=tcp" "${mpirun[@]}" -x DTENSOR_TRANSPORT=tcp --mca pml none -n 3 "$mpi"
"${mpirun[@]}" --mca pml none -n 3 "$mpi" >"$work/out" 2>&1 && fail "MPI is not used under mpirun"
# Nobody says where rank 0 listens: told over MPI.
same "no address" "${mpirun[@]}" -n 3 env -u OMPI_COMM_WORLD_LOCAL_SIZE "$mpi"
# MPI is finalized though a tensor is left: mpirun fails a run where it is not.
same "a tensor that is kept" "${mpirun[@]}" -n 3 "$mpi" --keeps
same "a tensor that is kept, and no address" "${mpirun[@]}" -n 3 \
  env -u OMPI_COMM_WORLD_LOCAL_SIZE "$mpi" --keeps

# --- Errors of ranks.
# COUNT TEXT COMMAND...: that many ranks say so, and no other says anything else. (With
# --enable-recovery mpirun itself ends well, whatever its processes end with.)
says() {
  local count=$1 text=$2
  shift 2
  run timeout 100 "$@"
  says_are "$count" "$text" "$*"
}
run() { "$@" 2>&1 | keep; }
# What ranks say, and the beginning of all: MPI may write gigabytes, before that as well.
keep() {
  tee >(head -c 20000 >"$work/all"; cat >/dev/null) |
    grep -a --line-buffered 'error: \|rank .*: -\?0x' >"$work/out"
}
says_are() {  # COUNT TEXT WHAT: the last command's
  (($(grep -c -- "error: .*$2" "$work/out") == $1 && $(wc -l <"$work/out") == $1)) ||
    fail "$3: says $(head -c 20000 "$work/out"), and in all $(cat "$work/all")"
}
says 3 'DTENSOR_TRANSPORT is rdma' "${recovery[@]}" -n 3 -x DTENSOR_TRANSPORT=rdma "$mpi"
says 3 'rank 1: the dog ate it' "${recovery[@]}" -n 3 "$mpi" --rank=1 --at=2 --do=return
says 3 'rank 1: returned while rank' "${recovery[@]}" -n 3 "$mpi" --rank=1 --at=2 --do=leave
says 3 'ranks disagree about call' "${recovery[@]}" -n 3 "$mpi" --rank=1 --at=2 --do=disagree
says 2 'go by .*mpi.*TCP\|go by TCP.*mpi' "${recovery[@]}" \
  -n 1 env DTENSOR_TRANSPORT=tcp "$mpi" : -n 1 "$mpi"

# The MPI that has started is another than the launcher's, or none: worlds of one.
says 3 'MPI has started as rank . of 3, where OpenMPI says . of 4' "${recovery[@]}" -n 3 \
  env -u OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_SIZE=4 "$mpi"

says 1 'rank 1 of 2 did not come within 1 s' "${recovery[@]}" \
  -n 1 "$mpi" --timeout=1 : -n 1 sleep 5
says 1 'not all ranks have initialized MPI within 1 s' "${recovery[@]}" \
  -n 1 sleep 5 : -n 1 env -u OMPI_COMM_WORLD_LOCAL_SIZE "$mpi" --timeout=1

# --- Killed, at any moment; over shared memory and over TCP, of which OpenMPI's raises SIGPIPE.
for ((i = 0; i < times; ++i)); do
  for btl in vader,self tcp,self; do
    says 3 'rank 1: its process is gone' "${recovery[@]}" --mca btl $btl -n 4 "$mpi" --steps=100000 \
      --size=$((RANDOM % 2 * 60000 + 50)) --rank=1 --at=$((RANDOM % 20)) --do=kill
  done
done
says 3 'rank 1: its process is gone' "${recovery[@]}" -n 4 "$mpi" --steps=100000 --rank=1 --at=3 --do=exit
# mpirun waits for the one that sleeps: it is ended when the others have said theirs.
"${recovery[@]}" -n 3 "$mpi" --steps=100000 --timeout=2 --rank=1 --at=3 --do=sleep > >(keep) 2>&1 &
world=$!
for ((i = 0; i < 600; ++i)); do
  (($(grep -c 'error: .*rank 1: silent for 2 s' "$work/out") == 2)) && break
  sleep 0.1
done
kill $world
wait $world
says_are 2 'rank 1: silent for 2 s' "a rank that sleeps"

# --- A rank that MPI does not let go.
sticks() {  # SECONDS FUNCTION CALL TEXT COMMAND...: rank 2, in that call; all three say so
  local settings=(STUCK_RANK=2 STUCK_SECONDS="$1" STUCK_IN="$2" STUCK_CALL="$3") text=$4
  shift 4
  says 3 "$text" env "${settings[@]}" "${recovery[@]}" -n 3 "$@" "$stuck" --steps=100000 --timeout=2
}
is_ended() {  # COUNT TEXT: that many are, and say so
  (($(grep -c "($2 has not returned for 5 s; .* DTENSOR_TRANSPORT=tcp" "$work/out") == $1)) ||
    fail "not $1 ended in $2: $(cat "$work/out")"
}
sticks 1000 MPI_Improbe 100 'rank 2: silent for 2 s'
is_ended 1 'rank 2: MPI_Improbe'
sticks 1000 MPI_Test 1 'not all ranks of the communicator have called JoinWorld within 2 s' \
  env -u OMPI_COMM_WORLD_LOCAL_SIZE
is_ended 1 'joining the world: MPI_Test'
# It returns in time: an error as all others have.
sticks 4 MPI_Improbe 100 'rank 2: silent for 2 s'
is_ended 0 'rank 2: MPI_Improbe'

# A world of memory alone, which came together by MPI, fails: MPI_Finalize would wait for the dead.
start=$SECONDS
says 2 'rank 1: its process is gone' env -u DTENSOR_TRANSPORT "${recovery[@]}" -n 3 \
  env -u OMPI_COMM_WORLD_LOCAL_SIZE "$mpi" --steps=100000 --rank=1 --at=3 --do=kill
((SECONDS - start < 40)) || fail "ranks of a world that failed end after $((SECONDS - start)) s"

((failures == 0)) && echo "all passed"
exit $((failures > 0))
