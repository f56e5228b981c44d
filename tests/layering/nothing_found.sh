#!/bin/sh
# nothing_found.sh TARGET FILE: fails if FILE, the answer to a query, names anything.
if [ ! -e "$2" ]; then
  echo "there is no query result at $2" >&2
  exit 1
fi
if [ -s "$2" ]; then
  echo "$1 must not depend on these (bazel query 'somepath($1, ONE OF THEM)' shows how it does):" >&2
  cat "$2" >&2
  exit 1
fi
