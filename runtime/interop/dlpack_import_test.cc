// What FromDlpack accepts and refuses; what is deleted, by which side, and when.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/interop/dlpack.h"
#include "dtensor/runtime/interop/dlpack_abi.h"
#include "dtensor/runtime/testing/foreign_tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// 0, 1, 2, ...; counts its deleter's calls.
template <typename Managed>
std::unique_ptr<Managed, CallDlpackDeleter> Foreign(
    std::vector<int64_t> shape, std::vector<int64_t> strides, int num_values,
    std::atomic<int>& deleted, const std::function<void(Managed&)>& change = nullptr) {
  std::vector<float> values(num_values);
  std::iota(values.begin(), values.end(), 0);
  return MakeForeign<Managed>(
      std::move(values), std::move(shape), std::move(strides), [&deleted] { ++deleted; }, change);
}

template <typename Managed>
class DlpackImportTest : public testing::Test {
 protected:
  std::unique_ptr<Device> device_ = MakeCpuDevice();
  std::atomic<int> deleted_ = 0;
};
using Kinds = testing::Types<DLManagedTensorVersioned, DLManagedTensor>;
TYPED_TEST_SUITE(DlpackImportTest, Kinds);

TYPED_TEST(DlpackImportTest, IsTheSameMemoryAndIsGivenBackOnce) {
  auto foreign = Foreign<TypeParam>({2, 3}, {}, 6, this->deleted_);
  void* const data = foreign->dl_tensor.data;
  {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromDlpack(*this->device_, std::move(foreign)));
    EXPECT_EQ(tensor.raw(), data);
    EXPECT_THAT(ToHost<float>(tensor), IsOkAndHolds(ElementsAre(0, 1, 2, 3, 4, 5)));
    const Tensor other = tensor;
    EXPECT_EQ(this->deleted_, 0);
  }
  EXPECT_EQ(this->deleted_, 1);
}

TYPED_TEST(DlpackImportTest, StridesAndOffset) {
  DT_ASSERT_OK_AND_ASSIGN(
      const Tensor tensor,
      FromDlpack(*this->device_, Foreign<TypeParam>({3, 2}, {1, 3}, 7, this->deleted_,
                                                    [](auto& m) { m.dl_tensor.byte_offset = 4; })));
  EXPECT_THAT(ToHost<float>(tensor), IsOkAndHolds(ElementsAre(1, 4, 2, 5, 3, 6)));
}

TYPED_TEST(DlpackImportTest, ScalarsAndNoElements) {
  DT_ASSERT_OK_AND_ASSIGN(
      const Tensor scalar,
      FromDlpack(*this->device_, Foreign<TypeParam>({}, {}, 1, this->deleted_,
                                                    [](auto& m) { m.dl_tensor.shape = nullptr; })));
  EXPECT_THAT(ToHost<float>(scalar), IsOkAndHolds(ElementsAre(0)));
  DT_ASSERT_OK_AND_ASSIGN(
      const Tensor none,
      FromDlpack(*this->device_, Foreign<TypeParam>({2, 0}, {0, 0}, 0, this->deleted_,
                                                    [](auto& m) { m.dl_tensor.data = nullptr; })));
  EXPECT_EQ(none.shape(), Dims({2, 0}));
}

TYPED_TEST(DlpackImportTest, PinnedMemoryIsHostMemory) {
  for (const DLDeviceType type : {kDLCUDAHost, kDLROCMHost}) {
    EXPECT_THAT(FromDlpack(*this->device_, Foreign<TypeParam>({1}, {1}, 1, this->deleted_,
                                                              [&](auto& m) {
                                                                m.dl_tensor.device = {type, 3};
                                                              })),
                IsOk());
  }
}

TYPED_TEST(DlpackImportTest, ANullDeleterOwnsNothing) {
  std::unique_ptr<TypeParam, CallDlpackDeleter> foreign;
  float value = 7;
  TypeParam managed = {};
  managed.dl_tensor = {.data = &value, .device = {kDLCPU, 0}, .dtype = {kDLFloat, 32, 1}};
  if constexpr (std::is_same_v<TypeParam, DLManagedTensorVersioned>) managed.version = {1, 0};
  foreign.reset(&managed);
  EXPECT_THAT(FromDlpack(*this->device_, std::move(foreign)), IsOk());
}

TYPED_TEST(DlpackImportTest, RefusalsNameTheRemedyAndGiveBack) {
  int refused = 0;
  const auto refusal = [&](const std::function<void(TypeParam&)>& change) {
    auto result =
        FromDlpack(*this->device_, Foreign<TypeParam>({2, 2}, {2, 1}, 4, this->deleted_, change));
    EXPECT_THAT(result, StatusIs(kInvalid));
    EXPECT_EQ(this->deleted_, ++refused) << "an error consumes the handle";
    return std::string(result.status().message());
  };
  using M = TypeParam&;
  EXPECT_THAT(refusal([](M m) {
                m.dl_tensor.device = {kDLCUDA, 1};
              }),
              AllOf(HasSubstr("device 2:1"), HasSubstr("cpu is 1:0"), HasSubstr("copy it there")));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.device.device_type = DLDeviceType(99); }),
              HasSubstr("99"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.dtype.lanes = 2; }), HasSubstr("one lane"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.dtype = {kDLComplex, 64, 1}; }), HasSubstr("code 5"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.dtype = {kDLUInt, 8, 1}; }), HasSubstr("convert"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.dtype.bits = 31; }), HasSubstr("31 bits"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.ndim = -1; }), HasSubstr("-1 dimensions"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.ndim = 65; }), HasSubstr("65 dimensions"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.shape = nullptr; }), HasSubstr("no sizes"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.byte_offset = ~uint64_t{0}; }),
              HasSubstr("byte offset"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.byte_offset = 2; }), HasSubstr("not aligned"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.data = nullptr; }), HasSubstr("null"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.strides[1] = -1; }), HasSubstr("copy the tensor"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.strides[0] = 1; }), HasSubstr("one place"));
  EXPECT_THAT(refusal([](M m) { m.dl_tensor.shape[0] = -2; }), HasSubstr("-2"));
  if constexpr (std::is_same_v<TypeParam, DLManagedTensorVersioned>) {
    EXPECT_THAT(refusal([](M m) { m.version = {2, 3}; }), HasSubstr("DLPack 2.3"));
  }
  EXPECT_THAT(FromDlpack(*this->device_, std::unique_ptr<TypeParam, CallDlpackDeleter>()),
              StatusIs(kInvalid));
}

TEST(DlpackTest, ReadOnlyMemoryIsCopiedBeforeItIsWritten) {
  const auto device = MakeCpuDevice();
  std::atomic<int> deleted = 0;
  auto foreign = Foreign<DLManagedTensorVersioned>(
      {2}, {}, 2, deleted, [](auto& m) { m.flags = DLPACK_FLAG_BITMASK_READ_ONLY; });
  const auto* const theirs = static_cast<float*>(foreign->dl_tensor.data);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor tensor, FromDlpack(*device, std::move(foreign)));
  EXPECT_EQ(tensor.raw(), theirs);
  ASSERT_THAT(tensor.BeforeWrite(), IsOk());
  EXPECT_NE(tensor.raw(), theirs);
  EXPECT_EQ(deleted, 1);
  EXPECT_THAT(ToHost<float>(tensor), IsOkAndHolds(ElementsAre(0, 1)));
}

TEST(DlpackTest, OnMetaAnImportHasAShapeAlone) {
  const auto meta = MakeMetaDevice();
  std::atomic<int> deleted = 0;
  {
    DT_ASSERT_OK_AND_ASSIGN(
        const Tensor tensor,
        FromDlpack(*meta, Foreign<DLManagedTensorVersioned>({2, 3}, {}, 6, deleted)));
    EXPECT_EQ(tensor.shape(), Dims({2, 3}));
    EXPECT_EQ(tensor.raw(), nullptr);
  }
  EXPECT_EQ(deleted, 1);
}

}  // namespace
}  // namespace dtensor
