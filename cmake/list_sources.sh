#!/bin/bash
# list_sources.sh FOLDER FILE...: prints what cmake/sources.cmake must be.
#
# FOLDER has the answers to the queries of BUILD.bazel, for each library: NAME_srcs, NAME_hdrs and NAME_absl.
# FILEs are all headers. What stands in a folder called cuda is compiled with CUDA, but for X_stub.cc,
# which stands for X.cc without; in one called nccl or cudnn, with NCCL or cuDNN besides.
set -euo pipefail
export LC_ALL=C
folder=$1
shift

paths() { sed 's|^//||; s|^:||; s|:|/|' "$1" | sort; }

# What a program sees that includes the headers on stdin: these, and what they include, and so on.
reached() {
  local seen now
  now=$(sort -u)
  until [[ $now == "${seen-}" ]]; do
    seen=$now
    now=$({
      echo "$seen"
      xargs sed -n 's|^#include "dtensor/\(.*\)"$|\1|p' <<<"$seen" |
        sed '/^runtime\/\|^parallel_plans\//!s|^|dtensor/|'
    } | sort -u)
  done
  echo "$now"
}

list() {  # VARIABLE, lines on stdin
  printf 'set(%s\n' "$1"
  sed 's|^|  |'
  echo ')'
}

all=$(printf '%s\n' "$@" | sort)
listed=
echo "# What each library is made of. //cmake:sources_test sees that it is what Bazel's targets are made of,"
echo "# and says what to change. No globs: a file is in the library because a list says so."
for name in algebra dtensor parallel_plans mpi; do
  variable=DTENSOR_${name^^}
  echo
  paths "$folder/${name}_srcs" | grep '\.cc$' | grep -v '/cuda/\|/nccl/' | list "${variable}_SOURCES"
  echo "# Installed: those for users, and what these include."
  now=$(paths "$folder/${name}_hdrs" | reached | comm -12 - <(echo "$all") | comm -23 - <(sort -u <<<"$listed"))
  listed+=$'\n'$now
  list "${variable}_HEADERS" <<<"$now"
  sed -n 's|.*absl/algorithm:container|absl::algorithm_container|; s|^@com_google_absl//.*:|absl::|p' \
    "$folder/${name}_absl" | sort | list "${variable}_ABSL"
done
echo
echo "# One or the other, by DTENSOR_CUDA."
cuda=$(paths "$folder/dtensor_srcs" | grep '/cuda/.*\.cc$\|/cuda/.*\.cu$' | grep -v /cudnn/)
grep -v '_stub\.cc$' <<<"$cuda" | list DTENSOR_CUDA_SOURCES
# What is asked of a program's device needs no CUDA.
grep '_stub\.cc$\|/rank_device\.cc$' <<<"$cuda" | list DTENSOR_NO_CUDA_SOURCES
# The same by what else is there. Which steps are cuDNN's is a choice that needs no cuDNN.
for library in cudnn nccl; do
  all_of_it=$(paths "$folder/dtensor_srcs" | grep "/$library/.*\.cc$")
  grep -v '_stub\.cc$' <<<"$all_of_it" | list "DTENSOR_${library^^}_SOURCES"
  grep '_stub\.cc$\|_choice\.cc$' <<<"$all_of_it" | list "DTENSOR_NO_${library^^}_SOURCES"
done
