#!/usr/bin/env bash
# SmolLM2-135M against PyTorch, on 1, 2, 3 and 6 ranks, as threads and as processes:
# smollm2_test.sh CHECK DTRUN. Needs the folder that fetch_smollm2 makes, and so is run by hand:
#   bazel test --test_env=HOME //examples/generate:smollm2_test
set -uo pipefail
check=$PWD/$1 dtrun=$PWD/$2
folder="${DTENSOR_SMOLLM2:-${XDG_CACHE_HOME:-$HOME/.cache}/dtensor/smollm2}"
[[ -e $folder/reference.safetensors ]] || {
  echo "there is no $folder/reference.safetensors; remedy: examples/generate/fetch_smollm2"
  exit 1
}
failures=0
for n in ${RANKS:-1 2 3 6}; do
  "$check" "tp=$n" || { echo "FAILED: $n threads"; failures=$((failures + 1)); }
  ((n == 1)) && continue
  "$dtrun" -n "$n" "$check" "tp=$n" || { echo "FAILED: $n processes"; failures=$((failures + 1)); }
done
exit $((failures > 0))
