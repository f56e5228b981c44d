// Fnv1a and Digest: 64-bit hashes that, unlike absl::Hash, are the same in every process.
#ifndef DTENSOR_LAYOUT_DIGEST_H_
#define DTENSOR_LAYOUT_DIGEST_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// FNV-1a (Fowler, Noll and Vo) of the bytes. `hash` is that of the bytes before them.
inline constexpr uint64_t kFnvPrime = 0x100000001b3, kFnvBasis = 0xcbf29ce484222325;
constexpr uint64_t Fnv1a(absl::string_view bytes, uint64_t hash = kFnvBasis) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kFnvPrime;
  return hash;
}

// A hash of values on which ranks must agree: texts and whole numbers.
class Digest {
 public:
  void Add(absl::string_view bytes) {
    value_ = Fnv1a(bytes, value_);
    Add(static_cast<int64_t>(bytes.size()));
  }
  void Add(int64_t value) {
    value_ = (value_ ^ static_cast<uint64_t>(value)) * kFnvPrime;
    value_ ^= value_ >> 29;  // mixes high bytes into the low ones
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = kFnvBasis;
};

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_DIGEST_H_
