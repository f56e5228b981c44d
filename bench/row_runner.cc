#include "dtensor/bench/row_runner.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/bench/rank_time.h"
#include "dtensor/bench/stream_limit.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace dtensor::bench {
namespace {

constexpr int64_t kCachedBelow = 1 << 20;          // bytes of the global tensor
constexpr int64_t kRotation = int64_t{128} << 20;  // four times the last cache of these machines
constexpr int kTermBase = 8;                       // values 0..7: sums are exact in bf16 too

// The global tensor, coded by index so that a misplaced element shows.
template <typename T>
std::vector<std::byte> Values(int64_t n, float scale) {
  std::vector<std::byte> bytes(n * sizeof(T));
  T* const values = reinterpret_cast<T*>(bytes.data());
  for (int64_t i = 0; i < n; ++i) {
    values[i] = T(static_cast<float>(((i * 2654435761u) >> 16) % kTermBase) * scale);
  }
  return bytes;
}

std::vector<std::byte> ValuesOf(const Row& row, float scale) {
  const int64_t n = NumElements(row.shape);
  return row.dtype == DType::kF32 ? Values<float>(n, scale) : Values<BFloat16>(n, scale);
}

float TotalWeight(const Row& row) {
  float total = 1;  // of the terms' weights
  for (size_t axis = 0; axis < row.from.size(); ++axis) {
    const int n = row.mesh[axis];
    if (row.from[axis].is_partial()) total *= n * (n + 1) / 2.0f;
  }
  return total;
}

template <typename T>
class Runner final : public RowRunner {
 public:
  Runner(Context& context, const RowTask& task) : context_(context), task_(task), row_(task.row) {
    cached_ = row_.bytes() < kCachedBelow;
  }

  absl::Status Prepare() override {
    const NoGrad no_grad(context_);
    std::vector<DeviceMesh::Axis> axes;
    for (const int size : row_.mesh) axes.push_back({absl::StrCat("a", axes.size()), size});
    DT_ASSIGN_OR_RETURN(mesh_, DeviceMesh::Create(axes));
    for (const Placements& step : task_.path) {
      DT_ASSIGN_OR_RETURN(Layout layout, LayoutOf(step));
      path_.push_back(std::move(layout));
    }
    DT_RETURN_IF_ERROR(MakeSlots());
    if (!cached_) DT_RETURN_IF_ERROR(PrepareCopy());
    DT_RETURN_IF_ERROR(CountBytes());
    return WarmUp();
  }

  absl::StatusOr<double> TimeRound() override {
    const NoGrad no_grad(context_);
    DT_ASSIGN_OR_RETURN(const double seconds, TimeOnAllRanks(context_, [&]() -> absl::Status {
                          for (int i = 0; i < calls_; ++i) DT_RETURN_IF_ERROR(Call());
                          return absl::OkStatus();
                        }));
    return seconds / calls_;
  }

  absl::StatusOr<double> TimeCopy() override {
    return TimeOnAllRanks(context_, [&] {
      BestCopy(copy_to_.get(), copy_from_.get(), kCopyBytes);
      return absl::OkStatus();
    });
  }

  absl::Status CheckResults() override {
    DT_ASSIGN_OR_RETURN(const DistributedTensor expected,
                        Distribute<T>(context_, path_.back(), row_.shape, Global(task_.expected)));
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

 private:
  struct Slot {  // a source and the result of its last call: both memories rotate
    DistributedTensor source, result;
  };
  struct Unmap {
    Device* device;
    void operator()(std::byte* data) const { device->Free(data, kCopyBytes); }
  };
  using Buffer = std::unique_ptr<std::byte, Unmap>;

  static absl::Span<const T> Global(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

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

  absl::Status MakeSlots() {
    DT_ASSIGN_OR_RETURN(const DistributedTensor first, MakeSource());
    const int64_t footprint = BytesOf(first.layout()) + BytesOf(path_.back());
    slots_.resize(cached_ ? 1 : std::max<int64_t>(2, (kRotation + footprint - 1) / footprint));
    slots_[0].source = first;
    for (size_t i = 1; i < slots_.size(); ++i) {
      DT_ASSIGN_OR_RETURN(slots_[i].source, MakeSource());
    }
    // A tensor remembers where it went, unless it is a parameter.
    for (Slot& slot : slots_) slot.source.set_pinned(true);
    return absl::OkStatus();
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
                        Distribute<T>(context_, mesh_, whole, row_.shape, Global(task_.source)));
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

  // What the direct plan reads and writes: each box's terms, and its result.
  absl::Status CountBytes() {
    const DistributedTensor& source = slots_[0].source;
    DT_ASSIGN_OR_RETURN(const SpecPtr to,
                        context_.Intern(path_.back(), row_.shape, source.dtype()));
    DT_ASSIGN_OR_RETURN(const auto plan, context_.Plan(&source.spec(), to));
    bound_ = plan->plan().Bound().total;
    struct Mine {
      int64_t moved = 0, touched = 0;
    } mine;
    if (!plan->plan().is_view()) {
      for (const RankRedistributionPlan::Round& round : plan->rounds()) {
        for (const ReceiveBox& box : round.receives) {
          mine.touched += box.elements() * (box.peers.size() + 1) * sizeof(T);
        }
      }
    }
    context_.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(Call());
    for (const auto& [key, traffic] : context_.communicator().traffic()) {
      mine.moved += traffic.bytes;
    }
    DT_ASSIGN_OR_RETURN(const std::vector<Mine> all, GatherValues(context_, mine));
    for (const Mine& of_rank : all) {
      moved_ += of_rank.moved;
      touched_ += of_rank.touched;
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

  absl::Status WarmUp() {
    for (size_t i = 0; i < slots_.size() + 3; ++i) DT_RETURN_IF_ERROR(Call());
    for (int i = 0; i < 5; ++i) {
      DT_ASSIGN_OR_RETURN(const double seconds, TimeRound());
      call_seconds_ = std::min(call_seconds_, std::max(seconds, 1e-7));
    }
    calls_ = static_cast<int>(std::clamp(100e-6 / call_seconds_, 1.0, 1000.0));
    return absl::OkStatus();
  }

  Context& context_;
  const RowTask& task_;
  const Row& row_;
  DeviceMesh mesh_;
  std::vector<Layout> path_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  Buffer copy_from_, copy_to_;
};

}  // namespace

RowTask::RowTask(const Row& row_in, std::vector<Placements> path_in)
    : row(row_in),
      path(std::move(path_in)),
      source(ValuesOf(row, 1)),
      expected(ValuesOf(row, TotalWeight(row))) {}

int RowRunner::RoundsFor(double seconds) const {
  return static_cast<int>(std::clamp(seconds / (call_seconds_ * calls_), 7.0, 200.0));
}

std::unique_ptr<RowRunner> MakeRowRunner(Context& context, const RowTask& task) {
  if (task.row.dtype == DType::kF32) return std::make_unique<Runner<float>>(context, task);
  return std::make_unique<Runner<BFloat16>>(context, task);
}

}  // namespace dtensor::bench
