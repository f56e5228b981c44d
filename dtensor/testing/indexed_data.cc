#include "dtensor/testing/indexed_data.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"

namespace dtensor {
namespace {

// Scatters the bits of two numbers (the finalizer of splitmix64).
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a + b * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Values lie in [-2^bits, 2^bits). A term has at most two bits more, which the type must hold, and
// the sum of 64 values six more, which its accumulator must hold.
int Bits(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 6;  // of 8
    case DType::kF16:
      return 8;  // of 11
    case DType::kF32:
      return 16;  // of 24
    default:
      return 24;  // of 31 and more
  }
}

// The one with fewer values.
DType Narrower(DType a, DType b) { return Bits(b) < Bits(a) ? b : a; }

template <typename T>
T FromInt(int64_t value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

// What combines with any other term without changing it.
template <typename T>
T Identity(ReduceOp op) {
  using Limits = std::numeric_limits<std::conditional_t<std::is_arithmetic_v<T>, T, float>>;
  if (op != ReduceOp::kMax && op != ReduceOp::kMin) return FromInt<T>(op == ReduceOp::kProduct);
  const bool high = op == ReduceOp::kMin;
  if (Limits::has_infinity) return T(high ? Limits::infinity() : -Limits::infinity());
  return T(high ? Limits::max() : Limits::lowest());
}

// The library multiplies a sum in its accumulator, which may be an ulp from the quotient.
template <typename T>
T Scaled(int64_t sum, double scale, DType dtype) {
  if (dtype == DType::kF64) return kernels::Cast<T>(static_cast<double>(sum) * scale);
  return kernels::Cast<T>(static_cast<float>(sum) * static_cast<float>(scale));
}

template <typename T>
std::string Show(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return absl::StrCat(value);
  } else {
    return absl::StrCat(static_cast<float>(value));
  }
}

// Calls fn(row-major number, place in the local tensor) for all elements of a region.
template <typename Fn>
class RegionWalk {
 public:
  RegionWalk(const Region& region, absl::Span<const int64_t> shape, const Dims& local_strides,
             const Fn& fn)
      : region_(region), strides_(RowMajorStrides(shape)), local_strides_(local_strides), fn_(fn) {
    Dim(0, 0, 0);
  }

 private:
  void Dim(size_t d, int64_t number, int64_t place) {
    if (d == region_.size()) return fn_(number, place);
    for (const IndexRun& run : region_[d].runs()) {
      for (int64_t j = 0; j < run.count; ++j) {
        const int64_t begin = run.begin + j * run.stride;
        for (int64_t i = begin; i < begin + run.length; ++i, place += local_strides_[d]) {
          Dim(d + 1, number + i * strides_[d], place);
        }
      }
    }
  }

  const Region& region_;
  const Dims strides_;
  const Dims& local_strides_;
  const Fn& fn_;
};

// Marks the elements of a local tensor of row-major `strides` that a box writes.
void Mark(const ReceiveBox& box, const Dims& strides, size_t d, int64_t offset,
          std::vector<bool>& marks) {
  if (d == strides.size()) {
    marks[offset] = true;
    return;
  }
  const MatchedRun& piece = box.dims[d];
  for (int64_t i = 0; i < piece.size(); ++i) {
    const int64_t at = piece.dst + i / piece.length * piece.dst_stride + i % piece.length;
    Mark(box, strides, d + 1, offset + at * strides[d], marks);
  }
}

// Which elements of a rank's result, row-major, the plan writes. The others hold the identity.
std::vector<bool> Written(const RedistributionPlan& plan, int rank) {
  const Dims shape = plan.to().LocalShape(plan.shape(), rank), strides = RowMajorStrides(shape);
  std::vector<bool> written(NumElements(shape));
  const int rounds = std::max<int>(1, static_cast<int>(plan.rounds().size()));
  for (int s = 0; s < rounds; ++s) {
    for (const ReceiveBox& box : plan.Receives(s, rank)) Mark(box, strides, 0, 0, written);
  }
  return written;
}

// Whether an axis that is partial in the source stays so.
bool Stays(const RedistributionPlan& plan, int axis) {
  return plan.from().mesh() == plan.to().mesh() && plan.to().use(axis) == Layout::AxisUse::kPartial;
}

// How terms that are reduced combine; as an average if any axis does.
ReduceOp OpOf(const RedistributionPlan& plan) {
  ReduceOp op = ReduceOp::kSum;
  for (int axis : plan.from().partial_axes()) {
    if (!Stays(plan, axis) && op != ReduceOp::kAvg) op = plan.from().partial_op(axis);
  }
  return op;
}

int64_t Flatten(const DeviceMesh& mesh, const AxisList& axes, absl::Span<const int> coordinate) {
  int64_t index = 0;
  for (int axis : axes) index = index * mesh.axis_size(axis) + coordinate[axis];
  return index;
}

}  // namespace

TermCode::TermCode(DType dtype, ReduceOp op)
    : is_product_(op == ReduceOp::kProduct),
      is_bool_(dtype == DType::kBool),
      op_(op),
      low_(is_bool_ ? 0 : -(int64_t{1} << Bits(dtype))),
      span_(is_bool_ ? 2 : -2 * low_) {}

int64_t TermCode::Value(int64_t number, int64_t problem) const {
  const int64_t value = low_ + static_cast<int64_t>(Mix(number, problem) % span_);
  return is_product_ && value == 0 ? 1 : value;  // a sign times 0 has a sign too
}

// A walk from 0 to `end` in place.count steps; where it is after `step` of them.
int64_t TermCode::Walk(int64_t number, const TermPlace& place, int step, int64_t end) const {
  if (step == 0) return 0;
  if (step == place.count) return end;
  return low_ + static_cast<int64_t>(Mix(number, (place.problem + 1) * 101 + step) % span_);
}

int64_t TermCode::Sign(int64_t number, const TermPlace& place, int step, int64_t value) const {
  return Walk(number, place, step, value) < 0 ? -1 : 1;
}

int64_t TermCode::Term(int64_t number, const TermPlace& place) const {
  const int64_t value = Value(number, place.problem);
  if (place.count == 1) return value;
  const int i = place.index;
  const auto step_to = [&](int64_t end) {
    return Walk(number, place, i + 1, end) - Walk(number, place, i, end);
  };
  const bool chosen = static_cast<int>(Mix(number, ~place.problem) % place.count) == i;
  const auto away = static_cast<int64_t>(Mix(number, (place.problem + 1) * 103 + i) % span_);
  switch (op_) {
    case ReduceOp::kAvg:
      return value + step_to(0);
    case ReduceOp::kMax:
      return chosen ? value : std::max(low_, value - away);
    case ReduceOp::kMin:
      return chosen ? value : std::min(low_ + span_ - 1, value + away);
    case ReduceOp::kProduct:
      return Sign(number, place, i, value) * Sign(number, place, i + 1, value) *
             (chosen ? std::abs(value) : 1);
    default:
      return step_to(value);
  }
}

IndexedData::IndexedData(const RedistributionPlan& plan)
    : plan_(plan), op_(OpOf(plan)), code_(Narrower(plan.dtype(), plan.result_dtype()), op_) {
  const Layout &from = plan.from(), &to = plan.to();
  double times = 1, over = 1;
  for (int axis : from.partial_axes()) {
    const int size = from.mesh().axis_size(axis);
    const bool stays = Stays(plan, axis), was = from.partial_op(axis) == ReduceOp::kAvg;
    const bool is = stays && to.partial_op(axis) == ReduceOp::kAvg;
    (stays ? kept_ : reduced_).push_back(axis);
    if (!stays) terms_ *= size;
    if (was && !is) over *= size;
    if (is && !was) times *= size;
  }
  scale_ = times / over;
  for (int axis : to.partial_axes()) {
    if (to.partial_op(axis) == ReduceOp::kAvg) continue;  // its terms are the value itself
    if (!absl::c_linear_search(kept_, axis)) created_.push_back(axis);
  }
}

absl::Status IndexedData::CheckKeepers() const {
  if (created_.empty()) return absl::OkStatus();
  const DeviceMesh& mesh = plan_.to().mesh();
  for (int i = 0; i < mesh.size(); ++i) {
    const std::vector<int> group = mesh.Group(mesh.RankOf(i), created_);
    if (group[0] != mesh.RankOf(i)) continue;  // each group once
    std::vector<uint8_t> keepers(NumElements(plan_.to().LocalShape(plan_.shape(), group[0])));
    for (int rank : group) {
      const std::vector<bool> written = Written(plan_, rank);
      for (size_t at = 0; at < keepers.size(); ++at) keepers[at] += written[at];
    }
    if (absl::c_all_of(keepers, [](uint8_t n) { return n == 1; })) continue;
    return absl::InternalError(
        absl::StrCat(plan_.ToString(), ": of rank ", group[0],
                     " and those that share its terms, not one alone has each element"));
  }
  return absl::OkStatus();
}

template <typename T>
T IndexedData::Expected(int64_t number, int64_t problem) const {
  const int64_t value = code_.Value(number, problem);
  const int64_t sum = op_ == ReduceOp::kAvg ? value * terms_ : value;  // of the terms, if they add
  if constexpr (kernels::kIsFloat<T>) {
    if (scale_ != 1) return Scaled<T>(sum, scale_, plan_.dtype());
  }
  return FromInt<T>(sum);
}

absl::StatusOr<Tensor> IndexedData::Source(int rank, Device& device) const {
  const Layout& from = plan_.from();
  if (!from.mesh().Contains(rank)) return Tensor::Empty(device, plan_.dtype(), {0});
  const Dims shape = from.LocalShape(plan_.shape(), rank);
  return VisitDType(plan_.dtype(), [&](auto element) -> absl::StatusOr<Tensor> {
    using T = decltype(element);
    const int64_t count = NumElements(shape);
    const auto values = std::make_unique<T[]>(count);
    FillSource(rank, RowMajorStrides(shape), values.get());
    return FromHost<T>(device, absl::MakeConstSpan(values.get(), count), shape);
  });
}

template <typename T>
void IndexedData::FillSource(int rank, const Dims& strides, T* values) const {
  const DeviceMesh& mesh = plan_.from().mesh();
  const auto coordinate = mesh.Coordinate(rank);
  const Region region = Regions(plan_.from(), plan_.shape(), coordinate);
  const TermPlace place = {Flatten(mesh, kept_, coordinate),
                           static_cast<int>(Flatten(mesh, reduced_, coordinate)), terms_};
  const auto write = [&](int64_t number, int64_t at) {
    values[at] = FromInt<T>(code_.Term(number, place));
  };
  RegionWalk(region, plan_.shape(), strides, write);
}

Mismatches IndexedData::Check(int rank, const Tensor& result) const {
  const DeviceMesh& mesh = plan_.to().mesh();
  Mismatches wrong;
  if (!mesh.Contains(rank)) return wrong;
  const auto coordinate = mesh.Coordinate(rank);
  const Region region = Regions(plan_.to(), plan_.shape(), coordinate);
  const int64_t problem = Flatten(mesh, kept_, coordinate);
  const std::vector<bool> written = created_.empty() ? std::vector<bool>() : Written(plan_, rank);
  VisitDType(plan_.result_dtype(), [&](auto element) {
    using T = decltype(element);
    const T identity = Identity<T>(plan_.to().term_op());
    const auto values = ToHost<T>(result);
    if (!values.ok()) {
      wrong = {1, values.status().ToString()};
      return;
    }
    int64_t next = 0;  // a walk is row-major
    const auto compare = [&](int64_t number, int64_t at) {
      const bool has = created_.empty() || written[next++];
      const T want = has ? Expected<T>(number, problem) : identity;
      const T value = (*values)[at];
      if (std::memcmp(&value, &want, sizeof(T)) == 0) return;
      if (wrong.count++ > 0) return;
      wrong.first = absl::StrCat("element ", number, " is ", Show(value), ", not ", Show(want));
    };
    RegionWalk(region, plan_.shape(), RowMajorStrides(result.shape()), compare);
  });
  return wrong;
}

absl::Status CheckResult(const RedistributionPlan& plan, int rank, const Tensor& result) {
  DT_RETURN_IF_ERROR(result.device().Synchronize());
  const auto wrong = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat(plan.ToString(), ": rank ", rank, ": ", what));
  };
  if (result.shape() != plan.to().LocalShape(plan.shape(), rank)) return wrong("local shape");
  if (result.dtype() != plan.result_dtype()) return wrong(ToString(result.dtype()));
  const Mismatches mismatches = IndexedData(plan).Check(rank, result);
  return mismatches.count == 0 ? absl::OkStatus() : wrong(mismatches.first);
}

}  // namespace dtensor
