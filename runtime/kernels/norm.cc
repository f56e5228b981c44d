#include "dtensor/runtime/kernels/norm.h"

#include <algorithm>
#include <vector>

#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/cpu/norm_simd.h"
#include "dtensor/runtime/kernels/cpu/numeric.h"
#include "dtensor/runtime/kernels/cpu/reduce_simd.h"
#include "dtensor/runtime/kernels/cpu/streaming.h"
#include "dtensor/runtime/kernels/cpu/strided_loop.h"

namespace dtensor::kernels {
namespace {

// Row-major memory of one kernel's output, addressed by row.
struct OutputRows {
  explicit OutputRows(const Tensor& t, int64_t n)
      : data(static_cast<std::byte*>(t.raw())), row_bytes(n * SizeOf(t.dtype())) {}
  void* Row(int64_t r) const { return row_bytes == 0 ? data : data + r * row_bytes; }
  std::byte* data;
  int64_t row_bytes;
};

void CheckRows(const Tensor& x, const Tensor& out) {
  DT_CHECK(x.ndim() >= 1 && IsFloat(x.dtype()));
  DT_CHECK(out.shape() == x.shape() && out.dtype() == x.dtype() && out.is_contiguous());
}

void CheckStatistics(const Tensor& x, const Tensor& rstd) {
  DT_CHECK(rstd.dtype() == AccumulatorOf(x.dtype()));
  DT_CHECK(rstd.shape() == Dims(x.shape().begin(), x.shape().end() - 1));
}

void CheckWeight(const Tensor& x, const Tensor& weight) {
  DT_CHECK(weight.ndim() == 1 && weight.size(0) == x.shape().back());
  DT_CHECK(weight.dtype() == x.dtype());
}

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

}  // namespace

absl::Status Softmax(Device& device, const Tensor& x, const Tensor& y) {
  CheckRows(x, y);
  const Rows<1> rows({&x});
  const OutputRows out(y, rows.row_size());
  return device.Launch("Softmax", [=, dtype = x.dtype()] {
    rows.ForEach([&](const void* const* in, const int64_t* stride, int64_t first, int64_t count) {
      simd::Softmax({dtype, count, rows.row_size()}, {in[0], stride[0]}, out.Row(first));
    });
  });
}

absl::Status SoftmaxGrad(Device& device, const Tensor& y, const Tensor& dy, const Tensor& dx) {
  CheckRows(y, dx);
  DT_CHECK(dy.shape() == y.shape() && dy.dtype() == y.dtype());
  const Rows<2> rows({&y, &dy});
  const OutputRows out(dx, rows.row_size());
  return device.Launch("SoftmaxGrad", [=, dtype = y.dtype()] {
    rows.ForEach([&](const void* const* in, const int64_t* stride, int64_t first, int64_t count) {
      simd::SoftmaxGrad({dtype, count, rows.row_size()}, {in[0], stride[0]}, {in[1], stride[1]},
                        out.Row(first));
    });
  });
}

absl::Status RmsNorm(Device& device, const Tensor& x, const Tensor& weight, double eps,
                     const Tensor& y, const Tensor& rstd) {
  CheckRows(x, y);
  CheckWeight(x, weight);
  CheckStatistics(x, rstd);
  DT_CHECK(rstd.is_contiguous());
  const Rows<1> rows({&x});
  const Packed weights(weight);
  const OutputRows out(y, rows.row_size()), statistics(rstd, 1);
  const bool stream = StreamStores({&x}, y);
  return device.Launch("RmsNorm", [=, dtype = x.dtype()] {
    std::vector<std::byte> scratch;
    const void* w = weights.Get(scratch);
    rows.ForEach([&](const void* const* in, const int64_t* stride, int64_t first, int64_t count) {
      simd::RmsNorm({dtype, count, rows.row_size(), stream}, {in[0], stride[0]}, w, eps,
                    out.Row(first), statistics.Row(first));
    });
    FinishStores(stream);
  });
}

absl::Status RmsNormGrad(Device& device, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                         const Tensor& dy, const Tensor& dx, const Tensor& dweight) {
  CheckRows(x, dx);
  CheckWeight(x, weight);
  CheckWeight(x, dweight);
  CheckStatistics(x, rstd);
  DT_CHECK(dy.shape() == x.shape() && dy.dtype() == x.dtype() && dweight.is_contiguous());
  const Rows<2> rows({&x, &dy});
  const Packed weights(weight), statistics(rstd);
  const OutputRows out(dx, rows.row_size());
  const bool stream = StreamStores({&x, &dy}, dx);
  return device.Launch("RmsNormGrad", [=, dtype = x.dtype(), dw = dweight.raw()] {
    const int64_t n = rows.row_size(), stat_size = SizeOf(AccumulatorOf(dtype));
    std::vector<std::byte> weight_scratch, rstd_scratch;
    RowSums sums(AccumulatorOf(dtype), n);
    const void* w = weights.Get(weight_scratch);
    const auto* r = static_cast<const std::byte*>(statistics.Get(rstd_scratch));
    const auto add = [&](const void* const* in, const int64_t* stride, int64_t first,
                         int64_t count) {
      simd::RmsNormGrad({dtype, count, n, stream}, {in[0], stride[0]}, w, r + first * stat_size,
                        {in[1], stride[1]}, out.Row(first), sums.block());
      sums.Added(count);
    };
    rows.ForEach(add, RowSums::kBlock);
    FinishStores(stream);
    VisitFloat(dtype, [&](auto t) {
      using T = decltype(t);
      RoundAll(static_cast<const Compute<T>*>(sums.Total()), static_cast<T*>(dw), n);
    });
  });
}

}  // namespace dtensor::kernels
