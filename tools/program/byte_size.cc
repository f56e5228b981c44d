#include "dtensor/tools/program/byte_size.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr absl::string_view kPrefixes = "kMGTPE";

absl::Status Refused(absl::string_view text, absl::string_view why) {
  return InvalidArgument({"\"", text, "\" ", why, "; write a number and a unit, as in 64MiB ",
                          "(1024 x 1024 bytes each), 1.5GB (1000 x 1000 x 1000) or 4096"});
}

// The number of bytes in a unit; 0 if there is no such unit.
int64_t BytesOf(absl::string_view unit) {
  if (unit.empty() || absl::EqualsIgnoreCase(unit, "B")) return 1;
  for (const bool binary : {true, false}) {
    int64_t bytes = 1;
    for (const char prefix : kPrefixes) {
      bytes *= binary ? 1024 : 1000;
      if (absl::EqualsIgnoreCase(unit, std::string(1, prefix) + (binary ? "iB" : "B"))) {
        return bytes;
      }
    }
  }
  return 0;
}

// digits / 10^decimals.
struct Decimal {
  int64_t digits = 0;
  int decimals = 0;
  bool fits = true;
};

// Reads a text such as "12.50": digits and at most one point. Trailing zeros of a fraction are
// dropped.
Decimal ReadDecimal(absl::string_view number) {
  Decimal read;
  const size_t point = number.find('.');
  if (point != absl::string_view::npos) {
    while (absl::EndsWith(number, "0")) number.remove_suffix(1);
  }
  for (size_t i = 0; i < number.size(); ++i) {
    if (i == point) continue;
    const bool over = __builtin_mul_overflow(read.digits, int64_t{10}, &read.digits) ||
                      __builtin_add_overflow(read.digits, int64_t{number[i] - '0'}, &read.digits);
    read.fits = read.fits && !over;
    if (i > point) ++read.decimals;
  }
  return read;
}

bool IsNumber(absl::string_view text) {
  const size_t point = text.find('.');
  if (text.empty() || text == ".") return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i != point && !absl::ascii_isdigit(text[i])) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const absl::string_view all = absl::StripAsciiWhitespace(text);
  const size_t end = std::min(all.find_first_not_of("0123456789."), all.size());
  const absl::string_view number = all.substr(0, end);
  if (absl::StartsWith(all, "-")) return Refused(text, "is negative");
  if (!IsNumber(number)) return Refused(text, "is no number of bytes");
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(all.substr(end));
  __int128 bytes = BytesOf(unit);
  if (bytes == 0) return Refused(text, "has a unit that is none");
  const Decimal decimal = ReadDecimal(number);
  if (!decimal.fits) return Refused(text, "has too many digits");
  bytes *= decimal.digits;
  for (int i = 0; i < decimal.decimals; ++i) {
    if (bytes % 10 != 0) return Refused(text, "is no whole number of bytes");
    bytes /= 10;
  }
  if (bytes > INT64_MAX) return Refused(text, "is more than 2^63 - 1 bytes");
  return static_cast<int64_t>(bytes);
}

}  // namespace dtensor
