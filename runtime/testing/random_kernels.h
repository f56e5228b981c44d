// For tests of kernels on random arguments: tensors of any strides on the device under test, each
// with a twin of the same values, row-major in the host's memory and, of floats, in f64. A kernel
// is called with both, and what it makes of them must be alike.
#ifndef DTENSOR_RUNTIME_TESTING_RANDOM_KERNELS_H_
#define DTENSOR_RUNTIME_TESTING_RANDOM_KERNELS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {

struct Twins {
  Tensor tested, exact;
};

// The device of one of the twins, and which they are.
struct Side {
  Device& device;
  Tensor Twins::*of;
  const Tensor& operator()(const Twins& twins) const { return twins.*of; }
};

// Of what is exact in the twins of `dtype`.
inline DType ExactType(DType dtype) { return IsFloat(dtype) ? DType::kF64 : dtype; }
// Of statistics: AccumulatorOf(dtype).
inline DType WideType(DType dtype) { return dtype == DType::kF64 ? dtype : DType::kF32; }

class RandomKernelTest : public KernelTest {
 protected:
  // Up to `most` elements; now and then none, or a scalar.
  Dims Shape(int most_dims, int64_t most) {
    Dims shape;
    int64_t elements = 1;
    for (int64_t d = random_.In(0, most_dims); d > 0; --d) {
      int64_t size = random_.Of<int64_t>({1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 129, 256, 1000});
      while (elements * size > most && size > 1) size /= 2;
      shape.push_back(random_.Chance(2) ? 0 : size);
      elements *= size;
    }
    return shape;
  }

  // Both of the values `values` rounded to `dtype`; the tested one with any strides.
  Twins Of(DType dtype, const Dims& shape, Doubles values) {
    const bool strided = random_.Chance(75);
    return Lying(dtype, shape, std::move(values),
                 strided ? box_testing::RandomStrides(random_, shape) : RowMajorStrides(shape));
  }

  // The tested one with these strides. Where one is 0, values are alike along its dimension.
  Twins Lying(DType dtype, const Dims& shape, Doubles values, const Dims& strides) {
    values = Rounded(dtype, std::move(values));
    const int64_t offset = random_.Of<int64_t>({0, 0, 1, 4, 8});
    int64_t memory = offset + 1;
    for (size_t d = 0; d < shape.size(); ++d) {
      memory += std::max<int64_t>(shape[d] - 1, 0) * strides[d];
    }
    Doubles stored(memory, 7);
    Dims at(shape.size(), 0);
    for (const double value : values) {
      int64_t place = offset;
      for (size_t d = 0; d < shape.size(); ++d) place += at[d] * strides[d];
      stored[place] = value;
      for (size_t d = shape.size(); d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
    }
    return {Make(dtype, {memory}, stored).View(shape, strides, offset),
            MakeOn(*host_, ExactType(dtype), shape, values)};
  }

  // Uniform, whole for integers, and true where above 0 for bool.
  Twins In(DType dtype, const Dims& shape, double low, double high, bool with_special = false) {
    Doubles values(NumElements(shape));
    for (double& value : values) {
      value = random_.Real(low, high);
      if (!IsFloat(dtype)) value = dtype == DType::kBool ? value > 0 : std::floor(value);
      if (with_special && IsFloat(dtype) && random_.Chance(10)) value = Special();
    }
    return Of(dtype, shape, std::move(values));
  }

  // Row-major from any element on, between others; all filled with what no kernel makes.
  Twins Out(DType dtype, const Dims& shape) {
    const int64_t offset = random_.Of<int64_t>({kBeside, kBeside + 1, kBeside + 4});
    const int64_t n = NumElements(shape);
    const Doubles filled(offset + n + kBeside, kFilling);
    const Tensor memory = Make(dtype, {offset + n + kBeside}, filled);
    outs_.push_back({memory, offset, n});
    return {memory.View(shape, RowMajorStrides(shape), offset),
            MakeOn(*host_, ExactType(dtype), shape, Doubles(n, kFilling))};
  }

  // Of all that Out() has made since it was called last: that nothing beside it was written.
  void ExpectNothingBeside() {
    for (const Memory& out : outs_) {
      Doubles values = Read(out.all);
      const auto begin = values.begin() + out.offset;
      values.erase(begin, begin + out.elements);
      const double filling = Rounded(out.all.dtype(), {kFilling})[0];
      EXPECT_EQ(values, Doubles(values.size(), filling)) << "of " << out.elements << " elements";
    }
    outs_.clear();
  }

  // One of the first dimension, which has no size any more. Requires: row-major.
  static Twins Part(const Twins& all, int64_t i) {
    const auto part = [&](const Tensor& t) {
      const Dims shape(t.shape().begin() + 1, t.shape().end());
      return t.Narrow(0, i, 1).View(shape, RowMajorStrides(shape), 0);
    };
    return {part(all.tested), part(all.exact)};
  }

  // `n` global indices, ascending, in random runs.
  IndexSet Indices(int64_t n) {
    std::vector<IndexRun> runs;
    int64_t at = random_.In(0, 3);
    while (n > 0) {
      const int64_t length = random_.In(1, n);
      runs.push_back({at, length, 0, 1});
      at += length + random_.In(1, 4);
      n -= length;
    }
    return IndexSet::FromIntervals(runs);
  }

  DType Float() { return random_.Of<DType>(kFloats); }
  DType Number() { return random_.Chance(70) ? Float() : random_.Of({DType::kI32, DType::kI64}); }
  DType IndexType() { return random_.Of({DType::kI32, DType::kI64}); }

  // Calls kernel(side) with each side.
  template <typename Fn>
  void Both(Fn kernel) {
    DT_ASSERT_OK(kernel(Side{device(), &Twins::tested}));
    DT_ASSERT_OK(kernel(Side{*host_, &Twins::exact}));
  }

  // Roundings: of the result's type, some of them one behind the other.
  void ExpectAlike(const char* what, const Twins& result, double roundings, double absolute) {
    ExpectNothingBeside();
    const DType dtype = result.tested.dtype();
    const double relative = IsFloat(dtype) ? roundings * Epsilon(dtype) : 0;
    SCOPED_TRACE(absl::StrCat(what, " ", ToString(dtype), DimsToString(result.tested.shape())));
    ExpectNear(Read(result.tested), Rounded(dtype, Read(result.exact)), relative,
               IsFloat(dtype) ? absolute : 0);
  }

  static std::string Describe(const Twins& twins) {
    const Tensor& t = twins.tested;
    return absl::StrCat(dtensor::ToString(t.dtype()), DimsToString(t.shape()), "/",
                        DimsToString(t.strides()));
  }

  TestRandom random_;
  const std::unique_ptr<Device> host_ = MakeCpuDevice();

 private:
  static constexpr int64_t kBeside = 8;
  static constexpr double kFilling = 77;

  double Special() {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    return random_.Of({kInf, -kInf, std::nan(""), 0.0, -0.0});
  }

  struct Memory {
    Tensor all;
    int64_t offset, elements;
  };
  std::vector<Memory> outs_;
};

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_TESTING_RANDOM_KERNELS_H_
