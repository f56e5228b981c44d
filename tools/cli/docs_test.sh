#!/usr/bin/env bash
# docs_test.sh PROGRAM MANUAL: runs every `$ dtensor ...` of the manual's indented examples and
# compares what it prints with the lines below it. Figures that are measured count as equal, errors
# among them, and so do digests, which say nothing by themselves. A file that is named by --svg must be
# what the manual shows, in the folder pictures beside it.
set -u
program=$PWD/$1 manual=$PWD/$2
cd "$TEST_TMPDIR" || exit 1
dtensor() { "$program" "$@"; }

without_measures() {
  sed -E -e 's/("(seconds|[a-z0-9_]*per_second|stream_limit_ratio|latency_us|call_us)": )[-+.e0-9]+/\1_/' \
    -e 's/"(error|limit|error_on_one_rank|ratio)":[-+.e0-9]+/"\1":_/g' \
    -e 's/("counted_peak_bytes_per_rank": )[0-9]+/\1_/' -e 's/^(tensor .* error) [-+.e0-9]+/\1 _/' \
    -e 's/^(time|limit|link|copy|reduce|multiply|call|peak) .*/\1 _/' \
    -e 's/^(gemm [a-z0-9]+|memory) [-+.e0-9]+$/\1 _/' -e 's/[0-9a-f]{16}("?)$/_\1/' \
    -e 's/^( +time|[a-z]+[.](exposed_)?seconds) .*/\1 _/'
}

bad=0 examples=0 command="" expected=""
check() {
  [[ -n $command ]] || return
  examples=$((examples + 1))
  if ! diff <(printf '%s' "$expected" | without_measures) \
    <(eval "$command" 2>&1 | without_measures) >diff; then
    echo "the manual (<) is not what is printed (>): $command"
    cat diff
    bad=1
  fi
  local svg=${command##* --svg }
  if [[ $command == *" --svg "*.svg ]] && ! cmp "$svg" "$(dirname "$manual")/pictures/$svg"; then
    echo "the picture is not what is drawn: $command"
    bad=1
  fi
  command=""
}
while IFS= read -r line; do
  case $line in
    '    $ '*)
      check
      command=${line#'    $ '} expected=""
      ;;
    '    '*) expected+=${line#'    '}$'\n' ;;
    *) check ;;
  esac
done <"$manual"
check
((examples >= 8)) || { echo "found only $examples examples in $manual"; bad=1; }
exit $bad
