#!/bin/sh
# Runs PROGRAM as RANKS processes inside a Bazel test: mpirun.sh RANKS PROGRAM [ARG...]
ranks=$1
shift
export HOME="${HOME:-$TEST_TMPDIR}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# All ranks would write the same files.
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE
# Open MPI leaks in components that it has unloaded at the end, where nothing says that it is they.
export ASAN_OPTIONS="detect_leaks=0:$ASAN_OPTIONS"
# Ranks yield the core when they wait: there may be fewer cores than ranks.
exec mpirun --oversubscribe --mca mpi_yield_when_idle 1 -n "$ranks" "$@"
