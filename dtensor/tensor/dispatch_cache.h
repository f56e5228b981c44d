// The dispatch decisions that a Context has made. Only for dispatch.cc and context.cc.
#ifndef DTENSOR_TENSOR_DISPATCH_CACHE_H_
#define DTENSOR_TENSOR_DISPATCH_CACHE_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "dtensor/runtime/core/lru_cache.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/op.h"

namespace dtensor {

// Decisions by the hash of (operator, Specs, pinned operands, attributes, and the options if the
// operator depends on them). A look-up compares entries in full.
struct DispatchCache {
  static constexpr int64_t kStateBytes = int64_t{64} << 20;  // limit for all OpStates together
  LruCache<uint64_t, absl::InlinedVector<DecisionPtr, 1>> decisions{Context::kDecisions,
                                                                    kStateBytes};
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_DISPATCH_CACHE_H_
