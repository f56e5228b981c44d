#include "dtensor/tools/cli/ring/ring_run.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/attention/ring_executor.h"
#include "dtensor/runtime/comm/local/run_ranks.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/cpu/cpu_device.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/program/memory.h"
#include "dtensor/tools/program/output.h"
#include "dtensor/tools/program/progress.h"

namespace dtensor::cli {
namespace {

constexpr int kMaxRanks = 64;

// Copies between the rows of `all` at `positions` of its dimension 1 and the rows of `part`. Both
// are [b, s, h, d].
enum class Copy { kFromAll, kToAll };
void CopyRows(const Tensor& all, const Tensor& part, const IndexSet& positions, Copy direction) {
  const int64_t element = SizeOf(all.dtype()), bytes = all.size(3) * element;
  const auto row = [element](const Tensor& tensor, int64_t b, int64_t s, int64_t h) {
    const Dims& strides = tensor.strides();
    return tensor.data<std::byte>() + (b * strides[0] + s * strides[1] + h * strides[2]) * element;
  };
  for (int64_t i = 0; i < positions.size(); ++i) {
    const int64_t position = positions.At(i);
    for (int64_t b = 0; b < all.size(0); ++b) {
      for (int64_t h = 0; h < all.size(2); ++h) {
        std::byte *one = row(all, b, position, h), *other = row(part, b, i, h);
        std::memcpy(direction == Copy::kToAll ? one : other,
                    direction == Copy::kToAll ? other : one, bytes);
      }
    }
  }
}

// Views [b, h, s] as [b, s, h, 1].
Tensor RowsOf(const Tensor& lse) {
  const Dims& n = lse.shape();
  const Dims& strides = lse.strides();
  return lse.View({n[0], n[2], n[1], 1}, {strides[0], strides[2], strides[1], 1}, 0);
}

// What the ranks share. Each rank writes its rows of the outputs, and adds to the rest under the
// lock.
struct Shared {
  const RingSchedule& schedule;
  const RingInputs& inputs;
  RingRun run;
  std::mutex mutex;
};

class Rank {
 public:
  Rank(Shared& shared, Communicator& communicator, Device& device)
      : shared_(shared),
        communicator_(communicator),
        device_(device),
        ring_(shared.schedule, communicator.rank()),
        q_positions_(shared.schedule.q_positions(ring_.ring_rank())),
        kv_positions_(shared.schedule.kv_positions(ring_.ring_rank())) {}

  absl::Status Run() {
    const RingInputs& in = shared_.inputs;
    DT_ASSIGN_OR_RETURN(const Tensor q, Take(in.q, q_positions_));
    DT_ASSIGN_OR_RETURN(const Tensor k, Take(in.k, kv_positions_));
    DT_ASSIGN_OR_RETURN(const Tensor v, Take(in.v, kv_positions_));
    DT_ASSIGN_OR_RETURN(const Tensor dout, Take(in.dout, q_positions_));
    DT_ASSIGN_OR_RETURN(const RingOutputs mine, Empty(q, k));
    const RingOptions options = {.scale = RingScale(ring_.schedule().problem())};
    DT_RETURN_IF_ERROR(
        dtensor::RunRing(ring_, options, q, k, v, communicator_, "dtensor ring", mine.o, mine.lse));
    DT_RETURN_IF_ERROR(RunRingBackward(ring_, options, q, k, v, mine.o, mine.lse, dout,
                                       communicator_, "dtensor ring", mine.dq, mine.dk, mine.dv));
    DT_RETURN_IF_ERROR(device_.Synchronize());
    Put(mine);
    Count();
    return absl::OkStatus();
  }

 private:
  // This rank's rows of [b, h, s, d], as [b, s, h, d].
  absl::StatusOr<Tensor> Take(const Tensor& all, const IndexSet& positions) {
    const Dims shape = {all.size(0), positions.size(), all.size(1), all.size(3)};
    DT_ASSIGN_OR_RETURN(Tensor part, Tensor::Empty(device_, all.dtype(), shape));
    CopyRows(all.Transpose(1, 2), part, positions, Copy::kFromAll);
    return part;
  }

  absl::StatusOr<RingOutputs> Empty(const Tensor& q, const Tensor& k) {
    const Dims rows = {q.size(0), q.size(2), q.size(1)};
    RingOutputs mine;
    DT_ASSIGN_OR_RETURN(mine.o, Tensor::Empty(device_, q.dtype(), q.shape()));
    DT_ASSIGN_OR_RETURN(mine.lse, Tensor::Empty(device_, AccumulatorOf(q.dtype()), rows));
    DT_ASSIGN_OR_RETURN(mine.dq, Tensor::Empty(device_, q.dtype(), q.shape()));
    DT_ASSIGN_OR_RETURN(mine.dk, Tensor::Empty(device_, k.dtype(), k.shape()));
    DT_ASSIGN_OR_RETURN(mine.dv, Tensor::Empty(device_, k.dtype(), k.shape()));
    return mine;
  }

  void Put(const RingOutputs& mine) {
    const RingOutputs& all = shared_.run.outputs;
    CopyRows(all.o.Transpose(1, 2), mine.o, q_positions_, Copy::kToAll);
    CopyRows(RowsOf(all.lse), RowsOf(mine.lse), q_positions_, Copy::kToAll);
    CopyRows(all.dq.Transpose(1, 2), mine.dq, q_positions_, Copy::kToAll);
    CopyRows(all.dk.Transpose(1, 2), mine.dk, kv_positions_, Copy::kToAll);
    CopyRows(all.dv.Transpose(1, 2), mine.dv, kv_positions_, Copy::kToAll);
  }

  void Count() {
    const std::lock_guard lock(shared_.mutex);
    for (const auto& [key, traffic] : communicator_.traffic()) {
      shared_.run.counted_bytes += traffic.bytes;
    }
    shared_.run.peak_bytes = std::max(shared_.run.peak_bytes, device_.memory().peak_bytes);
  }

  Shared& shared_;
  Communicator& communicator_;
  Device& device_;
  const RankRing ring_;
  const IndexSet &q_positions_, &kv_positions_;
};

// Ranks 0 to the highest one of the mesh.
int WorldSize(const DeviceMesh& mesh) {
  int highest = 0;
  for (int i = 0; i < mesh.size(); ++i) highest = std::max(highest, mesh.RankOf(i));
  return highest + 1;
}

int64_t PlannedBytes(const RingSchedule& schedule) {
  int64_t bytes = 0;
  for (int ring_rank = 0; ring_rank < schedule.ring_size(); ++ring_rank) {
    bytes += schedule.ForwardBytes(ring_rank) + schedule.BackwardBytes(ring_rank);
  }
  return bytes;
}

// The whole tensors, the ranks' parts of them, and the comparison, which uses mostly long doubles.
double MemoryNeeded(const RingSchedule& schedule) {
  const RingProblem& p = schedule.problem();
  const double elements = 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.q_length) *
                          static_cast<double>((p.heads + p.kv_heads) * p.head_dim);
  return elements * static_cast<double>(SizeOf(p.dtype) + sizeof(long double)) +
         static_cast<double>(schedule.PeakBytes()) * schedule.ring_size();
}

absl::Status CheckRunnable(const RingSchedule& schedule) {
  const int ranks = WorldSize(schedule.problem().q.mesh());
  if (ranks > kMaxRanks) {
    return InvalidArgument({"--mesh: ", absl::StrCat(ranks), " ranks are too many threads; take ",
                            absl::StrCat(kMaxRanks), " or fewer, or leave --run out"});
  }
  // Other programs on the machine need some, too.
  const double needed = MemoryNeeded(schedule), free = static_cast<double>(MemoryAvailable());
  if (needed <= free / 8 * 7) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("--seq: the run takes %.0f MiB, and %.0f MiB are free; take a shorter one, "
                      "or leave --run out",
                      needed / (1 << 20), free / (1 << 20)));
}

std::string ErrorText(const RingError& error) {
  const std::string text = absl::StrFormat("tensor     %-3s  error %.1e, limit %.1e", error.name,
                                           error.error, error.limit);
  if (!error.at_one) return text + "\n";
  return absl::StrFormat("%s: %.3f of one rank's %.1e\n", text, error.ratio(), *error.at_one);
}

std::string ReportText(const RingSchedule& schedule, const RingReport& report,
                       const std::string& wrong) {
  std::string text = schedule.Heading();
  for (const RingError& error : report.errors) text += ErrorText(error);
  absl::StrAppendFormat(&text,
                        "received   %d B by all ranks, %d B by the schedule\n"
                        "peak       %d B on a rank, %d B by the schedule\n"
                        "verdict    %s\n",
                        report.counted_bytes, report.planned_bytes, report.peak_bytes,
                        report.planned_peak_bytes,
                        wrong.empty() ? "all within the limits" : "WRONG: " + wrong);
  return text;
}

nlohmann::ordered_json ErrorJson(const RingError& error) {
  nlohmann::ordered_json json = {
      {"name", error.name}, {"error", error.error}, {"limit", error.limit}};
  if (!error.at_one) return json;
  json["error_on_one_rank"] = *error.at_one;
  json["ratio"] = error.ratio();
  return json;
}

std::string ReportJson(const RingSchedule& schedule, const RingFlags& flags,
                       const RingReport& report, const std::string& wrong) {
  nlohmann::ordered_json json = ProblemJson(schedule.problem(), flags.pattern);
  json["ok"] = wrong.empty();
  if (!wrong.empty()) json["wrong"] = wrong;
  json["tensors"] = nlohmann::ordered_json::array();
  for (const RingError& error : report.errors) json["tensors"].push_back(ErrorJson(error));
  json["counted_bytes"] = report.counted_bytes;
  json["planned_bytes"] = report.planned_bytes;
  json["counted_peak_bytes_per_rank"] = report.peak_bytes;
  json["peak_bytes_per_rank"] = report.planned_peak_bytes;
  return JsonText(json);
}

// The file's sizes are taken for flags that are not given.
absl::StatusOr<std::optional<SafetensorsReader>> OpenInput(RingFlags& flags) {
  if (!flags.in) return std::nullopt;
  absl::StatusOr<SafetensorsReader> file = SafetensorsReader::Open(*flags.in);
  if (!file.ok()) {
    return absl::Status(file.status().code(), absl::StrCat("--in: ", file.status().message()));
  }
  DT_ASSIGN_OR_RETURN(flags, WithSizesOf(*file, flags));
  return *std::move(file);
}

absl::StatusOr<RingReport> RunAndCompare(const RingSchedule& schedule,
                                         const std::optional<SafetensorsReader>& file,
                                         const std::optional<std::string>& out,
                                         const TellFraction& tell) {
  const std::unique_ptr<Device> device = MakeCpuDevice();
  const RingProblem& problem = schedule.problem();
  DT_ASSIGN_OR_RETURN(const RingInputs inputs,
                      file ? ReadInputs(*device, *file, problem) : RandomInputs(*device, problem));
  const double share = RingShare(problem, static_cast<int>(std::thread::hardware_concurrency()));
  const absl::StatusOr<RingRun> run =
      RunOnThreads(*device, schedule, inputs, [&](double done) { tell(done * share); });
  if (!run.ok()) return absl::InternalError(run.status().message());
  const absl::Status written = out ? WriteOutputs(*out, run->outputs) : absl::OkStatus();
  if (!written.ok()) return absl::InternalError(absl::StrCat("--out: ", written.message()));
  RingReport report = {.counted_bytes = run->counted_bytes,
                       .planned_bytes = PlannedBytes(schedule),
                       .peak_bytes = run->peak_bytes,
                       .planned_peak_bytes = schedule.PeakBytes()};
  DT_ASSIGN_OR_RETURN(report.errors,
                      Compare(*device, problem, inputs, run->outputs,
                              [&](double done) { tell(share + done * (1 - share)); }));
  return report;
}

// JSON is for programs: they get progress only if they ask for it.
absl::StatusOr<RingReport> RunAndShow(const RingSchedule& schedule,
                                      const std::optional<SafetensorsReader>& file,
                                      const RingFlags& flags, bool json) {
  if (json && !flags.progress) return RunAndCompare(schedule, file, flags.out, [](double) {});
  Progress progress("percent", 100, Progress::OnStderr(flags.progress));
  return RunAndCompare(schedule, file, flags.out,
                       [&](double done) { progress.Report(static_cast<int64_t>(100 * done)); });
}

}  // namespace

absl::StatusOr<RingRun> RunOnThreads(Device& device, const RingSchedule& schedule,
                                     const RingInputs& inputs, const TellFraction& tell) {
  const DeviceMesh& mesh = schedule.problem().q.mesh();
  Shared shared = {schedule, inputs};
  DT_ASSIGN_OR_RETURN(shared.run.outputs, EmptyOutputs(device, schedule.problem()));
  const auto run = [&](Communicator& communicator, Device& of_rank) -> absl::Status {
    if (!mesh.Contains(communicator.rank())) return absl::OkStatus();  // not in the mesh: idle
    std::optional<RingStepCounter> counter;
    if (tell && communicator.rank() == mesh.RankOf(0))
      counter.emplace(communicator, schedule, tell);
    return Rank(shared, communicator, of_rank).Run();
  };
  // Many threads share few cores, so a peer may take long.
  DT_RETURN_IF_ERROR(RunLocalRanks(
      WorldSize(mesh), run, {.timeout_seconds = 3600, .pin_threads = CanPin(WorldSize(mesh))}));
  return shared.run;
}

std::string Verdict(const RingReport& report) {
  std::vector<std::string> wrong;
  for (const RingError& error : report.errors) {
    if (error.ok()) continue;
    wrong.push_back(absl::StrFormat("the error of %s is %.2e, beyond its limit of %.2e", error.name,
                                    error.error, error.limit));
  }
  if (report.counted_bytes != report.planned_bytes) {
    wrong.push_back(absl::StrCat("the schedule says ", report.planned_bytes,
                                 " B, and the ranks counted ", report.counted_bytes));
  }
  return absl::StrJoin(wrong, "; ");
}

absl::StatusOr<Outcome> RunRingOnThreads(const RingFlags& flags, bool json) {
  RingFlags whole = flags;
  DT_ASSIGN_OR_RETURN(const std::optional<SafetensorsReader> file, OpenInput(whole));
  DT_ASSIGN_OR_RETURN(const RingProblem problem, ParseRing(whole));
  DT_ASSIGN_OR_RETURN(const RingSchedule schedule, RingSchedule::Create(problem));
  DT_RETURN_IF_ERROR(CheckRunnable(schedule));
  if (flags.out) DT_RETURN_IF_ERROR(CheckOutputFile("--out", *flags.out));
  DT_ASSIGN_OR_RETURN(const RingReport report, RunAndShow(schedule, file, flags, json));
  const std::string wrong = Verdict(report);
  return Outcome{
      json ? ReportJson(schedule, whole, report, wrong) : ReportText(schedule, report, wrong),
      wrong.empty()};
}

}  // namespace dtensor::cli
