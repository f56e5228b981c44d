// needs_gpus N COMMAND...: runs COMMAND where there are N GPUs, for tests that are no GoogleTest
// programs.
//
// Where there are fewer the test is skipped, and says so in $XML_OUTPUT_FILE to whoever counts. But
// where as many were promised (DTENSOR_REQUIRE_GPU, tools/cuda/require_gpu.cc) it fails; so it does
// where not even those that were promised are there.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "dtensor/runtime/device/cuda/gpus.h"

int main(int argc, char** argv) {
  const int needed = argc < 3 ? 0 : std::atoi(argv[1]);
  if (needed < 1) {
    std::cerr << "needs_gpus N COMMAND...: N is 1 or more\n";
    return 2;
  }
  const auto count = dtensor::CountGpus();
  const int gpus = count.ok() ? *count : 0;
  if (gpus >= needed) {
    execv(argv[2], argv + 2);
    std::perror(argv[2]);
    return 127;
  }
  const char* const promised = std::getenv("DTENSOR_REQUIRE_GPU");
  const bool fails = promised != nullptr && gpus < std::min(needed, std::atoi(promised));
  std::cout << (fails ? "FAILED, DTENSOR_REQUIRE_GPU is set: " : "skipped: ") << "needs " << needed
            << " GPUs, and there are " << gpus;
  if (!count.ok()) std::cout << " (" << count.status().message() << ")";
  std::cout << "\n";
  const char* const xml = std::getenv("XML_OUTPUT_FILE");
  if (fails || xml == nullptr) return fails;
  std::ofstream(xml) << "<testsuites><testsuite name=\"needs_gpus\"><testcase name=\"" << argv[2]
                     << "\" status=\"notrun\" result=\"skipped\"/></testsuite></testsuites>\n";
  return 0;
}
