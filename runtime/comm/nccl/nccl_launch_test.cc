// What a rank launches on NCCL, as far as one GPU can show it: through a communicator of one rank,
// which sends to itself. It exchanges with its mirror image, which has the same tensors, receives
// what this rank does, and has this rank's number in NCCL.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dtensor/runtime/comm/nccl/carry_schedule.h"
#include "dtensor/runtime/comm/nccl/native_launch.h"
#include "dtensor/runtime/comm/nccl/nccl_group.h"
#include "dtensor/runtime/comm/nccl/round_launch.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/cuda_device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/cuda_fixture.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using box_testing::Backed;
using box_testing::DstShape;
using box_testing::ForEachElement;
using box_testing::NaiveReduce;
using box_testing::RandomReceiveBox;
using box_testing::RandomTensor;
using box_testing::SourceShape;

constexpr int kMe = 0, kImage = 9;
constexpr int kBoth[] = {kMe, kImage};
// As CarriedCall::ranks: the first of them is NCCL's rank 0, and so is whoever comes before it.
constexpr int kNumbered[] = {kImage};

absl::Status GoOn() { return absl::OkStatus(); }

struct MirrorPart {
  Backed source, result;  // the result before the exchange
  std::vector<ReceiveBox> receives;
  ReduceOp op = ReduceOp::kSum;
  double scale = 1;
};

class MirrorBoxes final : public ExchangeBoxes {
 public:
  explicit MirrorBoxes(const std::vector<MirrorPart>& parts) : parts_(parts) {}
  std::vector<ReceiveBox> Receives(size_t part, int rank) const override {
    std::vector<ReceiveBox> boxes = parts_[part].receives;
    if (rank == kMe) return boxes;
    for (ReceiveBox& box : boxes) {
      for (int& peer : box.peers) peer = peer == kMe ? kImage : kMe;
    }
    return boxes;
  }
  uint64_t digest() const override { return 0; }  // nothing keeps a schedule of it

 private:
  const std::vector<MirrorPart>& parts_;
};

// Its boxes lie one below the other in the result; each has terms of the image, at most two of it
// and one of this rank, in any order.
MirrorPart RandomPart(TestRandom& random, Device& device) {
  MirrorPart part;
  const auto dtype = random.Of<DType>(box_testing::kAllDTypes);
  const int ndim = static_cast<int>(random.In(1, 3));
  if (dtype == DType::kBool) part.op = ReduceOp::kMax;
  if (IsFloat(dtype) && random.Chance(30)) part.scale = 0.25;
  Dims source(ndim, 0), result(ndim, 0);
  const std::vector<std::vector<int>> peers = {
      {kImage}, {kImage}, {kImage, kMe}, {kMe, kImage}, {kImage, kMe, kImage}};
  for (int64_t boxes = random.In(0, 3); boxes > 0; --boxes) {
    ReceiveBox box = RandomReceiveBox(random, ndim, random.Of<std::vector<int>>(peers));
    box.dims[0].dst += result[0];
    const Dims from = SourceShape(box), to = DstShape(box);
    for (int d = 0; d < ndim; ++d) {
      source[d] = std::max(source[d], from[d]);
      result[d] = std::max(result[d], to[d]);
    }
    part.receives.push_back(box);
  }
  part.source = RandomTensor(random, device, dtype, source);
  part.result = RandomTensor(random, device, dtype, result);
  return part;
}

// Every term is of this rank's own source, which is the image's too.
std::vector<std::byte> Expected(const MirrorPart& part) {
  std::vector<std::byte> bytes = part.result.bytes;
  const Tensor& dst = part.result.tensor;
  for (const ReceiveBox& box : part.receives) {
    ForEachElement(box, dst, part.source.tensor, [&](int64_t from, int64_t to) {
      const std::vector<const std::byte*> terms(box.peers.size(), &part.source.bytes[from]);
      NaiveReduce(dst.dtype(), dst.dtype(), part.op, part.scale, terms, &bytes[to]);
    });
  }
  return bytes;
}

class NcclLaunchTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (device_ == nullptr) return;
    DT_ASSERT_OK_AND_ASSIGN(const std::string id, NewNcclId());
    DT_ASSERT_OK(BeginCudaLaunch(*device_).status());
    DT_ASSERT_OK_AND_ASSIGN(group_, NcclGroup::Connect(id, 1, 0, GoOn));
  }
  void TearDown() override {
    if (group_ == nullptr) return;
    DT_EXPECT_OK(device_->Synchronize());
    DT_EXPECT_OK(group_->End(GoOn));
  }

  CarriedCall Call(absl::Span<const ExchangePart> parts) {
    return {kMe, kNumbered, parts, *device_, CudaStreamOf(*device_), *group_, GoOn, 1 << 20};
  }
  Tensor Upload(const Backed& backed) {
    const auto bytes = static_cast<int64_t>(backed.bytes.size());
    const Tensor flat =
        *Tensor::Empty(*device_, backed.tensor.dtype(), {bytes / SizeOf(backed.tensor.dtype())});
    DT_EXPECT_OK(device_->CopyFromHost(flat.raw(), backed.bytes.data(), bytes));
    return flat.View(backed.tensor.shape(), backed.tensor.strides(), 0);
  }
  void ExpectBytes(const Tensor& tensor, const std::vector<std::byte>& expected) {
    std::vector<std::byte> found(expected.size());
    if (tensor.raw() == nullptr) return;  // no elements
    DT_ASSERT_OK(
        device_->CopyToHost(found.data(), tensor.raw(), static_cast<int64_t>(found.size())));
    DT_ASSERT_OK(device_->Synchronize());
    EXPECT_TRUE(box_testing::SameElements(tensor.dtype(), expected, found));
  }
  // How many bytes came of the image.
  int64_t RunRounds(const std::vector<MirrorPart>& parts, int64_t round_bytes) {
    std::vector<Tensor> sources, results;
    std::vector<int64_t> sizes;
    for (const MirrorPart& part : parts) {
      sources.push_back(Upload(part.source));
      results.push_back(Upload(part.result));
      sizes.push_back(SizeOf(part.source.tensor.dtype()));
    }
    std::vector<ExchangePart> mine;
    for (size_t i = 0; i < parts.size(); ++i) {
      mine.push_back({sources[i], results[i], parts[i].receives, parts[i].op, parts[i].scale});
    }
    const MirrorBoxes boxes(parts);
    const Collective collective = {.op = "Mirror", .group = kBoth, .boxes = &boxes};
    int64_t bytes = 0;
    for (const CarriedRound& round : ScheduleOf(collective, sizes, kMe, round_bytes).rounds) {
      DT_EXPECT_OK(LaunchRound(Call(mine), round, bytes));
    }
    for (size_t i = 0; i < parts.size(); ++i) ExpectBytes(results[i], Expected(parts[i]));
    return bytes;
  }

  std::unique_ptr<NcclGroup> group_;
};

int64_t BytesOfTheImage(const std::vector<MirrorPart>& parts) {
  int64_t bytes = 0;
  for (const MirrorPart& part : parts) {
    for (const ReceiveBox& box : part.receives) {
      bytes += std::count(box.peers.begin(), box.peers.end(), kImage) * box.elements() *
               SizeOf(part.source.tensor.dtype());
    }
  }
  return bytes;
}

// Some of the rounds are so small that boxes are cut, and several messages follow each other.
TEST_F(NcclLaunchTest, RandomRounds) {
  TestRandom random;
  int64_t all = 0;
  for (const int64_t round_bytes : {64, 1000, 1 << 20}) {
    for (int i = 0; i < 15; ++i) {
      std::vector<MirrorPart> parts;
      for (int64_t n = random.In(1, 3); n > 0; --n) parts.push_back(RandomPart(random, *device_));
      EXPECT_EQ(RunRounds(parts, round_bytes), BytesOfTheImage(parts));
      all += BytesOfTheImage(parts);
    }
  }
  EXPECT_GT(all, 0);
}

// One run of memory on both sides: sent from where it is, received where it belongs. More than
// NCCL moves in one piece, so that a copy that is not in its stream's order would be seen.
TEST_F(NcclLaunchTest, AMessageInPlace) {
  constexpr int64_t kMuch = 6 << 20;
  const std::vector<ReceiveBox> receives = {
      {.peers = {kImage}, .dims = {{.src = 3, .dst = 5, .length = kMuch}}}};
  std::vector<float> values(kMuch + 3), expected(kMuch + 5, -1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::copy(values.begin() + 3, values.end(), expected.begin() + 5);
  DT_ASSERT_OK_AND_ASSIGN(const Tensor source, FromHost<float>(*device_, values, {kMuch + 3}));
  DT_ASSERT_OK_AND_ASSIGN(
      const Tensor result,
      FromHost<float>(*device_, std::vector<float>(kMuch + 5, -1), {kMuch + 5}));
  const ExchangePart part{source, result, receives};
  const CarriedPiece piece = {0, 4, {kImage}, receives[0].dims, kMuch * 4};
  int64_t bytes = 0;
  DT_EXPECT_OK(LaunchRound(Call({&part, 1}), {{piece}, {{kImage, {piece}}}}, bytes));
  DT_EXPECT_OK(device_->FillBytes(source.raw(), 0x5a, (kMuch + 3) * 4));  // behind it
  EXPECT_EQ(bytes, kMuch * 4);
  DT_ASSERT_OK_AND_ASSIGN(const std::vector<float> got, ToHost<float>(result));
  EXPECT_TRUE(got == expected);
}

// A native all-gather of what lies in columns, which is packed, in pieces of a few bytes or whole.
TEST_F(NcclLaunchTest, AGather) {
  constexpr int64_t kRows = 7, kColumns = 5;
  const BoxDims given = {{.length = kRows}, {.src = 1, .length = kColumns}};
  std::vector<float> values(kRows * (kColumns + 2)), expected(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    expected[i] = values[i / kColumns * (kColumns + 2) + 1 + i % kColumns];
  }
  for (const int64_t staging_bytes : {64, 1 << 20}) {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor source,
                            FromHost<float>(*device_, values, {kRows, kColumns + 2}));
    DT_ASSERT_OK_AND_ASSIGN(
        const Tensor result,
        FromHost<float>(*device_, std::vector<float>(expected.size(), -1), {kRows, kColumns}));
    const ExchangePart part{source, result, {}};
    const CarriedCollective gather = {0, 4, false, {{kMe, given}, {kImage, given}}};
    int64_t bytes = 0;
    CarriedCall call = Call({&part, 1});
    call.staging_bytes = staging_bytes;
    DT_EXPECT_OK(LaunchNative(call, {&gather, 1}, bytes));
    EXPECT_EQ(bytes, 0);  // NCCL has one rank
    DT_ASSERT_OK_AND_ASSIGN(const std::vector<float> got, ToHost<float>(result));
    EXPECT_EQ(got, expected);
  }
}

// A sum of one rank's terms: of columns, which are packed, in pieces or whole, scaled or of another
// type; and of what lies in one run on both sides, which is not, in its own place as well.
TEST_F(NcclLaunchTest, AReduction) {
  constexpr int64_t kRows = 7, kColumns = 5;
  constexpr int kAlone[] = {kMe};
  const auto reduce = [&](const ExchangePart& part, const BoxDims& dims, int64_t staging_bytes) {
    const CarriedCollective reduction = {0, SizeOf(part.src.dtype()), true, {{kMe, dims}}};
    CarriedCall call = Call({&part, 1});
    call.ranks = kAlone;
    call.staging_bytes = staging_bytes;
    int64_t bytes = 0;
    DT_EXPECT_OK(LaunchNative(call, {&reduction, 1}, bytes));
    EXPECT_EQ(bytes, 0);
  };
  const BoxDims columns = {{.length = kRows}, {.src = 1, .length = kColumns}};
  std::vector<float> values(kRows * (kColumns + 2)), expected(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    expected[i] = values[i / kColumns * (kColumns + 2) + 1 + i % kColumns] / 2;
  }
  DT_ASSERT_OK_AND_ASSIGN(const Tensor source,
                          FromHost<float>(*device_, values, {kRows, kColumns + 2}));
  for (const int64_t staging_bytes : {64, 1 << 20}) {
    DT_ASSERT_OK_AND_ASSIGN(const Tensor halves,
                            Tensor::Empty(*device_, DType::kBF16, {kRows, kColumns}));
    reduce({source, halves, {}, ReduceOp::kSum, 0.5}, columns, staging_bytes);
    DT_ASSERT_OK_AND_ASSIGN(const std::vector<BFloat16> got, ToHost<BFloat16>(halves));
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(static_cast<float>(got[i]), expected[i]) << i;
    }
  }
  const BoxDims run = {{.src = 2, .dst = 2, .length = 3}, {.length = kColumns + 2}};
  DT_ASSERT_OK_AND_ASSIGN(
      const Tensor apart,
      FromHost<float>(*device_, std::vector<float>(values.size(), -1), {kRows, kColumns + 2}));
  for (const Tensor* const to : {&apart, &source}) {
    reduce({source, *to, {}}, run, 1 << 20);
    DT_ASSERT_OK_AND_ASSIGN(const std::vector<float> got, ToHost<float>(*to));
    for (size_t i = 0; i < got.size(); ++i) {
      const bool is_inside = i >= 14 && i < 35;
      EXPECT_EQ(got[i], is_inside || to == &source ? values[i] : -1) << i;
    }
  }
}

}  // namespace
}  // namespace dtensor
