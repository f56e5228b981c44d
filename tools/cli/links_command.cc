#include "dtensor/tools/cli/links_command.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/rank_clock.h"

namespace dtensor::cli {
namespace {

constexpr int kMaxRanks = 64;
constexpr int kRounds = 20;
constexpr int64_t kSide = 512;                      // of the matrices whose product is timed
constexpr int64_t kTotalBytes = int64_t{64} << 20;  // of all ranks' sources: past the caches

constexpr double kNever = std::numeric_limits<double>::infinity();

// Seconds of each pattern.
struct Times {
  double message = kNever, fetch = kNever, copy = kNever, reduce = kNever, multiply = kNever;

  Times Min(const Times& other) const {
    return {std::min(message, other.message), std::min(fetch, other.fetch),
            std::min(copy, other.copy), std::min(reduce, other.reduce),
            std::min(multiply, other.multiply)};
  }
};

// One rank's part. A pattern is an exchange in which each rank receives one box, from `peers`.
class Rank {
 public:
  Rank(Context& context, RankClock& clock) : context_(context), clock_(clock) {}

  absl::StatusOr<Times> Run(int64_t elements) {
    const int n = context_.world_size(), me = context_.rank();
    all_.resize(n);
    std::iota(all_.begin(), all_.end(), 0);
    for (Tensor* tensor : {&from_, &to_}) {
      DT_ASSIGN_OR_RETURN(*tensor, Tensor::Empty(context_.device(), DType::kF32, {elements}));
      DT_RETURN_IF_ERROR(context_.device().FillBytes(tensor->raw(), 0, tensor->bytes()));
    }
    const ReceiveBox message = Box({(me + 1) % n}, 1), fetch = Box({(me + 1) % n}, elements),
                     copy = Box({me}, elements), reduce = Box(all_, elements);
    Times best;
    // In turn, so that whatever else the machine does slows all of them alike.
    for (int round = 0; round <= kRounds; ++round) {
      Times times;
      DT_ASSIGN_OR_RETURN(times.message, Seconds(message, /*calls=*/300));
      DT_ASSIGN_OR_RETURN(times.fetch, Seconds(fetch, /*calls=*/1));
      DT_ASSIGN_OR_RETURN(times.copy, Seconds(copy, /*calls=*/1));
      DT_ASSIGN_OR_RETURN(times.reduce, Seconds(reduce, /*calls=*/1));
      DT_RETURN_IF_ERROR(clock_.Time(context_, [&] { return Gemm(); }));
      times.multiply = clock_.seconds();
      best = round == 0 ? Times() : best.Min(times);  // the first one warms up
    }
    return best;
  }

 private:
  static ReceiveBox Box(absl::Span<const int> peers, int64_t elements) {
    ReceiveBox box;
    box.peers.assign(peers.begin(), peers.end());
    box.dims.push_back({0, 0, elements});
    return box;
  }

  absl::StatusOr<double> Seconds(const ReceiveBox& box, int calls) {
    DT_RETURN_IF_ERROR(clock_.Time(context_, [&]() -> absl::Status {
      for (int i = 0; i < calls; ++i) DT_RETURN_IF_ERROR(Exchange(box));
      return absl::OkStatus();
    }));
    return clock_.seconds() / calls;
  }

  absl::Status Gemm() {
    GemmProblem gemm;
    gemm.m = gemm.n = gemm.k = kSide;
    gemm.a = gemm.b = {from_.raw(), kSide, 1, 0};
    gemm.c = {to_.raw(), kSide, 1, 0};
    return context_.device().Gemm(gemm);
  }

  absl::Status Exchange(const ReceiveBox& box) {
    ExchangePart part{from_, to_, absl::MakeConstSpan(&box, 1)};
    Collective collective;
    collective.axes = "all";
    collective.op = "links";
    collective.group = all_;
    return context_.communicator().Exchange(collective, absl::MakeSpan(&part, 1));
  }

  Context& context_;
  RankClock& clock_;
  std::vector<int> all_;
  Tensor from_, to_;
};

// The shortest text of three digits is enough of a measurement.
double Rounded(double value) {
  double rounded = value;
  return absl::SimpleAtod(absl::StrFormat("%.3g", value), &rounded) ? rounded : value;
}

double GbPerSecond(double bytes, double seconds) { return Rounded(bytes / seconds / 1e9); }

// Turns the formula around by which plans are priced (RedistributionPlan::PredictedSeconds): a
// latency for the round, the transfers of what comes from others, and then copying own elements
// (read and written) or reducing (terms read).
CostModel TableOf(const Times& times, double bytes, int ranks) {
  // Clocks are noisy, and a reduction is never free.
  const auto positive = [](double seconds, double whole) {
    return std::max(seconds, 0.05 * whole);
  };
  CostModel table;
  table.SetDefault({Rounded(times.message * 1e6),
                    GbPerSecond(bytes, positive(times.fetch - times.message, times.fetch))});
  table.set_copy_gb_per_second(
      GbPerSecond(2 * bytes, positive(times.copy - times.message, times.copy)));
  const double transfers = (times.fetch - times.message) * (ranks - 1);
  table.set_reduce_gb_per_second(
      GbPerSecond(bytes * ranks, positive(times.reduce - times.message - transfers, times.reduce)));
  table.set_multiply_gf_per_second(Rounded(2.0 * kSide * kSide * kSide / times.multiply / 1e9));
  return table;
}

std::string LinksJson(const CostModel& table, int64_t ranks) {
  return JsonText({{"ranks", ranks},
                   {"latency_us", table.Of("*").latency_us},
                   {"gb_per_second", table.Of("*").gb_per_second},
                   {"copy_gb_per_second", table.copy_gb_per_second()},
                   {"reduce_gb_per_second", table.reduce_gb_per_second()},
                   {"multiply_gf_per_second", table.multiply_gf_per_second()}});
}

}  // namespace

absl::StatusOr<CostModel> MeasureLinks(int64_t number) {
  if (number < 2 || number > kMaxRanks) {
    return InvalidArgument({"--ranks: ", absl::StrCat(number), " is out of range; take 2 to ",
                            absl::StrCat(kMaxRanks), ", no more than there are cores"});
  }
  const int ranks = static_cast<int>(number);
  const int64_t elements = kTotalBytes / ranks / 4;
  RankClock clock(ranks);
  Times times;
  const auto measure = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const Times mine, Rank(context, clock).Run(elements));
    if (context.rank() == 0) times = mine;  // all ranks have the same
    return absl::OkStatus();
  };
  const absl::Status status = RunRanks(ranks, measure, {.pin_threads = true});
  if (!status.ok()) return absl::InternalError(status.message());
  return TableOf(times, static_cast<double>(elements * 4), ranks);
}

absl::StatusOr<Outcome> RunLinks(int64_t ranks, bool json) {
  DT_ASSIGN_OR_RETURN(const CostModel table, MeasureLinks(ranks));
  if (json) return Outcome{LinksJson(table, ranks)};
  return Outcome{absl::StrCat("# measured between ", ranks, " ranks, threads of one process\n",
                              table.ToString())};
}

}  // namespace dtensor::cli
