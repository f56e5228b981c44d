#include "dtensor/runtime/device/meta/simulated_clock.h"

#include "gtest/gtest.h"

namespace dtensor {
namespace {

// 1 GF/s for everything but bf16 products, and 1 GB/s.
MachineRates Rates() {
  MachineRates rates;
  rates.multiply_gf_per_second = 1;
  rates.gemm_gf_per_second[static_cast<size_t>(DType::kBF16)] = 4;
  rates.copy_gb_per_second = 1;
  return rates;
}

TEST(SimulatedClockTest, KernelsTakeAsLongAsTheirWork) {
  SimulatedClock clock(Rates());
  clock.Compute({.bytes = 2e9});
  EXPECT_DOUBLE_EQ(clock.time().compute_seconds, 2);
  clock.Compute({.dtype = DType::kF64, .gemm_flops = 3e9, .bytes = 1e9});
  EXPECT_DOUBLE_EQ(clock.time().compute_seconds, 5);  // the products take longer than the operands
  clock.Compute({.dtype = DType::kBF16, .gemm_flops = 4e9, .bytes = 1.5e9});
  EXPECT_DOUBLE_EQ(clock.time().compute_seconds, 6.5);  // and here the operands
  clock.Compute({.dtype = DType::kBF16, .attention_flops = 4e9});
  EXPECT_DOUBLE_EQ(clock.time().compute_seconds, 10.5);
  EXPECT_DOUBLE_EQ(clock.time().total(), 10.5);
  EXPECT_EQ(clock.work().kernels, 4);
  EXPECT_EQ(clock.work().bytes, 4.5e9);
  EXPECT_EQ(clock.work().gemm_flops[static_cast<size_t>(DType::kF64)], 3e9);
  EXPECT_EQ(clock.work().attention_flops[static_cast<size_t>(DType::kBF16)], 4e9);
}

TEST(SimulatedClockTest, RatesOfTheirOwn) {
  MachineRates rates = Rates();
  rates.memory_gb_per_second = 2;
  rates.call_us = 5;
  SimulatedClock clock(rates);
  clock.Compute({.bytes = 2e9});
  EXPECT_DOUBLE_EQ(clock.time().compute_seconds, 1 + 5e-6);
  clock.Compute({});
  EXPECT_DOUBLE_EQ(clock.time().compute_seconds, 1 + 10e-6);
}

TEST(SimulatedClockTest, WhatIsNotWaitedForIsHidden) {
  SimulatedClock clock(Rates());
  const double end = clock.Communicate("tp", 3);
  EXPECT_DOUBLE_EQ(end, 3);
  clock.Compute({.bytes = 1e9});
  clock.WaitUntil(end);
  EXPECT_EQ(clock.time(), (SimulatedTime{1, 3, 2}));
  clock.WaitUntil(end);  // has been
  EXPECT_EQ(clock.time(), (SimulatedTime{1, 3, 2}));
  const double hidden = clock.Communicate("tp", 2);
  clock.Compute({.bytes = 4e9});
  clock.WaitUntil(hidden);
  EXPECT_EQ(clock.time(), (SimulatedTime{5, 5, 2}));
  EXPECT_DOUBLE_EQ(clock.time().total(), 7);
}

TEST(SimulatedClockTest, ALinkCarriesOneExchangeAtATime) {
  SimulatedClock clock(Rates());
  EXPECT_DOUBLE_EQ(clock.Communicate("tp", 3), 3);
  EXPECT_DOUBLE_EQ(clock.Communicate("dp", 4), 4);     // another link
  EXPECT_DOUBLE_EQ(clock.Communicate("tp", 2), 5);     // behind the first
  EXPECT_DOUBLE_EQ(clock.Communicate("dp,tp", 1), 6);  // behind both
  EXPECT_DOUBLE_EQ(clock.Communicate("dp", 1), 7);
  EXPECT_EQ(clock.time(), (SimulatedTime{0, 11, 0}));
}

TEST(SimulatedClockTest, PartsAreDifferences) {
  SimulatedClock clock(Rates());
  clock.Compute({.bytes = 1e9});
  const SimulatedTime before = clock.time();
  clock.WaitUntil(clock.Communicate("tp", 2));
  EXPECT_EQ(clock.time() - before, (SimulatedTime{0, 2, 2}));
  EXPECT_EQ(before + (clock.time() - before), clock.time());
}

}  // namespace
}  // namespace dtensor
