#include "dtensor/runtime/io/temporary_name.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/runtime/io/crc32c.h"

namespace dtensor {
namespace {

constexpr absl::string_view kEnd = "tmp";
constexpr size_t kMostBytes = 160;  // of 255 in a name; the other parts take 60 at most

constexpr absl::string_view kUnknown = "unknown";

// Identifies the boot and process namespace; without it, process numbers mean nothing. Machines
// that were started from one snapshot differ in their name, or in DTENSOR_HOST.
std::string Machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) return std::string(kUnknown);
  struct stat processes = {};
  const bool known = stat("/proc/self/ns/pid", &processes) == 0;
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name)) != 0) name[0] = 0;
  const char* const told = std::getenv("DTENSOR_HOST");
  const std::string text = absl::StrCat(boot, ".", known ? processes.st_ino : 0, ".", name, ".",
                                        told != nullptr ? told : "");
  return absl::StrFormat("%08x", Crc32c(0, text.data(), text.size()));
}

bool IsGone(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

}  // namespace

std::string TemporaryName(absl::string_view name) {
  static std::atomic<uint32_t> count = 0;
  // The clock alone is not enough: two worlds of one process may begin at the same time.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const uint64_t number = static_cast<uint64_t>(now) << 8 ^ ++count;
  return absl::StrCat(".", name.substr(0, kMostBytes), ".", Machine(), ".", getpid(), ".", number,
                      ".", kEnd);
}

std::optional<std::string> AbandonedName(absl::string_view temporary) {
  // The name itself may have dots.
  const std::vector<absl::string_view> parts = absl::StrSplit(temporary, '.');
  constexpr size_t kBehindName = 4;  // machine, process, number, end
  if (parts.size() < kBehindName + 2 || !parts[0].empty() || parts.back() != kEnd) {
    return std::nullopt;
  }
  const auto behind = parts.end() - kBehindName;
  pid_t process = 0;
  const bool ours = behind[0] != kUnknown && behind[0] == Machine() &&
                    absl::SimpleAtoi(behind[1], &process) && process > 0;
  if (!ours || !IsGone(process)) return std::nullopt;
  return absl::StrJoin(parts.begin() + 1, behind, ".");
}

bool IsAbandoned(absl::string_view temporary, absl::string_view name) {
  return AbandonedName(temporary) == std::string(name.substr(0, kMostBytes));
}

}  // namespace dtensor
