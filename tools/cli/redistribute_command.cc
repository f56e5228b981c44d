#include "dtensor/tools/cli/redistribute_command.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/bench/rank_time.h"
#include "dtensor/bench/stream_limit.h"
#include "dtensor/redistribution/plan_executor.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/testing/indexed_data.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/plan_command.h"
#include "dtensor/tools/program/memory.h"
#include "dtensor/tools/program/progress.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::cli {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Each rank's part of the copy, as BestCopy expects it.
int64_t CopyBytes(const MeasureOptions& options, int ranks) {
  return options.copy_bytes / ranks / 256 * 256;
}

// For each box: its terms, and the result.
int64_t TouchedBytes(const RankRedistributionPlan& plan) {
  if (plan.plan().is_view()) return 0;
  int64_t elements = 0;
  for (const RankRedistributionPlan::Round& round : plan.rounds()) {
    for (const ReceiveBox& box : round.receives) {
      elements += box.elements() * (static_cast<int64_t>(box.peers.size()) + 1);
    }
  }
  return elements * SizeOf(plan.plan().dtype());
}

int64_t BytesReceived(const Communicator& communicator) {
  int64_t bytes = 0;
  for (const auto& [key, traffic] : communicator.traffic()) bytes += traffic.bytes;
  return bytes;
}

class Rank {
 public:
  Rank(Context& context, const RedistributionPlan& plan, const IndexedData& data,
       const MeasureOptions& options)
      : context_(context),
        whole_plan_(plan),
        ranks_(plan.Ranks()),
        data_(data),
        options_(options) {}

  // Returns the same report on all ranks.
  absl::StatusOr<RunReport> Run() {
    DT_RETURN_IF_ERROR(Prepare());
    DT_RETURN_IF_ERROR(RunOnce());
    const int64_t counted = BytesReceived(context_.communicator());
    Mismatches wrong = data_.Check(context_.rank(), result_);
    RunReport report;
    DT_RETURN_IF_ERROR(Time(report));
    const Mismatches later = data_.Check(context_.rank(), result_);
    if (wrong.count == 0) wrong.first = later.first;
    wrong.count += later.count;
    DT_RETURN_IF_ERROR(Gather(wrong, counted, report));
    return report;
  }

 private:
  absl::Status Prepare() {
    if (!absl::c_binary_search(ranks_, context_.rank())) return absl::OkStatus();
    plan_.emplace(whole_plan_, context_.rank());
    Device& device = context_.device();
    DT_ASSIGN_OR_RETURN(source_, data_.Source(context_.rank(), device));
    const int64_t floats = CopyBytes(options_, static_cast<int>(ranks_.size())) / 4;
    for (Tensor* buffer : {&copy_from_, &copy_to_}) {
      DT_ASSIGN_OR_RETURN(*buffer, Tensor::Empty(device, DType::kF32, {floats}));
      DT_RETURN_IF_ERROR(device.FillBytes(buffer->raw(), 1, buffer->bytes()));  // touches the pages
    }
    return absl::OkStatus();
  }

  absl::Status Time(RunReport& report) {
    DT_ASSIGN_OR_RETURN(const double once,
                        bench::TimeOnAllRanks(context_, [this] { return RunOnce(); }));
    // Enough calls for a clock to time them.
    const int calls = static_cast<int>(std::clamp(100e-6 / once, 1.0, 1000.0));
    double best = kNever, best_copy = kNever;
    for (int64_t round = 0; round < options_.rounds; ++round) {
      DT_ASSIGN_OR_RETURN(const double seconds,
                          bench::TimeOnAllRanks(context_, [&] { return RunTimes(calls); }));
      best = std::min(best, seconds / calls);
      DT_ASSIGN_OR_RETURN(const double copy,
                          bench::TimeOnAllRanks(context_, [this] { return Copy(); }));
      best_copy = std::min(best_copy, copy);
      if (options_.progress && context_.rank() == 0) options_.progress(round + 1);
    }
    report.seconds = best;
    const int takers = static_cast<int>(ranks_.size());
    report.stream_bytes_per_second =
        2.0 * static_cast<double>(CopyBytes(options_, takers) * takers) / best_copy;
    return absl::OkStatus();
  }

  absl::Status Gather(const Mismatches& wrong, int64_t counted, RunReport& report) {
    struct Mine {
      int64_t mismatches, counted, touched;
    };
    const Mine mine = {wrong.count, counted, plan_ ? TouchedBytes(*plan_) : 0};
    DT_ASSIGN_OR_RETURN(const std::vector<Mine> all, GatherValues(context_, mine));
    DT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherBytes(context_, wrong.first));
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank].mismatches > 0 && report.mismatches == 0) {
        report.first_mismatch = absl::StrCat("rank ", rank, ": ", texts[rank]);
      }
      report.mismatches += all[rank].mismatches;
      report.counted_total_bytes += all[rank].counted;
      report.counted_max_bytes_per_rank =
          std::max(report.counted_max_bytes_per_rank, all[rank].counted);
      report.touched_bytes += all[rank].touched;
    }
    return absl::OkStatus();
  }

  absl::Status RunOnce() {
    if (!plan_) return absl::OkStatus();
    result_ = Tensor();  // its memory is used again
    DT_ASSIGN_OR_RETURN(result_,
                        ExecutePlan(*plan_, source_, context_.communicator(), "redistribute"));
    return absl::OkStatus();
  }

  absl::Status RunTimes(int calls) {
    for (int i = 0; i < calls; ++i) DT_RETURN_IF_ERROR(RunOnce());
    return absl::OkStatus();
  }

  absl::Status Copy() {
    if (!plan_) return absl::OkStatus();
    bench::BestCopy(copy_to_.data<std::byte>(), copy_from_.data<std::byte>(), copy_from_.bytes());
    return absl::OkStatus();
  }

  Context& context_;
  const RedistributionPlan& whole_plan_;
  const std::vector<int> ranks_;  // those that take part; other ranks of the world are idle
  const IndexedData& data_;
  const MeasureOptions& options_;
  std::optional<RankRedistributionPlan> plan_;  // none if this rank is idle
  Tensor source_, result_, copy_from_, copy_to_;
};

std::string ReportJson(const RedistributionPlan& plan, RedistributionObjective objective,
                       const RunReport& report, const std::string& wrong) {
  nlohmann::ordered_json json = RequestJson(plan, objective);
  json["ok"] = wrong.empty();
  if (!wrong.empty()) json["mismatch"] = wrong;
  json["counted_total_bytes"] = report.counted_total_bytes;
  json["counted_max_bytes_per_rank"] = report.counted_max_bytes_per_rank;
  json["touched_bytes"] = report.touched_bytes;
  json["seconds"] = report.seconds;
  json["stream_bytes_per_second"] = report.stream_bytes_per_second;
  json["stream_limit_ratio"] = report.stream_limit_ratio();
  return JsonText(json);
}

std::string LimitText(const RunReport& report) {
  if (report.touched_bytes == 0) return "none: nothing is read or written";
  return absl::StrFormat("%.2f of the speed of a copy: %d B read and written, at most %.1f GB/s",
                         report.stream_limit_ratio(), report.touched_bytes,
                         report.stream_bytes_per_second / 1e9);
}

std::string ReportText(const RedistributionPlan& plan, RedistributionObjective objective,
                       const RunReport& report, const std::string& wrong) {
  return absl::StrFormat(
      "%s"
      "data       %s\n"
      "counted    %d B, busiest rank %d B\n"
      "time       %.2f us\n"
      "limit      %s\n",
      RequestText(plan, objective),
      wrong.empty() ? "every element is right on every rank" : "WRONG: " + wrong,
      report.counted_total_bytes, report.counted_max_bytes_per_rank, report.seconds * 1e6,
      LimitText(report));
}

}  // namespace

double RunReport::stream_limit_ratio() const {
  return static_cast<double>(touched_bytes) / stream_bytes_per_second / seconds;
}

int64_t WorldSize(const RedistributionPlan& plan) { return int64_t{plan.Ranks().back()} + 1; }

int64_t MemoryNeeded(const RedistributionPlan& plan, const MeasureOptions& options) {
  int64_t elements = 0;
  for (const Layout* layout : {&plan.from(), &plan.to()}) {
    for (int i = 0; i < layout->mesh().size(); ++i) {
      elements += NumElements(layout->LocalShape(plan.shape(), layout->mesh().RankOf(i)));
    }
  }
  return elements * SizeOf(plan.dtype()) + 2 * options.copy_bytes;
}

absl::Status CheckRunnable(const RedistributionPlan& plan, int64_t memory_available) {
  const int64_t ranks = WorldSize(plan);
  if (ranks > IndexedData::kMaxRanks) {
    return InvalidArgument({"--mesh: a world of ", absl::StrCat(ranks), " ranks, 0 to ",
                            absl::StrCat(ranks - 1), ", is too many threads; take ",
                            absl::StrCat(IndexedData::kMaxRanks), " or fewer, or `dtensor plan`"});
  }
  // Other programs on the machine need some, too.
  const int64_t needed = MemoryNeeded(plan);
  if (needed <= memory_available / 8 * 7) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--shape: %s takes %d MiB on all ranks, and %d MiB are free; take a smaller one, or `dtensor "
      "plan`",
      DimsToString(plan.shape()), needed >> 20, memory_available >> 20));
}

absl::StatusOr<RunReport> Measure(const RedistributionPlan& plan, const MeasureOptions& options) {
  const IndexedData data(plan);
  DT_RETURN_IF_ERROR(data.CheckKeepers());
  RunReport report;
  const auto run = [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(RunReport mine, Rank(context, plan, data, options).Run());
    if (context.rank() == 0) report = std::move(mine);
    return absl::OkStatus();
  };
  const int ranks = static_cast<int>(WorldSize(plan));
  DT_RETURN_IF_ERROR(RunWorld(ranks, run, {.pin_threads = CanPin(ranks)}));
  return report;
}

std::string Verdict(const RedistributionPlan& plan, const RunReport& report) {
  if (report.mismatches > 0) {
    return absl::StrCat(report.mismatches, " elements differ; ", report.first_mismatch);
  }
  const RedistributionBytes planned = plan.Bytes();
  if (planned.total == report.counted_total_bytes &&
      planned.busiest == report.counted_max_bytes_per_rank) {
    return "";
  }
  return absl::StrCat("the plan says ", planned.total, " B and ", planned.busiest,
                      " B on the busiest rank, the ranks counted ", report.counted_total_bytes,
                      " and ", report.counted_max_bytes_per_rank);
}

namespace {

// JSON is for programs: they get progress only if they ask for it.
absl::StatusOr<RunReport> MeasureAndShow(const RedistributionPlan& plan, const RoundsFlags& rounds,
                                         bool json) {
  MeasureOptions options = {.rounds = rounds.rounds};
  if (json && !rounds.progress) return Measure(plan, options);
  Progress progress("rounds", rounds.rounds, Progress::OnStderr(rounds.progress));
  options.progress = [&](int64_t done) { progress.Report(done); };
  return Measure(plan, options);
}

}  // namespace

absl::StatusOr<Outcome> RunRedistribute(const MoveFlags& flags, const RoundsFlags& rounds,
                                        bool json) {
  DT_ASSIGN_OR_RETURN(const Move move, ParseMove(flags));
  if (rounds.rounds < 1) {
    return InvalidArgument(
        {"--rounds: ", absl::StrCat(rounds.rounds), " is too few; take 1 or more"});
  }
  DT_ASSIGN_OR_RETURN(const RedistributionPlan plan, MakePlan(move));
  DT_RETURN_IF_ERROR(CheckRunnable(plan, MemoryAvailable()));
  if (const int launched = LaunchedRanks(); launched > 0 && launched != WorldSize(plan)) {
    return InvalidArgument({"--mesh: a world of ", absl::StrCat(WorldSize(plan)), " ranks, and ",
                            absl::StrCat(launched), " processes were started; start ",
                            absl::StrCat(WorldSize(plan)), ", or take another mesh"});
  }
  const absl::StatusOr<RunReport> report = MeasureAndShow(plan, rounds, json);
  if (!report.ok()) return absl::InternalError(report.status().message());
  const std::string wrong = Verdict(plan, *report);
  const auto write = json ? ReportJson : ReportText;
  return Outcome{write(plan, move.options.objective, *report, wrong), wrong.empty()};
}

}  // namespace dtensor::cli
