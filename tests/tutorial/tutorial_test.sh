#!/usr/bin/env bash
# tutorial_test.sh FOLLOW PROGRAM DTRUN PAGE...: the pages' programs, which lie beside PROGRAM, print
# what the pages say.
set -euo pipefail
follow=$PWD/$1 beside=$(dirname "$PWD/$2") dtrun=$PWD/$3
shift 3
pages=("${@/#/$PWD/}")
cd "$TEST_TMPDIR"

# page NAME LINE...: a page of one fence.
page() { printf '%s\n' '```console' "${@:2}" '```' >"$1"; }
refuses() {  # WORDS: of what `follow page` says
  ! "$follow" page >said 2>&1 || { echo "follow takes: $(cat page)"; exit 1; }
  grep -qF -- "$1" said || { echo "follow says: $(cat said)"; exit 1; }
}
page page '$ (echo one; exit 3)' one
refuses "status 3, not 0: (echo one; exit 3)"
page page '$ echo two  # status 3' two
refuses "status 0, not 3"
page page '$ echo two' one
refuses "the page (<) is not what is printed (>)"
page page '$ (echo one; exit 3)  # status 3' one '$ true'
"$follow" page
printf '%s\n' '```cpp' '// part.cc' 'int x;' '```' '```cpp' '#include <cstdio>' '```' '```sh' 'ls' '```' >page
"$follow" --sources page
[[ $(cat part.cc) == $'// part.cc\nint x;' && ! -e ls ]] || { echo "fragments are written"; exit 1; }

mkdir programs
cp -s "$beside"/* "$dtrun" programs/
# docs/running.md: threads by itself, processes under a launcher.
[[ $(programs/running | sort | paste -sd,) == "rank 0 of 4,rank 1 of 4,rank 2 of 4,rank 3 of 4" ]]
[[ $(programs/dtrun -n 2 programs/running | sort | paste -sd,) == "[0] rank 0 of 2,[1] rank 1 of 2" ]]
"$follow" --programs programs "${pages[@]}"
