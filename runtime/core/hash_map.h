// HashMap, HashSet: if growing throws std::bad_alloc, they stay as they were. Debian's
// absl::flat_hash_map does not: its capacity has changed by then, so the destructor that the
// exception runs frees memory that was never allocated (no_throw.h).
#ifndef DTENSOR_RUNTIME_CORE_HASH_MAP_H_
#define DTENSOR_RUNTIME_CORE_HASH_MAP_H_

#include <unordered_map>
#include <unordered_set>

#include "absl/hash/hash.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

template <typename Key, typename Value>
using HashMap = std::unordered_map<Key, Value, absl::Hash<Key>>;
template <typename Key>
using HashSet = std::unordered_set<Key, absl::Hash<Key>>;

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_HASH_MAP_H_
