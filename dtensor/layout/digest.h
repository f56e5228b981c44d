// Digest: a 64-bit hash of values on which ranks must agree. Unlike absl::Hash, it is the same in
// every process. FNV-1a, over bytes or whole numbers.
#ifndef DTENSOR_LAYOUT_DIGEST_H_
#define DTENSOR_LAYOUT_DIGEST_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

class Digest {
 public:
  void Add(absl::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * kPrime;
    Add(static_cast<int64_t>(bytes.size()));
  }
  void Add(int64_t value) {
    value_ = (value_ ^ static_cast<uint64_t>(value)) * kPrime;
    value_ ^= value_ >> 29;  // mixes high bytes into the low ones
  }
  uint64_t value() const { return value_; }

 private:
  static constexpr uint64_t kPrime = 0x100000001b3;
  uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_DIGEST_H_
