#include "dtensor/tools/program/memory.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace dtensor {

int64_t MemoryAvailable() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
}

}  // namespace dtensor
