#include "dtensor/runtime/device/tensor.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/runtime/device/deferred/deferred_device.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/meta/meta_device.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::vector<float> Iota(int n) {
  std::vector<float> values(n);
  for (int i = 0; i < n; ++i) values[i] = i;
  return values;
}

// On a device where nothing is ready when a call returns.
class TensorTest : public testing::Test {
 protected:
  // 0, 1, 2, ... of this shape.
  Tensor Count(absl::Span<const int64_t> shape) {
    const std::vector<float> values = Iota(NumElements(shape));
    return FromHost<float>(*device_, values, shape).value();
  }
  std::vector<float> Values(const Tensor& tensor) { return ToHost<float>(tensor).value(); }

  std::unique_ptr<Device> device_ = MakeDeferredDevice({.seed = 1});
};

TEST_F(TensorTest, AHandleMayBeEmpty) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_TRUE(Count({}).defined());
}

TEST_F(TensorTest, EmptyIsRowMajor) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kBF16, {2, 3, 4}));
  EXPECT_EQ(t.dtype(), DType::kBF16);
  EXPECT_THAT(t.shape(), ElementsAre(2, 3, 4));
  EXPECT_THAT(t.strides(), ElementsAre(12, 4, 1));
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.bytes(), 48);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(&t.device(), device_.get());
  EXPECT_EQ(device_->memory().live_bytes, 48);
}

TEST_F(TensorTest, RefusesImpossibleShapes) {
  EXPECT_THAT(Tensor::Empty(*device_, DType::kF32, {2, -1}),
              StatusIs(Code::kInvalidArgument, HasSubstr("[2, -1]")));
  EXPECT_THAT(Tensor::Empty(*device_, DType::kF32, {0, -1}), StatusIs(Code::kInvalidArgument));
  const int64_t large = int64_t{1} << 32;
  EXPECT_THAT(Tensor::Empty(*device_, DType::kF32, {large, large}),
              StatusIs(Code::kResourceExhausted));
  EXPECT_THAT(Tensor::Empty(*device_, DType::kF32, {0, large, large}),
              StatusIs(Code::kResourceExhausted));
  EXPECT_THAT(Tensor::Empty(*device_, DType::kF32, {0, large}), IsOk());
}

TEST_F(TensorTest, NoElementsNeedNoMemory) {
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, Tensor::Empty(*device_, DType::kF32, {3, 0}));
  EXPECT_TRUE(t.defined());
  EXPECT_EQ(t.raw(), nullptr);
  EXPECT_EQ(t.numel(), 0);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_THAT(Values(t), ElementsAre());
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_F(TensorTest, AScalarHasOneElement) {
  const Tensor t = Count({});
  EXPECT_EQ(t.ndim(), 0);
  EXPECT_EQ(t.numel(), 1);
  EXPECT_THAT(Values(t), ElementsAre(0));
}

TEST_F(TensorTest, TheLastViewFreesTheStorage) {
  Tensor view;
  {
    const Tensor t = Count({4, 4});
    view = t.Narrow(0, 1, 1);
    EXPECT_TRUE(view.SharesStorageWith(t));
    EXPECT_FALSE(view.SharesStorageWith(Count({4, 4})));
  }
  EXPECT_EQ(device_->memory().live_bytes, 64);
  EXPECT_THAT(Values(view), ElementsAre(4, 5, 6, 7));
  view = Tensor();
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_F(TensorTest, AdoptedMemoryIsGivenBackOnceAndInOrder) {
  float values[] = {1, 2, 3, 4, 5, 6};
  int deleted = 0;
  std::vector<float> read;
  {
    Tensor t = Tensor::Adopt(*device_, values, DType::kF32, {2, 2}, {3, 1}, [&] { ++deleted; });
    const Tensor view = t.Transpose(0, 1);
    t = Tensor();
    EXPECT_THAT(Values(view), ElementsAre(1, 4, 2, 5));
    EXPECT_EQ(deleted, 0);
    ASSERT_THAT(device_->Launch("Last", [&] { read.push_back(values[0] + deleted); }), IsOk());
  }
  ASSERT_THAT(device_->Synchronize(), IsOk());
  EXPECT_EQ(deleted, 1);
  EXPECT_THAT(read, ElementsAre(1));
  EXPECT_EQ(device_->memory().live_bytes, 0);
}

TEST_F(TensorTest, AdoptedMemoryNeedsNoDeleter) {
  float value = 3;
  const Tensor t = Tensor::Adopt(*device_, &value, DType::kF32, {}, {}, nullptr);
  EXPECT_THAT(Values(t), ElementsAre(3));
}

TEST_F(TensorTest, Transposes) {
  const Tensor t = Count({2, 3}).Transpose(0, 1);
  EXPECT_THAT(t.shape(), ElementsAre(3, 2));
  EXPECT_THAT(t.strides(), ElementsAre(1, 3));
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_THAT(Values(t), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_TRUE(Count({1, 3}).Transpose(0, 1).is_contiguous());
}

TEST_F(TensorTest, Narrows) {
  const Tensor t = Count({3, 4});
  EXPECT_THAT(Values(t.Narrow(1, 1, 2)), ElementsAre(1, 2, 5, 6, 9, 10));
  EXPECT_THAT(Values(t.Narrow(1, 1, 2).Narrow(0, 2, 1)), ElementsAre(9, 10));
  const Tensor none = t.Narrow(0, 3, 0);
  EXPECT_THAT(none.shape(), ElementsAre(0, 4));
  EXPECT_EQ(none.raw(), nullptr);
  EXPECT_THAT(Values(none), ElementsAre());
}

TEST_F(TensorTest, Views) {
  const Tensor t = Count({12});
  EXPECT_THAT(Values(t.View({2, 2}, {6, 2}, 1)), ElementsAre(1, 3, 7, 9));
  EXPECT_THAT(Values(t.Narrow(0, 4, 8).View({2}, {1}, -4)), ElementsAre(0, 1));
  EXPECT_DEATH(t.View({2, 2}, {6, 6}, 0), "View: the view reaches outside");
  EXPECT_DEATH(t.View({2}, {1}, -1), "View: the view reaches outside");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_DEATH(t.View({2}, {kMost}, 0), "View: the view reaches outside");
  EXPECT_DEATH(t.View({5}, {int64_t{1} << 60}, 0), "View: the view reaches outside");
  EXPECT_DEATH(t.View({1}, {1}, int64_t{1} << 62), "View: the view reaches outside");
}

TEST_F(TensorTest, Broadcasts) {
  const Tensor t = Count({2, 1}).BroadcastTo({2, 2, 3});
  EXPECT_THAT(t.strides(), ElementsAre(0, 1, 0));
  EXPECT_THAT(Values(t), ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(Values(Count({1}).BroadcastTo({0})), ElementsAre());
  EXPECT_DEATH(t.BroadcastTo({4, 2, 3}), "BroadcastTo: only dimensions of size 1");
}

// Whether strides can say it, by brute force: each dimension's stride is what one step along it
// does to the address. `addresses` are those of all elements, in order.
bool StridesExist(const std::vector<float>& addresses, const Dims& shape) {
  const Dims steps = RowMajorStrides(shape);
  for (size_t i = 0; i < addresses.size(); ++i) {
    float address = addresses[0];
    for (size_t d = 0; d < shape.size(); ++d) {
      const int64_t index = static_cast<int64_t>(i) / steps[d] % shape[d];
      if (index > 0) address += index * (addresses[steps[d]] - addresses[0]);
    }
    if (address != addresses[i]) return false;
  }
  return true;
}

// 24 elements in every order that dimensions can be swapped to, seen in every shape.
TEST_F(TensorTest, ReshapesWhereverStridesExist) {
  const std::vector<Dims> shapes = {{24},    {4, 6},     {6, 4},       {2, 3, 4},  {2, 12},
                                    {12, 2}, {1, 24},    {24, 1},      {2, 1, 12}, {4, 3, 2},
                                    {3, 8},  {1, 1, 24}, {3, 2, 2, 2}, {8, 3}};
  // Sizes of 1 with strides that fit nothing, gaps, and elements that are seen twice.
  std::vector<Tensor> tensors = {
      Count({2, 3, 12}).Narrow(1, 1, 1),       Count({4, 6, 5}).Narrow(2, 0, 1),
      Count({7, 2, 2, 6}).Narrow(0, 2, 1),     Count({6, 9}).Narrow(1, 3, 4),
      Count({3, 2, 1}).BroadcastTo({3, 2, 4}), Count({48}).View({2, 1, 12}, {24, 99, 2}, 0),
      Count({6}).BroadcastTo({2, 2, 6})};
  for (const Dims& shape : shapes) {
    for (int swap = 0; swap < static_cast<int>(shape.size()); ++swap) {
      tensors.push_back(Count(shape).Transpose(swap, shape.size() - 1));
    }
  }
  int viewed = 0, refused = 0;
  for (const Tensor& t : tensors) {
    const std::vector<float> addresses = Values(t);
    for (const Dims& shape : shapes) {
      SCOPED_TRACE(DimsToString(t.shape()) + " " + DimsToString(t.strides()) + " to " +
                   DimsToString(shape));
      const auto view = t.Reshape(shape);
      EXPECT_EQ(view.ok(), StridesExist(addresses, shape));
      (view.ok() ? viewed : refused) += 1;
      if (view.ok()) {
        EXPECT_THAT(view->shape(), testing::ElementsAreArray(shape));
        EXPECT_EQ(Values(*view), addresses);
      } else {
        EXPECT_THAT(view, StatusIs(Code::kFailedPrecondition, HasSubstr("copy the tensor")));
      }
    }
  }
  EXPECT_GT(viewed, 100);
  EXPECT_GT(refused, 50);
}

TEST_F(TensorTest, ReshapesPartOfATensorWithoutACopy) {
  // Heads: (tokens, heads * size) cut to some tokens, seen as (heads, tokens, size).
  const Tensor t = Count({6, 8}).Narrow(1, 2, 4);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor heads, t.Reshape({6, 2, 2}));
  EXPECT_THAT(heads.strides(), ElementsAre(8, 2, 1));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor back, heads.Reshape({6, 4}));
  EXPECT_THAT(back.strides(), ElementsAre(8, 1));
  DT_ASSERT_OK_AND_ASSIGN(const Tensor halves, t.Reshape({2, 3, 4}));
  EXPECT_THAT(halves.strides(), ElementsAre(24, 8, 1));
  EXPECT_THAT(t.Reshape({24}), StatusIs(Code::kFailedPrecondition));
}

TEST_F(TensorTest, ReshapeKeepsTheNumberOfElements) {
  EXPECT_THAT(Count({2, 3}).Reshape({4}), StatusIs(Code::kInvalidArgument, HasSubstr("[2, 3]")));
  EXPECT_THAT(Count({0, 3}).Reshape({5, 0}), IsOk());
  DT_ASSERT_OK_AND_ASSIGN(const Tensor scalar, Count({1, 1}).Transpose(0, 1).Reshape({}));
  EXPECT_THAT(Values(scalar), ElementsAre(0));
}

TEST_F(TensorTest, ReshapesBroadcastTensors) {
  const Tensor t = Count({3}).BroadcastTo({2, 2, 3});
  DT_ASSERT_OK_AND_ASSIGN(const Tensor flat, t.Reshape({4, 3}));
  EXPECT_THAT(flat.strides(), ElementsAre(0, 1));
  EXPECT_EQ(Values(flat), Values(t));
  EXPECT_THAT(t.Reshape({12}), StatusIs(Code::kFailedPrecondition));
}

template <typename T>
class HostDataTest : public testing::Test {};
using Types = testing::Types<float, double, BFloat16, Float16, int32_t, int64_t, bool>;
TYPED_TEST_SUITE(HostDataTest, Types);

TYPED_TEST(HostDataTest, GoesInAndOut) {
  using T = TypeParam;
  const T values[] = {T(1), T(0), T(1), T(1), T(0), T(0)};
  for (const auto& device : {MakeCpuDevice(), MakeDeferredDevice()}) {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor t, FromHost<T>(*device, values, {2, 3}));
    EXPECT_EQ(SizeOf(t.dtype()), sizeof(T));
    DT_ASSERT_OK_AND_ASSIGN(const std::vector<T> same, ToHost<T>(t));
    DT_ASSERT_OK_AND_ASSIGN(const std::vector<T> turned, ToHost<T>(t.Transpose(0, 1)));
    ASSERT_EQ(same.size(), 6);
    ASSERT_EQ(turned.size(), 6);
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(static_cast<float>(same[i]), static_cast<float>(values[i])) << i;
      EXPECT_EQ(static_cast<float>(turned[i]), static_cast<float>(values[i % 2 * 3 + i / 2])) << i;
    }
  }
}

TEST_F(TensorTest, HostDataMayGoAtOnce) {
  auto values = std::make_unique<std::vector<float>>(1000, 5.0f);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, FromHost<float>(*device_, *values, {1000}));
  values->assign(1000, 6.0f);
  values.reset();
  EXPECT_EQ(Values(t), std::vector<float>(1000, 5.0f));
}

TEST_F(TensorTest, HostDataMustFit) {
  EXPECT_THAT(FromHost<float>(*device_, {1, 2, 3}, {2, 2}),
              StatusIs(Code::kInvalidArgument, HasSubstr("[2, 2] does not have 3 elements")));
  EXPECT_THAT(ToHost<double>(Count({2})),
              StatusIs(Code::kInvalidArgument, HasSubstr("is f32, not f64")));
}

TEST_F(TensorTest, UndefinedOnesHaveNoHostData) {
  EXPECT_THAT(ToHost<float>(Tensor()), StatusIs(Code::kInvalidArgument, HasSubstr("undefined")));
  EXPECT_THAT(Tensor().Reshape({1}), StatusIs(Code::kInvalidArgument, HasSubstr("undefined")));
}

TEST(TensorDeathTest, SaysWhatWasDoneToAnUndefinedOne) {
  EXPECT_DEATH(Tensor().device(), "^dtensor: Tensor::device\\(\\) of an undefined tensor");
  EXPECT_DEATH(Tensor().View({1}, {1}, 0), "^dtensor: Tensor::View\\(\\) of an undefined tensor");
  EXPECT_DEATH(Tensor().BroadcastTo({1}), "^dtensor: Tensor::BroadcastTo\\(\\) of an undefined");
}

// More than the host has, though the device has one element.
TEST_F(TensorTest, HostDataMayBeTooLarge) {
  const Tensor one = Count({1});
  EXPECT_THAT(ToHost<float>(one.BroadcastTo({int64_t{1} << 61, 4})),
              StatusIs(Code::kResourceExhausted, HasSubstr("2305843009213693952")));
// Sanitizers end a process that asks for so much.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_THAT(ToHost<float>(one.BroadcastTo({int64_t{1} << 45})),
              StatusIs(Code::kResourceExhausted, HasSubstr("ToHost of [35184372088832] f32")));
#endif
}

TEST_F(TensorTest, TheDeviceCountsTheirMemory) {
  EXPECT_EQ(device_->tensors(), 0);
  Tensor first = Count({4});
  const Tensor view = first.Narrow(0, 1, 2);
  const Tensor empty = Count({0});
  EXPECT_EQ(device_->tensors(), 2);
  first = Tensor();
  EXPECT_EQ(device_->tensors(), 2);
}

TEST_F(TensorTest, HostDataComesFromNoFailedDevice) {
  const Tensor t = Count({2});
  device_->Fail(absl::InternalError("broken"));
  EXPECT_THAT(ToHost<float>(t), StatusIs(Code::kInternal));
  EXPECT_THAT(FromHost<float>(*device_, {1}, {1}), StatusIs(Code::kInternal));
}

// --- Writing in place.

// Adds 100 to each element, as a kernel would.
void Write(Device& device, const Tensor& tensor) {
  DT_ASSERT_OK(tensor.BeforeWrite());
  const std::vector<float> values = ToHost<float>(tensor).value();
  DT_ASSERT_OK(device.Launch("Write", [data = tensor.data<float>(), values] {
    for (size_t i = 0; i < values.size(); ++i) data[i] = values[i] + 100;
  }));
}

TEST_F(TensorTest, AnAliasSeesAWriteAndAValueDoesNot) {
  const Tensor t = Count({2, 2});
  const Tensor alias = t.Transpose(0, 1), value = t.Borrow();
  const Tensor column_of_value = value.Narrow(1, 1, 1);
  EXPECT_EQ(value.raw(), t.raw());  // until somebody writes
  EXPECT_TRUE(value.SharesStorageWith(alias));
  Write(*device_, t);
  EXPECT_THAT(Values(alias), ElementsAre(100, 102, 101, 103));
  EXPECT_THAT(Values(value), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Values(column_of_value), ElementsAre(1, 3));
  EXPECT_FALSE(value.SharesStorageWith(t));
  EXPECT_EQ(t.version(), 1u);
  EXPECT_EQ(alias.version(), 1u);
  EXPECT_EQ(value.version(), 0u);
}

TEST_F(TensorTest, AWriteToAValueLeavesItsSourceAlone) {
  const Tensor t = Count({2, 2});
  const Tensor middle = t.Borrow(), value = middle.Narrow(0, 0, 1).Borrow();
  Write(*device_, middle);
  EXPECT_THAT(Values(t), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Values(value), ElementsAre(0, 1));
  EXPECT_THAT(Values(middle), ElementsAre(100, 101, 102, 103));
  EXPECT_EQ(t.version(), 0u);
}

TEST_F(TensorTest, AValueKeepsTheMemoryOfItsSource) {
  Tensor value;
  {
    const Tensor t = Count({4});
    EXPECT_TRUE(t.is_only_user());
    value = t.Narrow(0, 1, 2).Borrow();
    EXPECT_FALSE(t.is_only_user());
    EXPECT_FALSE(value.is_only_user());
  }
  EXPECT_EQ(device_->memory().live_bytes, 16);
  EXPECT_THAT(Values(value), ElementsAre(1, 2));
  DT_ASSERT_OK(value.BeforeWrite());
  EXPECT_EQ(device_->memory().live_bytes, 8);
  EXPECT_TRUE(value.is_only_user());
  EXPECT_THAT(Values(value), ElementsAre(1, 2));
}

TEST_F(TensorTest, KnowsWhetherIndicesMeetInOneElement) {
  EXPECT_TRUE(Count({1, 2}).BroadcastTo({3, 2}).overlaps_itself());
  EXPECT_FALSE(Count({1, 2}).BroadcastTo({1, 2}).overlaps_itself());
  EXPECT_FALSE(Count({1, 2}).BroadcastTo({0, 2}).overlaps_itself());
  EXPECT_FALSE(Count({3, 2}).Transpose(0, 1).overlaps_itself());
  EXPECT_TRUE(Count({4}).View({3, 2}, {1, 1}, 0).overlaps_itself()) << "windows";
  EXPECT_FALSE(Count({4}).View({1, 2}, {1, 1}, 0).overlaps_itself());
  EXPECT_FALSE(Count({9}).View({2, 3}, {1, 3}, 0).overlaps_itself());
  EXPECT_TRUE(Count({9}).View({2, 3}, {4, 2}, 0).overlaps_itself());
}

TEST(MetaTensorTest, HasAShapeAndNoValues) {
  const auto device = MakeMetaDevice();
  DT_ASSERT_OK_AND_ASSIGN(const Tensor t, FromHost<float>(*device, {1, 2, 3, 4}, {2, 2}));
  EXPECT_EQ(t.raw(), nullptr);
  EXPECT_EQ(t.numel(), 4);
  EXPECT_EQ(device->memory().live_bytes, 16);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor flat, t.Narrow(0, 1, 1).Reshape({2}));
  EXPECT_EQ(flat.BroadcastTo({3, 2}).View({2}, {1}, 0).numel(), 2);
  EXPECT_THAT(ToHost<float>(t), StatusIs(Code::kFailedPrecondition));
}

}  // namespace
}  // namespace dtensor
