#!/bin/sh
# Runs PROGRAM as RANKS processes inside a Bazel test: mpirun.sh RANKS PROGRAM [ARG...]
ranks=$1
shift
export HOME="${HOME:-$TEST_TMPDIR}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Ranks yield the core when they wait: there may be fewer cores than ranks.
exec mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n "$ranks" "$@"
