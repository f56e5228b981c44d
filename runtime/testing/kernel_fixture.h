// For the tests of kernels: tensors of any type and any strides from doubles and back, and one
// fixture that runs each test on every device that the program is linked with (kernel_devices.h).
#ifndef DTENSOR_RUNTIME_TESTING_KERNEL_FIXTURE_H_
#define DTENSOR_RUNTIME_TESTING_KERNEL_FIXTURE_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/testing/kernel_devices.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {

using Doubles = std::vector<double>;

inline constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// The relative error of one rounding to `dtype`, with room for a few operations in f32.
inline double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-10;
    case DType::kF64:
      return 1e-14;
    default:
      return 1e-6;
  }
}

// `values` rounded to `dtype`: inputs that the reference and the kernel see alike.
inline Doubles Rounded(DType dtype, Doubles values) {
  VisitDType(dtype, [&](auto t) {
    for (double& v : values) v = Cast<double>(Cast<decltype(t)>(v));
  });
  return values;
}

inline Doubles RandomValues(int64_t n, double low, double high, uint64_t seed = 1) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  Doubles values(n);
  for (double& v : values) v = uniform(generator);
  return values;
}

// Whole numbers, for integer types.
inline Doubles RandomWhole(int64_t n, double low, double high, uint64_t seed = 1) {
  Doubles values = RandomValues(n, low, high, seed);
  for (double& v : values) v = std::floor(v);
  return values;
}

// Each got[i] within `relative` of want[i], or within `absolute`; NaN and infinities alike.
inline void ExpectNear(const Doubles& got, const Doubles& want, double relative, double absolute) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    // Nearly always; a check by gtest costs much more under sanitizers.
    if (std::abs(got[i] - want[i]) <= std::abs(want[i]) * relative + absolute) continue;
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << "element " << i << " is " << got[i] << ", not NaN";
    } else if (std::isinf(want[i])) {
      ASSERT_EQ(got[i], want[i]) << "element " << i;
    } else {
      ASSERT_NEAR(got[i], want[i], std::abs(want[i]) * relative + absolute) << "element " << i;
    }
  }
}

class KernelTest : public ::testing::TestWithParam<KernelTestParam> {
 protected:
  void SetUp() override {
    auto device = MakeKernelTestDevice(GetParam());
    if (absl::IsUnavailable(device.status())) GTEST_SKIP() << device.status();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }
  void TearDown() override { EndKernelTest(); }

  Device& device() { return *device_; }

  Tensor Empty(DType dtype, absl::Span<const int64_t> shape) {
    auto tensor = Tensor::Empty(*device_, dtype, shape);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return *std::move(tensor);
  }

  Tensor Make(DType dtype, absl::Span<const int64_t> shape, const Doubles& values) {
    return MakeOn(*device_, dtype, shape, values);
  }
  static Tensor MakeOn(Device& device, DType dtype, absl::Span<const int64_t> shape,
                       const Doubles& values) {
    return VisitDType(dtype, [&](auto t) {
      using T = decltype(t);
      const auto host = std::make_unique<T[]>(values.size());
      for (size_t i = 0; i < values.size(); ++i) host[i] = Cast<T>(values[i]);
      auto tensor = FromHost<T>(device, absl::MakeConstSpan(host.get(), values.size()), shape);
      EXPECT_TRUE(tensor.ok()) << tensor.status();
      return *std::move(tensor);
    });
  }

  // Tensors of the same values whose strides differ: transposed in memory; and a part of a larger
  // one, which begins at an odd address.
  Tensor MakeTransposed(DType dtype, int64_t rows, int64_t columns, const Doubles& values) {
    Doubles transposed(values.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) transposed[c * rows + r] = values[r * columns + c];
    }
    return Make(dtype, {columns, rows}, transposed).Transpose(0, 1);
  }
  Tensor MakeInside(DType dtype, int64_t rows, int64_t columns, const Doubles& values) {
    Doubles wide((rows + 1) * (columns + 3), 7);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        wide[(r + 1) * (columns + 3) + c + 1] = values[r * columns + c];
      }
    }
    return Make(dtype, {rows + 1, columns + 3}, wide).Narrow(0, 1, rows).Narrow(1, 1, columns);
  }

  Doubles Read(const Tensor& tensor) {
    return VisitDType(tensor.dtype(), [&](auto t) {
      using T = decltype(t);
      const auto host = ToHost<T>(tensor);
      EXPECT_TRUE(host.ok()) << host.status();
      Doubles values;
      for (const T value : *host) values.push_back(Cast<double>(value));
      return values;
    });
  }

  // d loss / d x[i] by central differences, where loss(x) = sum(weights * f(x)).
  static Doubles NumericGradient(Doubles x, const Doubles& weights,
                                 const std::function<Doubles(const Doubles&)>& f) {
    const auto loss = [&](const Doubles& at) {
      const Doubles y = f(at);
      double sum = 0;
      for (size_t i = 0; i < y.size(); ++i) sum += weights[i] * y[i];
      return sum;
    };
    Doubles gradient(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double h = 1e-5, saved = x[i];
      x[i] = saved + h;
      const double above = loss(x);
      x[i] = saved - h;
      gradient[i] = (above - loss(x)) / (2 * h);
      x[i] = saved;
    }
    return gradient;
  }

 private:
  std::unique_ptr<Device> device_;
};

#define DT_INSTANTIATE_KERNEL_TESTS(suite)                                      \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(KernelTestParams()), \
                           [](const auto& info) { return std::string(info.param.name); })

}  // namespace dtensor::kernels

#endif  // DTENSOR_RUNTIME_TESTING_KERNEL_FIXTURE_H_
