#include "dtensor/tools/cli/measure_links.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/bench/rank_time.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/cli/rank_kernels.h"

namespace dtensor::cli {
namespace {

constexpr int kMaxRanks = 64;
constexpr int kRounds = 15;
constexpr int64_t kTotalBytes = int64_t{64} << 20;  // of all ranks' sources: larger than the caches

constexpr DType kProductTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// What is timed: patterns of exchanges, and kernels.
enum Timed { kMessage, kFetch, kCopy, kReduce, kAttention, kAdd, kDispatch, kGemm };
constexpr int kNumTimed = kGemm + static_cast<int>(std::size(kProductTypes));

// Seconds of each; products have one entry for each type.
using Times = std::array<double, kNumTimed>;

// The median of each over all rounds. A step, too, is slowed by whatever else the machine does.
Times Medians(std::vector<Times> rounds) {
  Times medians;
  const size_t middle = rounds.size() / 2;
  for (int i = 0; i < kNumTimed; ++i) {
    std::nth_element(rounds.begin(), rounds.begin() + static_cast<ptrdiff_t>(middle), rounds.end(),
                     [i](const Times& a, const Times& b) { return a[i] < b[i]; });
    medians[i] = rounds[middle][i];
  }
  return medians;
}

// A pattern of exchanges: what a rank receives, one box from some peers.
enum class Pattern { kMessage, kFetch, kCopy, kReduce };

class PatternBoxes final : public ExchangeBoxes {
 public:
  PatternBoxes(Pattern pattern, int ranks, int64_t elements)
      : pattern_(pattern), ranks_(ranks), elements_(elements) {}

  std::vector<ReceiveBox> Receives(size_t, int rank) const override {
    ReceiveBox box;
    if (pattern_ == Pattern::kReduce) {
      box.peers.resize(ranks_);
      std::iota(box.peers.begin(), box.peers.end(), 0);
    } else {
      box.peers.push_back(pattern_ == Pattern::kCopy ? rank : (rank + 1) % ranks_);
    }
    box.dims.push_back({0, 0, pattern_ == Pattern::kMessage ? 1 : elements_});
    return {box};
  }
  uint64_t digest() const override { return static_cast<uint64_t>(pattern_) + 1; }

 private:
  const Pattern pattern_;
  const int ranks_;
  const int64_t elements_;
};

// One rank's part.
class Rank {
 public:
  explicit Rank(Context& context) : context_(context) {}

  absl::StatusOr<Times> Run(int64_t elements) {
    elements_ = elements;
    all_.resize(context_.world_size());
    std::iota(all_.begin(), all_.end(), 0);
    for (Tensor* tensor : {&from_, &to_}) {
      DT_ASSIGN_OR_RETURN(*tensor, Tensor::Empty(context_.device(), DType::kF32, {elements}));
      DT_RETURN_IF_ERROR(context_.device().FillBytes(tensor->raw(), 0, tensor->bytes()));
    }
    DT_ASSIGN_OR_RETURN(kernels_, RankKernels::Create(context_, elements));
    std::vector<Times> rounds;
    // Measured in turn, so that whatever else the machine does slows all of them equally.
    for (int round = 0; round <= kRounds; ++round) {
      Times times;
      DT_ASSIGN_OR_RETURN(times[kMessage], Seconds(Pattern::kMessage, /*calls=*/300));
      DT_ASSIGN_OR_RETURN(times[kFetch], Seconds(Pattern::kFetch, /*calls=*/1));
      DT_ASSIGN_OR_RETURN(times[kCopy], Seconds(Pattern::kCopy, /*calls=*/1));
      DT_ASSIGN_OR_RETURN(times[kReduce], Seconds(Pattern::kReduce, /*calls=*/1));
      DT_RETURN_IF_ERROR(Kernels(times));
      if (round > 0) rounds.push_back(times);  // the first one warms up
    }
    return Medians(std::move(rounds));
  }

 private:
  absl::Status Kernels(Times& times) {
    for (size_t i = 0; i < std::size(kProductTypes); ++i) {
      DT_ASSIGN_OR_RETURN(times[kGemm + i],
                          Seconds([&] { return kernels_->Gemm(kProductTypes[i]); }));
    }
    DT_ASSIGN_OR_RETURN(times[kAttention], Seconds([&] { return kernels_->Attention(); }));
    DT_ASSIGN_OR_RETURN(times[kAdd], Seconds([&] { return kernels_->Add(); }));
    DT_ASSIGN_OR_RETURN(times[kDispatch], Seconds([&] { return kernels_->Dispatch(); }, 300));
    return absl::OkStatus();
  }

  // The time of one call, measured over `calls` of them.
  template <typename Work>
  absl::StatusOr<double> Seconds(const Work& work, int calls = 1) {
    DT_ASSIGN_OR_RETURN(const double seconds,
                        bench::TimeOnAllRanks(context_, [&]() -> absl::Status {
                          for (int i = 0; i < calls; ++i) DT_RETURN_IF_ERROR(work());
                          return absl::OkStatus();
                        }));
    return seconds / calls;
  }
  absl::StatusOr<double> Seconds(Pattern pattern, int calls) {
    const PatternBoxes boxes(pattern, context_.world_size(), elements_);
    const std::vector<ReceiveBox> receives = boxes.Receives(0, context_.rank());
    return Seconds([&] { return Exchange(boxes, receives); }, calls);
  }

  absl::Status Exchange(const PatternBoxes& boxes, absl::Span<const ReceiveBox> receives) {
    ExchangePart part{from_, to_, receives};
    Collective collective;
    collective.axes = "all";
    collective.op = "links";
    collective.group = all_;
    collective.digest = boxes.digest();
    collective.boxes = &boxes;
    return context_.communicator().Exchange(collective, absl::MakeSpan(&part, 1));
  }

  Context& context_;
  int64_t elements_ = 0;
  std::vector<int> all_;
  Tensor from_, to_;
  std::optional<RankKernels> kernels_;
};

// Rounds to three digits, which are enough for a measurement.
double Rounded(double value) {
  double rounded = value;
  return absl::SimpleAtod(absl::StrFormat("%.3g", value), &rounded) ? rounded : value;
}

double Giga(double count, double seconds) { return Rounded(count / seconds / 1e9); }

// Inverts the formula by which plans are priced (RedistributionPlan::PredictedSeconds): a latency
// for the round, the transfers of what comes from other ranks, and then copying own elements (read
// and written) or reducing (terms read).
CostModel TableOf(const Times& times, double bytes, int ranks) {
  // Clocks are noisy, but a reduction is never free.
  const auto positive = [](double seconds, double whole) {
    return std::max(seconds, 0.05 * whole);
  };
  CostModel table;
  table.SetDefault({Rounded(times[kMessage] * 1e6),
                    Giga(bytes, positive(times[kFetch] - times[kMessage], times[kFetch]))});
  table.set_copy_gb_per_second(
      Giga(2 * bytes, positive(times[kCopy] - times[kMessage], times[kCopy])));
  const double transfers = (times[kFetch] - times[kMessage]) * (ranks - 1);
  table.set_reduce_gb_per_second(
      Giga(bytes * ranks, positive(times[kReduce] - times[kMessage] - transfers, times[kReduce])));
  table.set_multiply_gf_per_second(Giga(RankKernels::AttentionFlops(), times[kAttention]));
  for (size_t i = 0; i < std::size(kProductTypes); ++i) {
    const DType dtype = kProductTypes[i];
    table.set_gemm_gf_per_second(dtype, Giga(RankKernels::GemmFlops(dtype), times[kGemm + i]));
  }
  table.set_memory_gb_per_second(Giga(3 * bytes, times[kAdd]));
  table.set_call_us(Rounded(times[kDispatch] * 1e6));
  return table;
}

}  // namespace

absl::StatusOr<CostModel> MeasureLinks(int64_t number, bool as_launched) {
  if (number < 2 || number > kMaxRanks) {
    return InvalidArgument({absl::StrCat(number), " ranks are out of range; take 2 to ",
                            absl::StrCat(kMaxRanks), ", no more than there are cores"});
  }
  const int ranks = static_cast<int>(number);
  const int64_t elements = kTotalBytes / ranks / 4;
  Times times = {};
  const auto measure = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Times mine, Rank(context).Run(elements));
    if (context.rank() == 0) times = mine;  // all ranks have the same
    return absl::OkStatus();
  };
  const RunOptions threads = {.pin_threads = CanPin(ranks)};
  const absl::Status status =
      as_launched ? RunWorld(ranks, measure, threads) : RunRanks(ranks, measure, threads);
  if (!status.ok()) return absl::InternalError(status.message());
  return TableOf(times, static_cast<double>(elements * 4), ranks);
}

}  // namespace dtensor::cli
