#!/usr/bin/env bash
# Where GPUs were promised, a program that finds fewer fails, whether one of its tests skips itself or its
# Environment skips all of them (tools/cuda/require_gpu.cc). PROGRAM is cuda_kernel_devices_test, over fakes.
set -u
program=$1
unset XML_OUTPUT_FILE TEST_PREMATURE_EXIT_FILE GTEST_OUTPUT DTENSOR_REQUIRE_GPU  # of this test
log=$TEST_TMPDIR/log

# expect STATUS WORDS VARIABLE...: how the program ends with these variables, and what it says.
expect() {
  local wanted=$1 words=$2
  shift 2
  env "$@" "$program" >"$log" 2>&1
  local status=$?
  ((status == wanted)) && grep -q -- "$words" "$log" && return
  cat "$log"
  echo "FAILED: with $*, status $status in place of $wanted, or nothing says: $words"
  exit 1
}

expect 0 "no CUDA-capable device is detected" DTENSOR_FAKE_GPUS=0
expect 1 "all tests are skipped, although DTENSOR_REQUIRE_GPU" DTENSOR_FAKE_GPUS=0 DTENSOR_REQUIRE_GPU=1
expect 0 "1 test, listed below" DTENSOR_FAKE_GPUS=1 DTENSOR_REQUIRE_GPU=1
expect 1 "skipped, although DTENSOR_REQUIRE_GPU" DTENSOR_FAKE_GPUS=1 DTENSOR_REQUIRE_GPU=2
expect 0 "2 tests" DTENSOR_FAKE_GPUS=2 DTENSOR_REQUIRE_GPU=2
