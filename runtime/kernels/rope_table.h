// The cosines and sines that rotary embedding multiplies with, computed once and kept.
#ifndef DTENSOR_RUNTIME_KERNELS_ROPE_TABLE_H_
#define DTENSOR_RUNTIME_KERNELS_ROPE_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/runtime/core/index_set.h"

namespace dtensor::kernels {

// cos and sin of p_t * theta^(-2 i / d) at [t * half + i], for the t-th position p_t and i < half =
// d / 2. Computed in f64 and rounded once.
struct RopeTable {
  std::vector<float> cos, sin;
};

// The one global state of these kernels: a cache of the last few tables, bounded to 64 MiB, behind
// a mutex. Every layer of a model asks for the same table, forward and backward, and computing it
// takes as long as rotating several layers. Process-wide, because a table depends on the arguments
// alone: ranks that are threads share it, and no result can depend on what it holds. Any thread.
std::shared_ptr<const RopeTable> GetRopeTable(const IndexSet& positions, double theta, int64_t d);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_ROPE_TABLE_H_
