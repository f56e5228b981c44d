#!/usr/bin/env bash
# needs_gpus runs its command where there are as many GPUs, and else is skipped or fails.
set -u
needs_gpus=$1
report=$TEST_TMPDIR/report.xml

# expect STATUS TEXT GPUS PROMISED NEEDED: the status, and what is in the output, of a command that would end with 3.
expect() {
  local status=$1 text=$2 gpus=$3 promised=$4 needed=$5 output got
  rm -f "$report"
  [[ -n $promised ]] && export DTENSOR_REQUIRE_GPU=$promised || unset DTENSOR_REQUIRE_GPU
  output=$(DTENSOR_FAKE_GPUS=$gpus XML_OUTPUT_FILE=$report "$needs_gpus" "$needed" /bin/sh -c 'echo "it ran"; exit 3' 2>&1)
  got=$?
  if ((got != status)) || ! grep -q "$text" <<<"$output"; then
    echo "$gpus GPUs, ${promised:-none} promised, $needed needed: status $got in place of $status, or no \"$text\":"
    echo "$output"
    exit 1
  fi
}

expect 3 "it ran" 1 "" 1
expect 3 "it ran" 2 1 2
[[ ! -e $report ]] || { echo "a command that ran is reported as skipped"; exit 1; }
for promised in "" 1; do
  expect 0 "skipped: needs 2 GPUs, and there are 1" 1 "$promised" 2
  grep -q '<testcase name="/bin/sh" status="notrun" result="skipped"/>' "$report" || { echo "no case is reported"; exit 1; }
done
expect 1 "FAILED, DTENSOR_REQUIRE_GPU is set: needs 2 GPUs" 1 2 2
expect 1 "FAILED, DTENSOR_REQUIRE_GPU is set: needs 3 GPUs" 1 2 3
[[ ! -e $report ]] || { echo "a failure is reported as skipped"; exit 1; }
expect 2 "N is 1 or more" 1 "" 0
