#include "dtensor/runtime/comm/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/string_view.h"

namespace dtensor {
namespace {

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ hash >> 32;
}

uint64_t Mix(uint64_t hash, absl::string_view text) {
  hash = Mix(hash, text.size());
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t bytes = std::min(text.size(), sizeof(word));
    std::memcpy(&word, text.data(), bytes);
    hash = Mix(hash, word);
    text.remove_prefix(bytes);
  }
  return hash;
}

}  // namespace

uint64_t FingerprintOf(const Collective& collective, size_t parts) {
  const uint64_t hash = Mix(Mix(1, collective.op), static_cast<uint64_t>(collective.kind));
  return Mix(Mix(hash, collective.digest), parts);
}

uint64_t FingerprintOf(absl::Span<const int> ranks) {
  uint64_t hash = Mix(2, ranks.size());
  for (const int rank : ranks) hash = Mix(hash, static_cast<uint64_t>(rank));
  return std::max<uint64_t>(hash, 1);
}

}  // namespace dtensor
