// A weight that files have in fewer bits, dequantized while it is read. For load.cc.
#ifndef DTENSOR_HUGGING_FACE_QUANTIZED_WEIGHT_H_
#define DTENSOR_HUGGING_FACE_QUANTIZED_WEIGHT_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/index_set.h"

namespace dtensor {
namespace internal {

class QuantizedWeight {
 public:
  virtual ~QuantizedWeight() = default;
  virtual const Dims& shape() const = 0;  // of the weight
  virtual const Dims& block() const = 0;  // the elements that have one scale, in each dimension
  // The values of those elements whose indices are in `region`, row-major, into `out`. Returns how
  // many bytes were read. Requires: no index set is empty. Errors: those of ReadRegion
  // (safetensors_reader.h).
  virtual absl::StatusOr<int64_t> ReadRegion(absl::Span<const IndexSet> region,
                                             float* out) const = 0;
};
using QuantizedWeightPtr = std::shared_ptr<const QuantizedWeight>;

}  // namespace internal
}  // namespace dtensor

#endif  // DTENSOR_HUGGING_FACE_QUANTIZED_WEIGHT_H_
