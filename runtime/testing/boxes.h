// Random boxes and tensors for tests, and what is slow and surely right.
#ifndef DTENSOR_RUNTIME_TESTING_BOXES_H_
#define DTENSOR_RUNTIME_TESTING_BOXES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/collective.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/test_random.h"

namespace dtensor::box_testing {

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                                       DType::kI32, DType::kI64, DType::kBool};

// A box of random pieces, 0 to 4 dimensions, sometimes empty, from the peers `peers`.
ReceiveBox RandomReceiveBox(TestRandom& random, int ndim, absl::Span<const int> peers);
// The smallest shapes that hold the box.
Dims SourceShape(const ReceiveBox& box);
Dims DstShape(const ReceiveBox& box);

// Row-major in a random order of dimensions, with gaps here and there.
Dims RandomStrides(TestRandom& random, absl::Span<const int64_t> shape);

// `bytes` of the memory of `tensor`, whose dimensions lie in any order, with gaps.
struct Backed {
  std::vector<std::byte> bytes;
  Tensor tensor;
};
// Filled with values of the type: small ones, so that products stay finite; rarely infinite or NaN.
Backed RandomTensor(TestRandom& random, Device& device, DType dtype,
                    absl::Span<const int64_t> shape);

// Calls fn(bytes into source, bytes into dst) for each element of the box.
using ElementFn = std::function<void(int64_t, int64_t)>;
void ForEachElement(const ReceiveBox& box, const Tensor& dst, const Tensor& source,
                    const ElementFn& fn);

// One element: *dst = scale * (terms[0] op terms[1] ...), as reduce_row.h defines it, from terms of
// type `in` to `out`.
void NaiveReduce(DType in, DType out, ReduceOp op, double scale,
                 absl::Span<const std::byte* const> terms, std::byte* dst);

// Element by element; a NaN equals every NaN.
bool SameElements(DType dtype, absl::Span<const std::byte> a, absl::Span<const std::byte> b);

}  // namespace dtensor::box_testing

#endif  // DTENSOR_RUNTIME_TESTING_BOXES_H_
