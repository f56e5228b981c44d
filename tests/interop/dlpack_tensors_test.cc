// DistributedTensors whose shards are another library's memory: they are redistributed, saved for
// backward and written to like any other. The memory is returned once, when nothing reads it any
// more. Ranks are threads, or processes (tests/conformance), whose peers cannot read such memory.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/interop/dlpack.h"
#include "dtensor/runtime/interop/dlpack_abi.h"
#include "dtensor/runtime/testing/foreign_tensor.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/tensor/testing/suite_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kRows = 5, kColumns = 3;

std::vector<double> Counting() {
  std::vector<double> all(kRows * kColumns);
  for (size_t i = 0; i < all.size(); ++i) all[i] = i + 1;
  return all;
}

// Another library's matrix, row by row or column by column, from the second of its elements on.
enum class Order { kRows, kColumns };
DlpackTensor MakeMatrix(int64_t first_row, int64_t rows, Order order, uint64_t flags,
                        const std::shared_ptr<std::atomic<int>>& deleted) {
  std::vector<double> values(rows * kColumns + 1);
  const std::vector<int64_t> strides = order == Order::kRows
                                           ? std::vector<int64_t>{kColumns, 1}
                                           : std::vector<int64_t>{1, std::max<int64_t>(rows, 1)};
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      values[1 + r * strides[0] + c * strides[1]] = (first_row + r) * kColumns + c + 1;
    }
  }
  return MakeForeign<DLManagedTensorVersioned, double>(
      std::move(values), {rows, kColumns}, strides, [deleted] { ++*deleted; },
      [flags](DLManagedTensorVersioned& managed) {
        managed.flags = flags;
        managed.dl_tensor.byte_offset = sizeof(double);
      });
}

// This rank's rows of 1, 2, 3, ..., which may be none.
struct Adopted {
  std::shared_ptr<std::atomic<int>> deleted = std::make_shared<std::atomic<int>>(0);
  DistributedTensor tensor;
};

absl::StatusOr<Adopted> Adopt(Context& context, Order order = Order::kColumns, uint64_t flags = 0) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh,
                      DeviceMesh::Parse(absl::StrCat("x=", context.world_size())));
  DT_ASSIGN_OR_RETURN(const Layout layout,
                      Layout::FromPlacements(mesh, {Shard(0)}, {kRows, kColumns}));
  const Dims local = layout.LocalShape({kRows, kColumns}, context.rank());
  const int64_t chunk = (kRows + context.world_size() - 1) / context.world_size();
  Adopted adopted;
  DT_ASSIGN_OR_RETURN(
      Tensor shard, FromDlpack(context.device(), MakeMatrix(context.rank() * chunk, local[0], order,
                                                            flags, adopted.deleted)));
  DT_ASSIGN_OR_RETURN(adopted.tensor,
                      FromLocal(context, layout, {kRows, kColumns}, std::move(shard)));
  return adopted;
}

// What an exchange has kept is let go when all ranks are past it.
absl::Status Settle(Context& context) {
  DT_RETURN_IF_ERROR(context.communicator().FinishDropped());
  DT_RETURN_IF_ERROR(context.communicator().Barrier("all have read"));
  return context.device().Synchronize();
}

class DlpackTensors : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!SuiteHasRanks(GetParam())) GTEST_SKIP() << "another number of ranks";
  }
  template <typename Fn>
  void ExpectOnRanks(const Fn& fn, const testing::Matcher<std::vector<double>>& each,
                     const RunOptions& options = {}) {
    if (!SuiteHasRanks(GetParam(), options)) return;
    const auto ranks = OnSuiteRanks(GetParam(), fn, options);
    DT_ASSERT_OK(ranks);
    EXPECT_THAT(*ranks, Each(each));
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, DlpackTensors, testing::Values(1, 2, 3, 4));

TEST_P(DlpackTensors, AreRedistributed) {
  ExpectOnRanks(
      [](Context& context) -> absl::StatusOr<std::vector<double>> {
        DT_ASSIGN_OR_RETURN(const Adopted x, Adopt(context));
        DT_ASSIGN_OR_RETURN(const auto columns, x.tensor.Redistribute({Shard(1)}));
        return ToGlobal<double>(columns);
      },
      Counting());
}

TEST_P(DlpackTensors, GoBackWithTheLastThatReadsThem) {
  ExpectOnRanks(
      [](Context& context) -> absl::StatusOr<std::vector<double>> {
        std::vector<double> counts;
        DT_ASSIGN_OR_RETURN(Adopted x, Adopt(context));
        DT_ASSIGN_OR_RETURN(auto whole, x.tensor.Redistribute({Replicate()}));
        // A view on each rank, which has the rows' memory if it had all of them.
        DT_ASSIGN_OR_RETURN(auto rows, x.tensor.Redistribute({Shard(0)}));
        x.tensor = whole = DistributedTensor();
        DT_RETURN_IF_ERROR(Settle(context));
        counts.push_back(*x.deleted);
        rows = DistributedTensor();
        DT_RETURN_IF_ERROR(Settle(context));
        counts.push_back(*x.deleted);
        return counts;
      },
      ElementsAre(0, 1));
}

// Dropped before any peer has read it; on threads also with queues that run late.
TEST_P(DlpackTensors, ArePeersToReadWhenTheirRankDropsThem) {
  for (const Device::Kind kind : {Device::Kind::kCpu, Device::Kind::kDeferred}) {
    ExpectOnRanks(
        [](Context& context) -> absl::StatusOr<std::vector<double>> {
          DT_ASSIGN_OR_RETURN(Adopted x, Adopt(context));
          DT_ASSIGN_OR_RETURN(auto whole, x.tensor.Redistribute({Replicate()}, {.async = true}));
          x.tensor = DistributedTensor();
          DT_ASSIGN_OR_RETURN(std::vector<double> values, ToGlobal<double>(whole));
          // Alone it is a view; else it has what it received, and its source may go.
          if (context.world_size() == 1) whole = DistributedTensor();
          DT_RETURN_IF_ERROR(Settle(context));
          values.push_back(*x.deleted);
          return values;
        },
        [] {
          std::vector<double> expected = Counting();
          expected.push_back(1);
          return expected;
        }(),
        {.device = kind, .seed = 7, .max_delay_us = 300});
  }
}

TEST_P(DlpackTensors, AreSavedForBackward) {
  ExpectOnRanks(
      [](Context& context) -> absl::StatusOr<std::vector<double>> {
        DT_ASSIGN_OR_RETURN(Adopted x, Adopt(context));
        DT_RETURN_IF_ERROR(x.tensor.set_requires_grad(true));
        DistributedTensor leaf = x.tensor;
        TensorOr loss = Sum(Mul(x.tensor, x.tensor), {0, 1});
        x.tensor = DistributedTensor();
        DT_RETURN_IF_ERROR(Backward(loss));
        DT_ASSIGN_OR_RETURN(std::vector<double> gradient, ToGlobal<double>(leaf.grad()));
        for (double& g : gradient) g /= 2;
        gradient.push_back(*x.deleted);
        leaf = DistributedTensor();
        loss = DistributedTensor();
        DT_RETURN_IF_ERROR(Settle(context));
        gradient.push_back(*x.deleted);
        return gradient;
      },
      [] {
        std::vector<double> expected = Counting();
        expected.insert(expected.end(), {0, 1});
        return expected;
      }());
}

// An optimizer's step is seen in the other library's memory, unless that is read-only.
TEST_P(DlpackTensors, AreWrittenInPlace) {
  for (const bool read_only : {false, true}) {
    ExpectOnRanks(
        [read_only](Context& context) -> absl::StatusOr<std::vector<double>> {
          DT_ASSIGN_OR_RETURN(Adopted x, Adopt(context, Order::kRows,
                                               read_only ? DLPACK_FLAG_BITMASK_READ_ONLY : 0));
          const bool has_elements = x.tensor.local().numel() > 0;
          auto* const theirs = x.tensor.local().data<double>();
          const double before = has_elements ? *theirs : 0;
          DT_RETURN_IF_ERROR(x.tensor.set_requires_grad(true));
          DT_RETURN_IF_ERROR(Backward(Sum(x.tensor, {0, 1})));
          DT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Create({x.tensor}, SgdOptions{}));
          DT_RETURN_IF_ERROR(sgd.Step(/*lr=*/1));
          DT_ASSIGN_OR_RETURN(std::vector<double> values, ToGlobal<double>(x.tensor));
          for (double& value : values) value += 1;
          // Read-only memory has gone back by now, unread.
          const bool is_theirs = x.tensor.local().data<double>() == theirs;
          const bool as_expected =
              read_only
                  ? *x.deleted == 1 && (!has_elements || !is_theirs)
                  : *x.deleted == 0 && (!has_elements || (is_theirs && *theirs == before - 1));
          values.push_back(as_expected);
          return values;
        },
        [] {
          std::vector<double> expected = Counting();
          expected.push_back(1);
          return expected;
        }());
  }
}

// Shards go out, and are read by a thread of the program's, when this Context has ended.
TEST_P(DlpackTensors, GoOutAndOutliveTheContext) {
  if (!SuiteHasRanks(GetParam())) return;
  std::vector<DlpackTensor> kept(GetParam());
  const auto ranks =
      OnSuiteRanks(GetParam(), [&](Context& context) -> absl::StatusOr<std::vector<double>> {
        DT_ASSIGN_OR_RETURN(const Adopted x, Adopt(context));
        DT_ASSIGN_OR_RETURN(const auto whole, x.tensor.Redistribute({Replicate()}));
        DT_ASSIGN_OR_RETURN(kept[context.rank()], ToDlpack(whole.local()));
        return std::vector<double>();
      });
  DT_ASSERT_OK(ranks);
  std::thread([&] {
    for (DlpackTensor& out : kept) {
      if (out == nullptr) continue;  // of another process
      const DLTensor& dl = out->dl_tensor;
      double sum = 0;
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < kColumns; ++c) {
          sum += static_cast<double*>(dl.data)[r * dl.strides[0] + c * dl.strides[1]];
        }
      }
      EXPECT_EQ(sum, 120);
      out = nullptr;
    }
  }).join();
}

// A rank drops what it brought and fails, while a peer is about to read it.
TEST(FailingDlpackTensors, GoBackOnce) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::shared_ptr<std::atomic<int>>> deleted(2);
    const absl::Status status =
        RunRanks(2,
                 [&](Context& context) -> absl::Status {
                   DT_ASSIGN_OR_RETURN(Adopted x, Adopt(context));
                   deleted[context.rank()] = x.deleted;
                   DT_ASSIGN_OR_RETURN(const auto whole,
                                       x.tensor.Redistribute({Replicate()}, {.async = true}));
                   x.tensor = DistributedTensor();
                   if (context.rank() == 0) return absl::DataLossError("bad block");
                   return ToGlobal<double>(whole).status();
                 },
                 {.seed = static_cast<uint64_t>(round), .max_delay_us = 50, .report = nullptr});
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
    DT_ASSERT_OK(RunRanks(1, [](Context&) { return absl::OkStatus(); }));
    EXPECT_EQ(*deleted[0], 1);
    EXPECT_EQ(*deleted[1], 1);
  }
}

TEST(DlpackTensorsAlone, AShardThatDoesNotFitIsRefused) {
  DT_ASSERT_OK(RunRanks(2, [](Context& context) -> absl::Status {
    const auto deleted = std::make_shared<std::atomic<int>>(0);
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("x=2"));
    DT_ASSIGN_OR_RETURN(Tensor shard,
                        FromDlpack(context.device(), MakeMatrix(0, 1, Order::kRows, 0, deleted)));
    EXPECT_THAT(FromLocal(context, mesh, {Shard(0)}, {kRows, kColumns}, std::move(shard)),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(*deleted, 1);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
