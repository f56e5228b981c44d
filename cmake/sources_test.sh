#!/bin/bash
# sources_test.sh SOURCES LISTED: the lists that CMake reads are those of Bazel's targets, and each
# header that is installed says what leaves a shared library.
set -u
bad=0
if ! diff -U 3 --label "$1" --label "what Bazel's targets have" "$1" "$2"; then
  echo
  echo "$1 is not what Bazel's targets are made of: add the lines with +, remove those with -. Or:"
  echo "  bazel build //cmake:listed && cp bazel-bin/cmake/listed.cmake $1"
  bad=1
fi
while read -r header; do
  [[ -s $header ]] || { echo "there is no $header to look at"; exit 1; }
  grep -q '^namespace dtensor' "$header" || continue
  echo "$header is installed: let it include dtensor/runtime/core/export.h and say 'namespace DTENSOR_EXPORT dtensor {'"
  bad=1
done < <(sed -n 's|^  \(.*\.h\)$|\1|p' "$2")
exit $bad
