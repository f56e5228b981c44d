// Tries kept inputs without libFuzzer: PROGRAM FILE... Tries each file as it is, each beginning of
// it, and the file repeated until it is long.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "dtensor/tests/fuzz/fuzz.h"

namespace {

constexpr size_t kLong = 1 << 15;

void TryAll(const std::string& input) {
  dtensor::fuzz::Try(input);
  for (size_t length = 0; length < input.size(); ++length) {
    dtensor::fuzz::Try({input.data(), length});
  }
  if (input.empty()) return;
  std::string repeated;
  while (repeated.size() < kLong) repeated += input;
  dtensor::fuzz::Try(repeated);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    std::printf("%s\n", argv[i]);
    std::fflush(stdout);  // what ends the program is of the last file named
    TryAll(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  if (argc > 1) return 0;
  std::fprintf(stderr, "no files were given\n");
  return 1;
}
