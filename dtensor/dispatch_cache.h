// The decisions a Context has made: for dispatch.cc and context.cc only.
#ifndef DTENSOR_DISPATCH_CACHE_H_
#define DTENSOR_DISPATCH_CACHE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "dtensor/op.h"

namespace dtensor {

// By the hash of (operator, Specs, pinned operands, attributes); entries are compared in full.
// Grows with the number of different calls a program makes.
struct DispatchCache {
  absl::flat_hash_map<uint64_t, absl::InlinedVector<std::unique_ptr<Decision>, 1>> decisions;
};

}  // namespace dtensor

#endif  // DTENSOR_DISPATCH_CACHE_H_
