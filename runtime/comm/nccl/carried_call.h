// The arguments with which a part of an exchange is launched, and its staging buffer.
#ifndef DTENSOR_RUNTIME_COMM_NCCL_CARRIED_CALL_H_
#define DTENSOR_RUNTIME_COMM_NCCL_CARRIED_CALL_H_

#include <cstdint>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/comm/messages/box_pieces.h"
#include "dtensor/runtime/comm/nccl/nccl_group.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor {

struct CarriedCall {
  int rank;
  absl::Span<const int> ranks;  // of the group
  absl::Span<const ExchangePart> parts;
  Device& queue;
  cudaStream_t stream;  // the queue's
  NcclGroup& group;
  NcclStop stop;
  int64_t staging_bytes;  // upper bound; the same on all ranks

  // The number of `peer` in NCCL's communicator.
  int NumberOf(int peer) const {
    return static_cast<int>(absl::c_lower_bound(ranks, peer) - ranks.begin());
  }
};

// Memory of the queue, from whose front pieces are taken.
class Staging {
 public:
  static constexpr int64_t kAlignment = 16;
  static int64_t Aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  static absl::StatusOr<Staging> Make(Device& queue, int64_t bytes) {
    Staging staging;
    DT_ASSIGN_OR_RETURN(staging.memory_, Tensor::Empty(queue, DType::kBool, {bytes}));
    return staging;
  }
  // Requires: that much is left.
  Tensor Take(DType dtype, const Dims& shape) {
    char* const data = memory_.data<char>() + taken_;
    taken_ += NumElements(shape) * SizeOf(dtype);
    return Tensor::Adopt(memory_.device(), data, dtype, shape, RowMajorStrides(shape), nullptr);
  }
  void Align() { taken_ = Aligned(taken_); }
  std::byte* next() const { return memory_.data<std::byte>() + taken_; }

 private:
  Tensor memory_;
  int64_t taken_ = 0;
};

// Whether what comes may be written directly to its place, without being combined.
inline bool IsCopy(const ExchangePart& part, size_t terms) {
  return terms == 1 && part.scale == 1 && SentType(part) == part.dst.dtype();
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_NCCL_CARRIED_CALL_H_
