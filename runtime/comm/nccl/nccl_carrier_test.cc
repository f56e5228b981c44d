// Exchanges of rank threads with a GPU each, by NCCL: with rounds so small that boxes are cut, and
// with those of the library. What plans exchange: tests/conformance.
#include "dtensor/runtime/comm/nccl/nccl_carrier.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/comm/testing/random_exchanges.h"
#include "dtensor/runtime/comm/testing/socket_ranks.h"
#include "dtensor/runtime/comm/testing/threads_state.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cuda/gpus.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/testing/boxes.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/runtime/testing/test_random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using RankFunction = std::function<absl::Status(Communicator&, Device&)>;

class NcclCarrierTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto gpus = CountGpus();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status();
    gpus_ = *gpus;
    if (!Has(2)) GTEST_SKIP() << "there are no two GPUs";
  }
  // Whether there is a GPU for each rank.
  bool Has(int ranks) {
    if (ranks > gpus_) RecordProperty("needs_gpus", ranks);
    return ranks <= gpus_;
  }

  static absl::Status Run(int ranks, int64_t round_bytes, const RankFunction& fn) {
    SocketRanks sockets(ranks);
    return RunLocalRanks(
        ranks,
        [&](Communicator& threads, Device& device) -> absl::Status {
          ThreadsState state(threads);
          DT_ASSIGN_OR_RETURN(const auto carrier,
                              MakeNcclCarrier(threads.rank(), threads.size(), device, state,
                                              {.round_bytes = round_bytes}));
          SocketRank rank = sockets.Make(threads, device, {.carrier = carrier.get()});
          const absl::Status status = fn(rank.communicator(), device);
          if (!status.ok()) threads.Fail(status).IgnoreError();
          carrier->End();
          return status;
        },
        {.device = Device::Kind::kCuda});
  }

  int gpus_ = 0;
};

TEST_F(NcclCarrierTest, RandomExchanges) {
  const uint64_t seed = TestSeed();
  for (const int ranks : {2, 3, 4}) {
    if (!Has(ranks)) GTEST_SKIP() << "there are no " << ranks << " GPUs";
    for (const int64_t round_bytes : {64, 1000, 0}) {
      DT_EXPECT_OK(Run(ranks, round_bytes,
                       [&](Communicator& communicator, Device& device) {
                         return box_testing::RandomExchanges(communicator, device, seed, 15);
                       }))
          << ranks << " ranks, rounds of " << round_bytes;
    }
  }
}

// Rows of each rank's matrix, or columns of them: what lies in one run, and what has gaps.
class GatherBoxes final : public ExchangeBoxes {
 public:
  GatherBoxes(int ranks, int64_t n, bool columns) : ranks_(ranks), n_(n), columns_(columns) {}
  std::vector<ReceiveBox> Receives(size_t, int) const override {
    std::vector<ReceiveBox> boxes;
    for (int peer = 0; peer < ranks_; ++peer) {
      ReceiveBox box{.peers = {peer}, .dims = {{.length = n_}, {.length = n_}}};
      box.dims[columns_ ? 1 : 0].dst = peer * n_;
      boxes.push_back(box);
    }
    return boxes;
  }
  uint64_t digest() const override { return static_cast<uint64_t>(n_ * 2 + (columns_ ? 1 : 0)); }

 private:
  const int ranks_;
  const int64_t n_;
  const bool columns_;
};

std::vector<int> Everyone(int ranks) {
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  return everyone;
}

absl::Status Gather(Communicator& communicator, Device& device, int64_t n, bool columns) {
  const int ranks = communicator.size(), rank = communicator.rank();
  std::vector<float> values(n * n);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rank * 10000 + i % 999);
  DT_ASSIGN_OR_RETURN(const Tensor source, FromHost<float>(device, values, {n, n}));
  const Dims shape = columns ? Dims{n, ranks * n} : Dims{ranks * n, n};
  DT_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(device, DType::kF32, shape));
  const GatherBoxes boxes(ranks, n, columns);
  const std::vector<ReceiveBox> receives = boxes.Receives(0, rank);
  // Another part of another type, in one group with the first: all that each rank has is its rank.
  const std::vector<int64_t> ranks_own(n * n, rank);
  DT_ASSIGN_OR_RETURN(const Tensor other, FromHost<int64_t>(device, ranks_own, {n, n}));
  DT_ASSIGN_OR_RETURN(const Tensor others, Tensor::Empty(device, DType::kI64, shape));
  const ExchangePart parts[] = {{source, result, receives}, {other, others, receives}};
  const std::vector<int> everyone = Everyone(ranks);
  const Collective collective = {.kind = CollectiveKind::kAllGather,
                                 .native = true,
                                 .axes = "tp",
                                 .op = "Gather",
                                 .group = everyone,
                                 .boxes = &boxes};
  communicator.ResetTraffic();
  DT_RETURN_IF_ERROR(communicator.Exchange(collective, parts));
  const CommunicatorTraffic& traffic =
      communicator.traffic().at({"tp", CollectiveKind::kAllGather});
  EXPECT_EQ(traffic.messages, 2 * (ranks - 1));
  EXPECT_EQ(traffic.bytes, (ranks - 1) * n * n * 12);
  DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToHost<float>(result));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> of_others, ToHost<int64_t>(others));
  for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
    const int64_t row = i / shape[1], column = i % shape[1];
    const int64_t peer = (columns ? column : row) / n;
    const int64_t at = columns ? row * n + column % n : row % n * n + column;
    if (got[i] != static_cast<float>(peer * 10000 + at % 999) || of_others[i] != peer) {
      return absl::DataLossError(absl::StrCat("element ", i));
    }
  }
  return absl::OkStatus();
}

TEST_F(NcclCarrierTest, NativeAllGathers) {
  for (const int ranks : {2, 4}) {
    if (!Has(ranks)) GTEST_SKIP() << "there are no " << ranks << " GPUs";
    for (const int64_t round_bytes : {400, 0}) {
      DT_EXPECT_OK(Run(ranks, round_bytes, [&](Communicator& communicator, Device& device) {
        for (const bool columns : {false, true}) {
          for (const int64_t n : {1, 7, 40}) {
            DT_RETURN_IF_ERROR(Gather(communicator, device, n, columns));
          }
        }
        return absl::OkStatus();
      }));
    }
  }
}

// Each rank receives the sum of its rows, or columns.
class ReductionBoxes final : public ExchangeBoxes {
 public:
  ReductionBoxes(int ranks, int64_t n, bool columns) : ranks_(ranks), n_(n), columns_(columns) {}
  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    ReceiveBox box{.dims = {{.length = n_}, {.length = n_}}};
    for (int peer = 0; peer < ranks_; ++peer) box.peers.push_back(peer);
    box.dims[columns_ ? 1 : 0].src = rank * n_;
    return {box};
  }
  uint64_t digest() const override { return static_cast<uint64_t>(n_ * 2 + (columns_ ? 1 : 0)); }

 private:
  const int ranks_;
  const int64_t n_;
  const bool columns_;
};

// Points to both.
Collective InAnyOrder(const std::vector<int>& group, const ReductionBoxes& boxes) {
  return {.kind = CollectiveKind::kReduceScatter,
          .native = true,
          .sums_in_any_order = true,
          .axes = "tp",
          .op = "Reduce",
          .group = group,
          .boxes = &boxes};
}

// Whole numbers, which have one sum in any order.
absl::Status Reduce(Communicator& communicator, Device& device, int64_t n, bool columns,
                    double scale) {
  const int ranks = communicator.size(), rank = communicator.rank();
  const Dims shape = columns ? Dims{n, ranks * n} : Dims{ranks * n, n};
  std::vector<float> values(ranks * n * n);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rank * 10000 + i % 999);
  DT_ASSIGN_OR_RETURN(const Tensor source, FromHost<float>(device, values, shape));
  DT_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(device, DType::kF32, {n, n}));
  const ReductionBoxes boxes(ranks, n, columns);
  const std::vector<ReceiveBox> receives = boxes.Receives(0, rank);
  const std::vector<BFloat16> ranks_own(ranks * n * n, BFloat16(static_cast<float>(rank)));
  DT_ASSIGN_OR_RETURN(const Tensor other, FromHost<BFloat16>(device, ranks_own, shape));
  DT_ASSIGN_OR_RETURN(const Tensor others, Tensor::Empty(device, DType::kBF16, {n, n}));
  const ExchangePart parts[] = {{source, result, receives, ReduceOp::kSum, scale},
                                {other, others, receives}};
  const std::vector<int> everyone = Everyone(ranks);
  const Collective collective = InAnyOrder(everyone, boxes);
  communicator.ResetTraffic();
  DT_RETURN_IF_ERROR(communicator.Exchange(collective, parts));
  const CommunicatorTraffic& traffic =
      communicator.traffic().at({"tp", CollectiveKind::kReduceScatter});
  EXPECT_EQ(traffic.messages, 2 * (ranks - 1));
  EXPECT_EQ(traffic.bytes, (ranks - 1) * n * n * 6);
  DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToHost<float>(result));
  DT_ASSIGN_OR_RETURN(const std::vector<BFloat16> of_others, ToHost<BFloat16>(others));
  const auto sum_of_ranks = static_cast<float>(ranks * (ranks - 1) / 2);
  for (int64_t i = 0; i < n * n; ++i) {
    const int64_t row = i / n + (columns ? 0 : rank * n), column = i % n + (columns ? rank * n : 0);
    const int64_t all = 10000 * (ranks - 1) / 2 + (row * shape[1] + column) % 999;
    if (got[i] != static_cast<float>(scale * static_cast<double>(ranks * all)) ||
        static_cast<float>(of_others[i]) != sum_of_ranks) {
      return absl::DataLossError(absl::StrCat("element ", i));
    }
  }
  return absl::OkStatus();
}

TEST_F(NcclCarrierTest, NativeReductions) {
  for (const int ranks : {2, 3, 4}) {
    if (!Has(ranks)) GTEST_SKIP() << "there are no " << ranks << " GPUs";
    for (const int64_t round_bytes : {400, 0}) {
      DT_EXPECT_OK(Run(ranks, round_bytes, [&](Communicator& communicator, Device& device) {
        for (const bool columns : {false, true}) {
          for (const int64_t n : {1, 7, 40}) {
            for (const double scale : {1.0, 0.5}) {
              DT_RETURN_IF_ERROR(Reduce(communicator, device, n, columns, scale));
            }
          }
        }
        return absl::OkStatus();
      }));
    }
  }
}

// What has another sum in another order is refused before any rank hears of it.
TEST_F(NcclCarrierTest, OtherReductionsAreNotInAnyOrder) {
  DT_EXPECT_OK(Run(2, 0, [&](Communicator& communicator, Device& device) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Tensor source, Tensor::Empty(device, DType::kF32, {2, 1}));
    DT_ASSIGN_OR_RETURN(const Tensor result, Tensor::Empty(device, DType::kF32, {1, 1}));
    const ReductionBoxes boxes(2, 1, false);
    const std::vector<ReceiveBox> receives = boxes.Receives(0, communicator.rank());
    const ExchangePart part{source, result, receives, ReduceOp::kMax};
    const std::vector<int> both = Everyone(2);
    const Collective collective = InAnyOrder(both, boxes);
    EXPECT_THAT(communicator.Exchange(collective, {&part, 1}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::HasSubstr("sums of floats, not of max of f32")));
    return Reduce(communicator, device, 3, false, 1);
  }));
}

TEST_F(NcclCarrierTest, StagingIsTheSameOnAllRanks) {
  std::vector<int64_t> bytes(2);
  DT_EXPECT_OK(Run(2, 1000, [&](Communicator& communicator, Device&) {
    bytes[communicator.rank()] = communicator.staging_bytes();
    return absl::OkStatus();
  }));
  EXPECT_THAT(bytes, testing::Each(2 * (1000 + 32)));
}

}  // namespace
}  // namespace dtensor
