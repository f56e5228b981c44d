#include "dtensor/runtime/interop/adopt.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

template <typename T>
constexpr bool kAdopts = requires(Device& device, absl::Span<T> values) {
  AdoptSpan<T>(device, values, {2});
};
static_assert(kAdopts<int64_t> && kAdopts<const bool> && kAdopts<BFloat16>);
static_assert(!kAdopts<long long> && !kAdopts<const unsigned char> && !kAdopts<uint32_t>);

class AdoptTest : public testing::TestWithParam<Device::Kind> {
 protected:
  void SetUp() override {
    device_ = GetParam() == Device::Kind::kCpu
                  ? MakeCpuDevice()
                  : MakeDeferredDevice({.seed = 3, .max_delay_us = 500});
  }
  // Counts, and frees: AddressSanitizer sees whoever reads later, and who frees twice.
  std::function<void()> Freeing(float* data) {
    return [this, data] {
      ++deleted_;
      delete[] data;
    };
  }
  std::unique_ptr<Device> device_;
  std::atomic<int> deleted_ = 0;
};

TEST_P(AdoptTest, IsTheSpan) {
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                          AdoptSpan<float>(*device_, absl::MakeSpan(values), {2, 3}));
  EXPECT_EQ(tensor.raw(), values.data());
  EXPECT_EQ(tensor.strides(), Dims({3, 1}));
  ASSERT_THAT(tensor.BeforeWrite(), IsOk());
  ASSERT_THAT(device_->FillBytes(tensor.raw(), 0, 4), IsOk());
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_THAT(values, ElementsAre(0, 2, 3, 4, 5, 6));
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_P(AdoptTest, TheDeleterRunsOnceWithTheLastView) {
  auto* data = new float[4]{1, 2, 3, 4};
  Tensor view;
  {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor,
                            AdoptSpan(*device_, absl::MakeSpan(data, 4), {4}, Freeing(data)));
    view = tensor.Narrow(0, 1, 2);
    ASSERT_THAT(device_->Synchronize(), IsOk());
    EXPECT_EQ(deleted_, 0);
  }
  EXPECT_THAT(ToHost<float>(view), IsOkAndHolds(ElementsAre(2, 3)));
  // In stream order: what was launched still reads the memory.
  DT_ASSERT_OK_AND_ASSIGN(const Tensor copy, Tensor::Empty(*device_, DType::kF32, {2}));
  ASSERT_THAT(device_->CopyOnDevice(copy.raw(), view.raw(), 8), IsOk());
  view = Tensor();
  EXPECT_THAT(ToHost<float>(copy), IsOkAndHolds(ElementsAre(2, 3)));
  EXPECT_EQ(deleted_, 1);
}

TEST_P(AdoptTest, TheDeleterRunsOnErrorsToo) {
  auto* data = new float[4];
  EXPECT_THAT(AdoptSpan(*device_, absl::MakeSpan(data, 4), {5}, Freeing(data)),
              StatusIs(kInvalid, HasSubstr("[5] does not have 4 elements")));
  EXPECT_EQ(deleted_, 1);
  data = new float[4];
  EXPECT_THAT(AdoptMemory(*device_, {.data = data, .shape = {-4}, .deleter = Freeing(data)}),
              StatusIs(kInvalid));
  EXPECT_EQ(deleted_, 2);
}

TEST_P(AdoptTest, ReadOnlyMemoryIsCopiedBeforeItIsWritten) {
  auto* data = new float[2]{1, 2};
  DT_ASSERT_OK_AND_ASSIGN(Tensor tensor,
                          AdoptSpan(*device_, absl::MakeConstSpan(data, 2), {2}, Freeing(data)));
  const Tensor alias = tensor;
  EXPECT_EQ(tensor.raw(), data) << "no copy to read it";
  EXPECT_FALSE(tensor.is_only_user()) << "no reduction takes its memory";
  ASSERT_THAT(tensor.BeforeWrite(), IsOk());
  ASSERT_NE(tensor.raw(), data);
  ASSERT_THAT(device_->FillBytes(tensor.raw(), 0, 4), IsOk());
  EXPECT_THAT(ToHost<float>(alias), IsOkAndHolds(ElementsAre(0, 2)));
  EXPECT_EQ(deleted_, 1) << "nobody reads it any more";
}

TEST_P(AdoptTest, StridesAsTheyCome) {
  std::vector<int32_t> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  DT_ASSERT_OK_AND_ASSIGN(const Tensor columns, AdoptMemory(*device_, {.data = &values[1],
                                                                       .dtype = DType::kI32,
                                                                       .shape = {2, 3},
                                                                       .strides = Dims({1, 4})}));
  EXPECT_THAT(ToHost<int32_t>(columns), IsOkAndHolds(ElementsAre(1, 5, 9, 2, 6, 10)));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor broadcast, AdoptMemory(*device_, {.data = values.data(),
                                                                         .dtype = DType::kI32,
                                                                         .shape = {2, 2},
                                                                         .strides = Dims({0, 1})}));
  EXPECT_THAT(ToHost<int32_t>(broadcast), IsOkAndHolds(ElementsAre(0, 1, 0, 1)));
  // What no element needs may be anything.
  DT_ASSERT_OK_AND_ASSIGN(const Tensor row, AdoptMemory(*device_, {.data = values.data(),
                                                                   .dtype = DType::kI32,
                                                                   .shape = {1, 2},
                                                                   .strides = Dims({-7, 1})}));
  EXPECT_TRUE(row.is_contiguous());
  DT_ASSERT_OK_AND_ASSIGN(const Tensor none,
                          AdoptMemory(*device_, {.shape = {3, 0}, .strides = Dims({-1, 5})}));
  EXPECT_THAT(ToHost<float>(none), IsOkAndHolds(testing::IsEmpty()));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor scalar,
                          AdoptMemory(*device_, {.data = &values[3], .dtype = DType::kI32}));
  EXPECT_THAT(ToHost<int32_t>(scalar), IsOkAndHolds(ElementsAre(3)));
}

TEST_P(AdoptTest, RefusesWhatNoTensorIs) {
  std::vector<float> values(64);
  const auto refusal = [&](void* data, Dims shape, Dims strides) {
    return std::string(
        AdoptMemory(*device_,
                    {.data = data, .shape = std::move(shape), .strides = std::move(strides)})
            .status()
            .message());
  };
  float* const data = values.data();
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(refusal(nullptr, {2}, {1}), HasSubstr("null"));
  EXPECT_THAT(refusal(reinterpret_cast<char*>(data) + 2, {2}, {1}), HasSubstr("not aligned"));
  EXPECT_THAT(refusal(data, {2}, {-1}), HasSubstr("backwards"));
  EXPECT_THAT(refusal(data, {2, 2}, {1}), HasSubstr("one for each size"));
  EXPECT_THAT(refusal(data, {2, 2}, {1, 1}), HasSubstr("one place in memory"));
  EXPECT_THAT(refusal(data, {4, 4}, {2, 1}), HasSubstr("one place in memory"));
  EXPECT_THAT(refusal(data, {3}, {kHuge}), HasSubstr("beyond the last address"));
  EXPECT_THAT(refusal(data, {2}, {kHuge / 4}), HasSubstr("beyond the last address"));
  EXPECT_THAT(refusal(data, {2, 2}, {kHuge, kHuge}), HasSubstr("beyond the last address"));
  EXPECT_THAT(refusal(data, {kHuge, kHuge}, {0, 0}), HasSubstr("elements"));
  EXPECT_THAT(refusal(data, {std::numeric_limits<int64_t>::min()}, {1}), HasSubstr("size"));
}

INSTANTIATE_TEST_SUITE_P(Devices, AdoptTest,
                         testing::Values(Device::Kind::kCpu, Device::Kind::kDeferred),
                         [](const auto& info) { return std::string(ToString(info.param)); });

TEST(AdoptOnMetaTest, HasAShapeAlone) {
  const auto meta = MakeMetaDevice();
  bool deleted = false;
  {
    DT_ASSERT_OK_AND_ASSIGN(
        const Tensor tensor,
        AdoptMemory(*meta, {.data = nullptr, .shape = {2}, .deleter = [&] { deleted = true; }}));
    EXPECT_EQ(tensor.shape(), Dims({2}));
    EXPECT_EQ(tensor.raw(), nullptr);
  }
  EXPECT_TRUE(deleted);
}

TEST(AdoptOnMetaTest, RefusesTheStridesThatOthersRefuse) {
  const auto meta = MakeMetaDevice();
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  const auto adopt = [&](Dims shape, Dims strides) {
    return AdoptMemory(*meta, {.shape = std::move(shape), .strides = std::move(strides)});
  };
  EXPECT_THAT(adopt({2, 2}, {-1, 1}), StatusIs(kInvalid, HasSubstr("backwards")));
  EXPECT_THAT(adopt({2, 2}, {1, 1}), StatusIs(kInvalid, HasSubstr("one place in memory")));
  EXPECT_THAT(adopt({2}, {kHuge}), StatusIs(kInvalid, HasSubstr("beyond the last address")));
  EXPECT_THAT(adopt({3, 3}, {kHuge / 4, 1}),
              StatusIs(kInvalid, HasSubstr("beyond the last address")));
  EXPECT_THAT(adopt({3, 2}, {1, 3}), IsOk());
}

}  // namespace
}  // namespace dtensor
