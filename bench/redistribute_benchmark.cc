// Redistributions between rank threads: bytes moved over the least possible, and time over that of
// a bare copy. Rows, rules and results: bench/README.md.
//
//   moved, bound   bytes that all ranks receive from others, counted; and the least there can be
//   ratio          moved / bound
//   us             median over rounds, from the first rank's start to the last rank's end
//   GB_per_s       what the plan reads and writes on all ranks, over that time
//   limit_us       the same bytes at the speed of BestCopy() on all ranks at once, measured in turn
//                  with the row (median)
//   share          limit_us / us. Below 1 MiB all lies in the caches, and there is no limit
//
// Flags, beside Google Benchmark's: --wide adds the meshes of 8 ranks; --greedy adds the 2x2 rows
// as PyTorch's greedy planner would go, step by step on our transport; --seconds=S is the time for
// each row. Exit status 1 if a result was wrong.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "benchmark/benchmark.h"
#include "dtensor/bench/redistribute_grid.h"
#include "dtensor/bench/stream_limit.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCachedBelow = 1 << 20;          // bytes of the global tensor
constexpr int64_t kRotation = int64_t{128} << 20;  // four times the last cache of these machines
constexpr int64_t kCopyBytes = int64_t{64} << 20;  // of each rank
constexpr int kTermBase = 8;                       // values 0..7: sums are exact in bf16 too

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// One round of one kind of work on all ranks: when each began and ended.
class Round {
 public:
  explicit Round(int ranks) : begin_(ranks), end_(ranks) {}
  void Time(int rank, const auto& work) {
    begin_[rank].at = Clock::now();
    work();
    end_[rank].at = Clock::now();
  }
  double Seconds() const {  // once all ranks are done
    const auto by_time = [](const Stamp& a, const Stamp& b) { return a.at < b.at; };
    const auto first = std::min_element(begin_.begin(), begin_.end(), by_time)->at;
    const auto last = std::max_element(end_.begin(), end_.end(), by_time)->at;
    return std::chrono::duration<double>(last - first).count();
  }

 private:
  struct alignas(64) Stamp {
    Clock::time_point at;
  };
  std::vector<Stamp> begin_, end_;
};

// What all ranks of a row share.
struct Shared {
  Shared(const Row& row, double seconds) : row(row), seconds(seconds), round(row.ranks()) {}

  const Row& row;
  const double seconds;  // to spend on the row
  std::vector<Placements> path;
  Round round;
  std::atomic<int> calls = 1, rounds = 7;  // calls in a round
  std::atomic<int64_t> moved = 0, touched = 0, bound = 0;
  std::vector<double> times, copy_times;  // by rank 0: seconds of a call, and of a copy
};

// The global tensor, coded by index so that a misplaced element shows.
template <typename T>
std::vector<T> Values(int64_t n, float scale) {
  std::vector<T> values(n);
  for (int64_t i = 0; i < n; ++i) {
    values[i] = T(static_cast<float>(((i * 2654435761u) >> 16) % kTermBase) * scale);
  }
  return values;
}

// One rank's part in measuring a row.
template <typename T>
class Runner {
 public:
  Runner(Context& context, Shared& shared, const std::vector<T>& source,
         const std::vector<T>& expected)
      : context_(context),
        shared_(shared),
        row_(shared.row),
        source_(source),
        expected_(expected) {}

  absl::Status Run() {
    const NoGrad no_grad(context_);
    DT_RETURN_IF_ERROR(Prepare());
    DT_RETURN_IF_ERROR(CountBytes());
    DT_RETURN_IF_ERROR(WarmUp());
    for (int i = 0; i < shared_.rounds; ++i) DT_RETURN_IF_ERROR(MeasureRound());
    return CheckResults();
  }

 private:
  struct Slot {  // a source and the result of its last call: both memories rotate
    DistributedTensor source, result;
  };
  struct Unmap {
    Device* device;
    void operator()(std::byte* data) const { device->Free(data, kCopyBytes); }
  };
  using Buffer = std::unique_ptr<std::byte, Unmap>;

  bool cached() const { return row_.bytes() < kCachedBelow; }
  bool leads() const { return context_.rank() == 0; }

  absl::StatusOr<Layout> LayoutOf(const Placements& placements) const {
    return Layout::FromPlacements(mesh_, placements, row_.shape);
  }

  int64_t BytesOf(const Layout& layout) const {  // on all ranks
    int64_t elements = 0;
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      elements += NumElements(layout.LocalShape(row_.shape, rank));
    }
    return elements * sizeof(T);
  }

  absl::Status Prepare() {
    std::vector<DeviceMesh::Axis> axes;
    for (const int size : row_.mesh) axes.push_back({absl::StrCat("a", axes.size()), size});
    DT_ASSIGN_OR_RETURN(mesh_, DeviceMesh::Create(axes));
    for (const Placements& step : shared_.path) {
      DT_ASSIGN_OR_RETURN(Layout layout, LayoutOf(step));
      path_.push_back(std::move(layout));
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor first, MakeSource());
    const int64_t footprint = BytesOf(first.layout()) + BytesOf(path_.back());
    slots_.resize(cached() ? 1 : std::max<int64_t>(2, (kRotation + footprint - 1) / footprint));
    slots_[0].source = first;
    for (size_t i = 1; i < slots_.size(); ++i) {
      DT_ASSIGN_OR_RETURN(slots_[i].source, MakeSource());
    }
    // A tensor remembers where it went, unless it is a parameter.
    for (Slot& slot : slots_) slot.source.set_pinned(true);
    return cached() ? absl::OkStatus() : PrepareCopy();
  }

  // Terms are 1 + coordinate times the value, and the products of these where axes combine.
  TensorOr MakeSource() {
    Placements whole = row_.from;
    float weight = 1;
    const auto coordinate = mesh_.Coordinate(context_.rank());
    for (size_t axis = 0; axis < whole.size(); ++axis) {
      if (!whole[axis].is_partial()) continue;
      whole[axis] = Replicate();
      weight *= 1 + coordinate[axis];
    }
    DT_ASSIGN_OR_RETURN(const DistributedTensor tensor,
                        Distribute<T>(context_, mesh_, whole, row_.shape, source_));
    T* const data = tensor.local().template data<T>();
    for (int64_t i = 0; i < tensor.local().numel(); ++i) data[i] = T(float(data[i]) * weight);
    DT_ASSIGN_OR_RETURN(const Layout layout, LayoutOf(row_.from));
    return FromLocal(context_, layout, row_.shape, tensor.local());
  }

  absl::Status PrepareCopy() {
    for (Buffer* buffer : {&copy_from_, &copy_to_}) {
      DT_ASSIGN_OR_RETURN(void* data, context_.device().Allocate(kCopyBytes));
      *buffer = Buffer(static_cast<std::byte*>(data), {&context_.device()});
      std::memset(data, 1, kCopyBytes);
    }
    return absl::OkStatus();
  }

  // What the direct plan reads and writes here: each box's terms, and its result.
  absl::Status CountBytes() {
    const DistributedTensor& source = slots_[0].source;
    DT_ASSIGN_OR_RETURN(const SpecPtr to,
                        context_.Intern(path_.back(), row_.shape, source.dtype()));
    DT_ASSIGN_OR_RETURN(const auto plan, context_.Plan(&source.spec(), to));
    if (leads()) shared_.bound = plan->plan().Bound().total;
    if (!plan->plan().is_view()) {
      for (const RankRedistributionPlan::Round& round : plan->rounds()) {
        for (const ReceiveBox& box : round.receives) {
          shared_.touched += box.elements() * (box.peers.size() + 1) * sizeof(T);
        }
      }
    }
    context_.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Call());
    for (const auto& [key, traffic] : context_.communicator().traffic()) {
      shared_.moved += traffic.bytes;
    }
    return absl::OkStatus();
  }

  absl::Status Call() {
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % slots_.size();
    slot.result = {};  // the allocator gives its memory to the new one
    DistributedTensor tensor = slot.source;
    for (const Layout& layout : path_) {
      DT_ASSIGN_OR_RETURN(tensor, tensor.Redistribute(layout));
    }
    slot.result = std::move(tensor);
    return absl::OkStatus();
  }

  // Touches all memory, and finds how many calls make a round that a clock can time.
  absl::Status WarmUp() {
    for (size_t i = 0; i < slots_.size() + 3; ++i) DT_RETURN_IF_ERROR(Call());
    double call = 1;
    for (int i = 0; i < 5; ++i) {
      DT_RETURN_IF_ERROR(Barrier());
      shared_.round.Time(context_.rank(), [&] { Call().IgnoreError(); });
      DT_RETURN_IF_ERROR(Barrier());
      call = std::min(call, std::max(shared_.round.Seconds(), 1e-7));
    }
    DT_RETURN_IF_ERROR(Barrier());
    if (leads()) {
      shared_.calls = static_cast<int>(std::clamp(100e-6 / call, 1.0, 1000.0));
      const double copy = cached() ? 0 : 5e-3 * row_.ranks();
      shared_.rounds =
          static_cast<int>(std::clamp(shared_.seconds / (call * shared_.calls + copy), 7.0, 200.0));
    }
    return Barrier();
  }

  absl::Status MeasureRound() {
    DT_RETURN_IF_ERROR(Barrier());
    absl::Status status;
    shared_.round.Time(context_.rank(), [&] {
      for (int i = 0; i < shared_.calls; ++i) status.Update(Call());
    });
    DT_RETURN_IF_ERROR(status);
    DT_RETURN_IF_ERROR(Barrier());
    if (leads()) shared_.times.push_back(shared_.round.Seconds() / shared_.calls);
    if (cached()) return absl::OkStatus();
    DT_RETURN_IF_ERROR(Barrier());
    shared_.round.Time(context_.rank(),
                       [&] { BestCopy(copy_to_.get(), copy_from_.get(), kCopyBytes); });
    DT_RETURN_IF_ERROR(Barrier());
    if (leads()) shared_.copy_times.push_back(shared_.round.Seconds());
    return absl::OkStatus();
  }

  absl::Status Barrier() { return context_.communicator().Barrier("round"); }

  absl::Status CheckResults() {
    DT_ASSIGN_OR_RETURN(const DistributedTensor expected,
                        Distribute<T>(context_, path_.back(), row_.shape, expected_));
    DT_ASSIGN_OR_RETURN(const std::vector<T> want, ToHost<T>(expected.local()));
    for (const Slot& slot : slots_) {
      if (!slot.result.defined()) continue;
      DT_ASSIGN_OR_RETURN(const std::vector<T> got, ToHost<T>(slot.result.local()));
      if (got.size() == want.size() &&
          std::memcmp(got.data(), want.data(), want.size() * sizeof(T)) == 0) {
        continue;
      }
      return absl::InternalError(absl::StrCat("wrong result: ", row_.Name()));
    }
    return absl::OkStatus();
  }

  Context& context_;
  Shared& shared_;
  const Row& row_;
  const std::vector<T>&source_, &expected_;
  DeviceMesh mesh_;
  std::vector<Layout> path_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  Buffer copy_from_, copy_to_;
};

template <typename T>
absl::Status MeasureAs(Shared& shared) {
  float total = 1;  // of the terms' weights
  for (size_t axis = 0; axis < shared.row.from.size(); ++axis) {
    const int n = shared.row.mesh[axis];
    if (shared.row.from[axis].is_partial()) total *= n * (n + 1) / 2.0f;
  }
  const int64_t n = NumElements(shared.row.shape);
  const std::vector<T> source = Values<T>(n, 1), expected = Values<T>(n, total);
  return RunRanks(
      shared.row.ranks(),
      [&](Context& context) { return Runner<T>(context, shared, source, expected).Run(); },
      {.pin_threads = true});
}

void Report(benchmark::State& state, const Shared& shared) {
  const double seconds = Median(shared.times);
  state.SetIterationTime(seconds);
  state.counters["moved"] = static_cast<double>(shared.moved);
  state.counters["bound"] = static_cast<double>(shared.bound);
  if (shared.bound > 0) {
    state.counters["ratio"] = static_cast<double>(shared.moved) / static_cast<double>(shared.bound);
  }
  state.counters["us"] = seconds * 1e6;
  if (shared.touched == 0) return state.SetLabel("view");
  state.counters["GB_per_s"] = static_cast<double>(shared.touched) / seconds / 1e9;
  if (shared.copy_times.empty()) return state.SetLabel("cached");
  const double rate = 2.0 * kCopyBytes * shared.row.ranks() / Median(shared.copy_times);
  const double limit = static_cast<double>(shared.touched) / rate;
  state.counters["limit_us"] = limit * 1e6;
  state.counters["share"] = limit / seconds;
}

bool all_right = true;

void Measure(benchmark::State& state, const Row& row, const std::vector<Placements>& path,
             double seconds) {
  Shared shared(row, seconds);
  shared.path = path;
  for (auto _ : state) {
    const absl::Status status =
        row.dtype == DType::kF32 ? MeasureAs<float>(shared) : MeasureAs<BFloat16>(shared);
    if (!status.ok()) {
      all_right = false;
      return state.SkipWithError(std::string(status.message()).c_str());
    }
    Report(state, shared);
  }
}

struct Options {
  bool wide = false, greedy = false;
  double seconds = 0.2;
};

// Takes our own flags out of the arguments.
Options TakeOptions(int& argc, char** argv) {
  Options options;
  char** const end = std::remove_if(argv + 1, argv + argc, [&](absl::string_view arg) {
    if (arg == "--wide") return options.wide = true;
    if (arg == "--greedy") return options.greedy = true;
    return absl::ConsumePrefix(&arg, "--seconds=") && absl::SimpleAtod(arg, &options.seconds);
  });
  argc = static_cast<int>(end - argv);
  return options;
}

void Register(const std::string& name, const Row& row, std::vector<Placements> path,
              double seconds) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) { Measure(state, row, path, seconds); })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace dtensor::bench

int main(int argc, char** argv) {
  using namespace dtensor::bench;
  const Options options = TakeOptions(argc, argv);
  for (const Row& row : Grid(options.wide)) {
    Register(row.Name(), row, {row.to}, options.seconds);
    if (options.greedy && row.mesh.size() > 1) {
      Register("greedy/" + row.Name(), row, GreedySteps(row.from, row.to), options.seconds);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return all_right ? 0 : 1;
}
