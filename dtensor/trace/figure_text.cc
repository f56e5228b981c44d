#include "dtensor/trace/figure_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtensor {
namespace {

std::string Scaled(double value, const char* const* units, int most, double step) {
  if (value == 0) return absl::StrCat("0 ", units[0]);
  int unit = 0;
  while (unit < most && value >= step) {
    value /= step;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : value < 100 ? 1 : 0, value, units[unit]);
}

}  // namespace

std::string BytesText(int64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  return Scaled(static_cast<double>(bytes) / 1024, kUnits, 4, 1024);
}

std::string SecondsText(double seconds) {
  static constexpr const char* kUnits[] = {"us", "ms", "s"};
  return Scaled(seconds * 1e6, kUnits, 2, 1000);
}

std::string TrafficText(const TrafficKey& key, const CommunicatorTraffic& traffic) {
  return absl::StrCat(ToString(key.second), "(", key.first, "): ", traffic.calls,
                      traffic.calls == 1 ? " call, " : " calls, ", BytesText(traffic.bytes));
}

}  // namespace dtensor
