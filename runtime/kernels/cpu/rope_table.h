// The cosines and sines that rotary embedding multiplies by, computed once and cached.
#ifndef DTENSOR_RUNTIME_KERNELS_CPU_ROPE_TABLE_H_
#define DTENSOR_RUNTIME_KERNELS_CPU_ROPE_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/kernels/arguments/rope_frequency.h"

namespace dtensor::kernels {

// cos and sin of p_t times the i-th frequency, times the amplitude, at [t * half + i], for the t-th
// position p_t and i < half = d / 2. Computed in f64 and rounded once. T: float or double.
template <typename T>
struct RopeTable {
  std::vector<T> cos, sin;
};

// The one global state of these kernels: a cache of the last few tables of each type, bounded to 64
// MiB, behind a mutex. Every layer of a model asks for the same table, forward and backward, and
// computing it takes as long as rotating several layers. It is process-wide because a table depends
// on the arguments alone: ranks that are threads share it, and no result can depend on the cache's
// contents. May be called from any thread.
template <typename T>
std::shared_ptr<const RopeTable<T>> GetRopeTable(const IndexSet& positions, const RopeBase& base,
                                                 int64_t d);

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_KERNELS_CPU_ROPE_TABLE_H_
