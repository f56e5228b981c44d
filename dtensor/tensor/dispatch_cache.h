// The decisions a Context has made: for dispatch.cc and context.cc only.
#ifndef DTENSOR_TENSOR_DISPATCH_CACHE_H_
#define DTENSOR_TENSOR_DISPATCH_CACHE_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/lru_cache.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

// By the hash of (operator, Specs, pinned operands, attributes, options where they matter); entries
// are compared in full.
struct DispatchCache {
  static constexpr int64_t kStateBytes = int64_t{64} << 20;  // of all decisions' OpStates
  LruCache<uint64_t, absl::InlinedVector<DecisionPtr, 1>> decisions{Context::kDecisions,
                                                                    kStateBytes};
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DISPATCH_CACHE_H_
