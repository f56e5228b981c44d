#include "dtensor/runtime/kernels/optimizer.h"

#include <cmath>

#include "dtensor/runtime/testing/kernel_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor::kernels {
namespace {

class AdamWTest : public KernelTest {};
DT_INSTANTIATE_KERNEL_TESTS(AdamWTest);

struct State {
  Doubles param, m, v;
};

// The formula of the header, word for word.
void Reference(const AdamWStep& s, double scale, const Doubles& grad, State& state) {
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * scale;
    double& m = state.m[i];
    double& v = state.v[i];
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    const double mhat = m / (1 - std::pow(s.beta1, s.step));
    const double vhat = v / (1 - std::pow(s.beta2, s.step));
    state.param[i] -= s.lr * (s.weight_decay * state.param[i] + mhat / (std::sqrt(vhat) + s.eps));
  }
}

TEST_P(AdamWTest, FollowsTheFormulaOverManySteps) {
  for (const DType dtype : kFloats) {
    const DType wide = AccumulatorOf(dtype);
    for (const int64_t n : {1, 5, 16, 67, 300}) {
      State want{Rounded(dtype, RandomValues(n, -1, 1, 1)), Doubles(n, 0), Doubles(n, 0)};
      const Tensor param = Make(dtype, {n}, want.param);
      const Tensor m = Make(wide, {n}, want.m), v = Make(wide, {n}, want.v);
      const Tensor scale = Make(wide, {}, {0.5});
      for (int64_t step = 1; step <= 5; ++step) {
        const AdamWStep options{.lr = 0.01, .weight_decay = 0.1, .step = step};
        const Doubles grad = Rounded(dtype, RandomValues(n, -2, 2, 10 + step));
        ASSERT_THAT(AdamW(device(), options, param, Make(dtype, {n}, grad), m, v, scale), IsOk());
        Reference(options, 0.5, grad, want);
        want.param = Rounded(dtype, want.param);
      }
      const double epsilon = dtype == DType::kF64 ? 1e-13 : 1e-6;
      ExpectNear(Read(m), want.m, epsilon, epsilon * 0.1);
      ExpectNear(Read(v), want.v, epsilon, 0);
      // A narrow parameter may be rounded to its neighbour in any of the steps.
      ExpectNear(Read(param), want.param, 5 * Epsilon(dtype), dtype == DType::kF64 ? 1e-15 : 1e-7);
    }
  }
}

TEST_P(AdamWTest, WithoutGradScaleAndWithWideGradients) {
  const int64_t n = 37;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    State want{Rounded(dtype, RandomValues(n, -1, 1, 1)), Doubles(n, 0), Doubles(n, 0)};
    const Tensor param = Make(dtype, {n}, want.param);
    const Tensor m = Make(DType::kF32, {n}, want.m), v = Make(DType::kF32, {n}, want.v);
    const Doubles grad = Rounded(DType::kF32, RandomValues(n, -2, 2, 2));
    const AdamWStep options{.lr = 0.1};
    ASSERT_THAT(AdamW(device(), options, param, Make(DType::kF32, {n}, grad), m, v, Tensor()),
                IsOk());
    Reference(options, 1, grad, want);
    ExpectNear(Read(m), want.m, 1e-6, 0);
    ExpectNear(Read(param), want.param, Epsilon(dtype), 0);
  }
}

// With a factor of (1 - lr * weight_decay) in f32, the decay would be off by a third of a percent.
TEST_P(AdamWTest, SmallWeightDecayIsKept) {
  const Tensor param = Make(DType::kF32, {1}, {1}), zero = Make(DType::kF32, {1}, {0});
  const Tensor m = Make(DType::kF32, {1}, {0}), v = Make(DType::kF32, {1}, {0});
  for (int64_t step = 1; step <= 1000; ++step) {
    const AdamWStep options{.lr = 1e-4, .weight_decay = 0.1, .step = step};
    ASSERT_THAT(AdamW(device(), options, param, zero, m, v, Tensor()), IsOk());
  }
  EXPECT_NEAR(Read(param)[0], std::pow(1 - 1e-5, 1000), 4e-5);
}

// Every element alone: a shard of a parameter steps as the whole does, bit by bit.
TEST_P(AdamWTest, ShardsStepAsTheWhole) {
  const int64_t n = 53;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Doubles values = RandomValues(n, -1, 1, 1), grads = RandomValues(n, -1, 1, 2);
    const Tensor grad = Make(dtype, {n}, grads);
    const AdamWStep options{.lr = 0.01, .weight_decay = 0.1, .step = 3};
    const auto run = [&](int64_t cut) {
      const Tensor param = Make(dtype, {n}, values);
      const Tensor m = Make(DType::kF32, {n}, Doubles(n, 0.25));
      const Tensor v = Make(DType::kF32, {n}, Doubles(n, 0.5));
      const auto step = [&](int64_t begin, int64_t length) {
        EXPECT_THAT(
            AdamW(device(), options, param.Narrow(0, begin, length), grad.Narrow(0, begin, length),
                  m.Narrow(0, begin, length), v.Narrow(0, begin, length), Tensor()),
            IsOk());
      };
      step(0, cut);
      step(cut, n - cut);
      return Read(param);
    };
    for (const int64_t cut : {1, 13, 16, 30}) EXPECT_EQ(run(cut), run(0));
  }
}

// Steps that are far smaller than a 16-bit neighbour add up in the master, and param is it,
// rounded.
TEST_P(AdamWTest, AMasterKeepsWhatRoundingLoses) {
  const int64_t n = 37;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const DType grad_dtype : {dtype, DType::kF32}) {
      State want{Rounded(dtype, RandomValues(n, 1, 2, 1)), Doubles(n, 0), Doubles(n, 0)};
      const Tensor param = Make(dtype, {n}, want.param);
      const Tensor master = Make(DType::kF32, {n}, want.param);
      const Tensor m = Make(DType::kF32, {n}, want.m), v = Make(DType::kF32, {n}, want.v);
      for (int64_t step = 1; step <= 20; ++step) {
        const AdamWStep options{.lr = 1e-5, .weight_decay = 0.1, .step = step};
        const Doubles grad = Rounded(dtype, RandomValues(n, 1, 2, 10 + step));
        ASSERT_THAT(
            AdamW(device(), options, param, Make(grad_dtype, {n}, grad), m, v, Tensor(), master),
            IsOk());
        Reference(options, 1, grad, want);
      }
      ExpectNear(Read(master), want.param, 1e-6, 0);
      EXPECT_EQ(Read(param), Rounded(dtype, Read(master)));
      ExpectNear(Read(m), want.m, 1e-5, 0);
    }
  }
}

class SgdTest : public KernelTest {};
DT_INSTANTIATE_KERNEL_TESTS(SgdTest);

struct SgdState {
  Doubles param, buffer;
};

// torch.optim.SGD, word for word.
void Reference(const SgdStep& s, double scale, const Doubles& grad, SgdState& state) {
  for (size_t i = 0; i < grad.size(); ++i) {
    double g = grad[i] * scale + s.weight_decay * state.param[i];
    if (s.momentum != 0) {
      double& b = state.buffer[i];
      b = s.first ? g : s.momentum * b + (1 - s.dampening) * g;
      g = s.nesterov ? g + s.momentum * b : b;
    }
    state.param[i] -= s.lr * g;
  }
}

constexpr SgdStep kSgdSteps[] = {
    {.lr = 0.1},
    {.lr = 0.1, .weight_decay = 0.01},
    {.lr = 0.1, .momentum = 0.9},
    {.lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01},
    {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
};

TEST_P(SgdTest, FollowsTheFormulaOverManySteps) {
  for (const DType dtype : kFloats) {
    const DType wide = AccumulatorOf(dtype);
    for (SgdStep options : kSgdSteps) {
      for (const int64_t n : {0, 1, 5, 67}) {
        SgdState want{Rounded(dtype, RandomValues(n, -1, 1, 1)), Doubles(n, 7)};
        const Tensor param = Make(dtype, {n}, want.param);
        const Tensor buffer = options.momentum == 0 ? Tensor() : Make(wide, {n}, want.buffer);
        const Tensor scale = Make(wide, {}, {0.5});
        for (int step = 1; step <= 4; ++step) {
          options.first = step == 1;
          const Doubles grad = Rounded(dtype, RandomValues(n, -2, 2, 10 + step));
          ASSERT_THAT(Sgd(device(), options, param, Make(dtype, {n}, grad), buffer, scale), IsOk());
          Reference(options, 0.5, grad, want);
          want.param = Rounded(dtype, want.param);
        }
        const double epsilon = dtype == DType::kF64 ? 1e-13 : 1e-6;
        ExpectNear(Read(param), want.param, 4 * Epsilon(dtype),
                   dtype == DType::kF64 ? 1e-15 : 1e-7);
        if (dtype == DType::kF64 && buffer.defined()) {
          ExpectNear(Read(buffer), want.buffer, epsilon, epsilon);
        }
      }
    }
  }
}

TEST_P(SgdTest, AMasterKeepsWhatRoundingLoses) {
  const int64_t n = 37;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const DType grad_dtype : {dtype, DType::kF32}) {
      const Tensor param = Make(dtype, {n}, Doubles(n, 1));
      const Tensor master = Make(DType::kF32, {n}, Doubles(n, 1));
      const Tensor grad = Make(grad_dtype, {n}, Doubles(n, 1));
      for (int step = 0; step < 64; ++step) {
        ASSERT_THAT(Sgd(device(), {.lr = 0x1p-12}, param, grad, Tensor(), Tensor(), master),
                    IsOk());
      }
      EXPECT_EQ(Read(master), Doubles(n, 1 - 0x1p-6));
      EXPECT_EQ(Read(param), Doubles(n, 1 - 0x1p-6));
    }
  }
}

TEST_P(AdamWTest, ClipScale) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor norm = Empty(dtype, {}), scale = Empty(dtype, {});
    const auto run = [&](double squares, double max_norm) {
      EXPECT_THAT(ClipScale(device(), Make(dtype, {}, {squares}), max_norm, norm, scale), IsOk());
      return Read(scale)[0];
    };
    EXPECT_NEAR(run(16, 1), 0.25, 1e-6);
    EXPECT_EQ(Read(norm)[0], 4);
    EXPECT_EQ(run(16, 10), 1);
    EXPECT_EQ(run(16, 0), 1);
    EXPECT_EQ(run(0, 1), 1);
    // Of gradients that are 8 times too large.
    EXPECT_THAT(ClipScale(device(), Make(dtype, {}, {1024}), 2, norm, scale, 1.0 / 8), IsOk());
    EXPECT_EQ(Read(norm)[0], 4);
    EXPECT_NEAR(Read(scale)[0], 0.5 / 8, 1e-6);
  }
}

}  // namespace
}  // namespace dtensor::kernels
