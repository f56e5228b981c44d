#include "dtensor/runtime/kernels/cpu/norm.h"

#include <algorithm>
#include <vector>

#include "dtensor/runtime/kernels/cpu/launch.h"
#include "dtensor/runtime/kernels/cpu/norm_simd.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/kernels/cpu/strided_walk.h"

namespace dtensor::kernels::cpu {
namespace {

// Row-major memory of one kernel's output, addressed by row.
struct OutputRows {
  OutputRows(void* output, DType dtype, int64_t n)
      : data(static_cast<std::byte*>(output)), row_bytes(n * SizeOf(dtype)) {}
  void* Row(int64_t r) const { return row_bytes == 0 ? data : data + r * row_bytes; }
  std::byte* data;
  int64_t row_bytes;
};

// Sums of many rows, element by element: the rows of a block are added up one by one, and then the
// block to the total. So f32 loses bits with the number of blocks, not of rows.
class RowSums {
 public:
  static constexpr int64_t kBlock = 256;  // rows

  RowSums(DType accumulator, int64_t n)
      : accumulator_(accumulator), n_(n), block_(n * SizeOf(accumulator)), total_(block_.size()) {}

  void* block() { return block_.data(); }
  void Added(int64_t rows) {
    rows_ += rows;
    if (rows_ >= kBlock) EndBlock();
  }
  const void* Total() {
    EndBlock();
    return total_.data();
  }

 private:
  void EndBlock() {
    simd::ReduceInto(ReduceOp::kSum, accumulator_, block_.data(), total_.data(), n_);
    std::fill(block_.begin(), block_.end(), std::byte{0});
    rows_ = 0;
  }

  DType accumulator_;
  int64_t n_, rows_ = 0;
  std::vector<std::byte> block_, total_;
};

void RunRmsNorm(const RmsNormArgs& a) {
  const int64_t n = a.rows.n;
  const OutputRows y(a.y, a.dtype, n), rstd(a.rstd, AccumulatorOf(a.dtype), 1);
  const bool stream = StreamStores(a.out_bytes, a.in_place);
  std::vector<std::byte> scratch;
  const void* weight = Packed(a.weight, scratch);
  ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RmsNorm({a.dtype, count, n, stream}, {in[0], stride[0]}, weight, a.eps, y.Row(first),
                  rstd.Row(first));
  });
  FinishStores(stream);
}

void RunRmsNormGrad(const RmsNormGradArgs& a) {
  const DType accumulator = AccumulatorOf(a.dtype);
  const int64_t n = a.rows.n, stat_size = SizeOf(accumulator);
  const OutputRows dx(a.dx, a.dtype, n);
  const bool stream = StreamStores(a.out_bytes, a.in_place);
  std::vector<std::byte> weight_scratch, rstd_scratch;
  RowSums sums(accumulator, n);
  const void* weight = Packed(a.weight, weight_scratch);
  const auto* rstd = static_cast<const std::byte*>(Packed(a.rstd, rstd_scratch));
  const auto add = [&](auto in, auto stride, int64_t first, int64_t count) {
    simd::RmsNormGrad({a.dtype, count, n, stream}, {in[0], stride[0]}, weight,
                      rstd + first * stat_size, {in[1], stride[1]}, dx.Row(first), sums.block());
    sums.Added(count);
  };
  ForEachRowGroup(a.rows, add, RowSums::kBlock);
  FinishStores(stream);
  VisitFloat(a.dtype, [&](auto t) {
    using T = decltype(t);
    RoundAll(static_cast<const Compute<T>*>(sums.Total()), static_cast<T*>(a.dweight), n);
  });
}

}  // namespace

absl::Status Softmax(Device& device, const char* kernel, const SoftmaxArgs& args) {
  return Launch(device, kernel, args, [](const SoftmaxArgs& a) {
    const OutputRows y(a.y, a.dtype, a.rows.n);
    ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
      simd::Softmax({a.dtype, count, a.rows.n}, {in[0], stride[0]}, y.Row(first));
    });
  });
}

absl::Status SoftmaxGrad(Device& device, const char* kernel, const SoftmaxGradArgs& args) {
  return Launch(device, kernel, args, [](const SoftmaxGradArgs& a) {
    const OutputRows dx(a.dx, a.dtype, a.rows.n);
    ForEachRowGroup(a.rows, [&](auto in, auto stride, int64_t first, int64_t count) {
      simd::SoftmaxGrad({a.dtype, count, a.rows.n}, {in[0], stride[0]}, {in[1], stride[1]},
                        dx.Row(first));
    });
  });
}

absl::Status RmsNorm(Device& device, const char* kernel, const RmsNormArgs& args) {
  return Launch(device, kernel, args, RunRmsNorm);
}

absl::Status RmsNormGrad(Device& device, const char* kernel, const RmsNormGradArgs& args) {
  return Launch(device, kernel, args, RunRmsNormGrad);
}

}  // namespace dtensor::kernels::cpu
