#include "dtensor/tools/cli/indexed_data.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"

namespace dtensor::cli {
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

// The library multiplies a sum by 1/n in its accumulator, which may be an ulp from the quotient.
template <typename T>
T Scaled(int64_t sum, double scale) {
  using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return T(static_cast<Accumulator>(sum) * static_cast<Accumulator>(scale));
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
    : plan_(plan),
      code_(plan.dtype(), plan.op()),
      one_mesh_(plan.from().mesh() == plan.to().mesh()) {
  const Layout &from = plan.from(), &to = plan.to();
  for (int axis : from.partial_axes()) {
    const bool stays = one_mesh_ && to.use(axis) == Layout::AxisUse::kPartial;
    (stays ? kept_ : reduced_).push_back(axis);
    if (!stays) terms_ *= from.mesh().axis_size(axis);
  }
  for (int axis : to.partial_axes()) {
    if (to.partial_op(axis) == ReduceOp::kAvg) continue;  // its terms are the value itself
    if (!absl::c_linear_search(kept_, axis)) created_.push_back(axis);
  }
}

// Whether the rank holds an element whose term the new partial axes spread: on an axis that sharded
// the source its holder does, on any other coordinate 0. The others hold the identity.
bool IndexedData::Keeps(int64_t number, absl::Span<const int> coordinate) const {
  const Layout& from = plan_.from();
  for (int axis : created_) {
    if (!one_mesh_ || from.use(axis) == Layout::AxisUse::kReplicate) {
      if (coordinate[axis] != 0) return false;
      continue;
    }
    int64_t rest = number;
    for (int d = from.ndim() - 1; d >= 0; rest /= plan_.shape()[d], --d) {
      const int64_t n = plan_.shape()[d];
      if (!absl::c_linear_search(AxesOf(from.dim(d)), axis)) continue;
      if (!DimRegionOverAxes(from, d, n, coordinate, {axis}).Contains(rest % n)) return false;
    }
  }
  return true;
}

template <typename T>
T IndexedData::Expected(int64_t number, int64_t problem, absl::Span<const int> coordinate) const {
  if (!created_.empty() && !Keeps(number, coordinate)) {
    return Identity<T>(plan_.to().term_op());
  }
  const int64_t value = code_.Value(number, problem);
  if constexpr (std::is_floating_point_v<T> || !std::is_arithmetic_v<T>) {
    const bool averages = plan_.op() == ReduceOp::kAvg && terms_ > 1;
    if (plan_.scale() != 1) return Scaled<T>(averages ? value * terms_ : value, plan_.scale());
  }
  return FromInt<T>(value);
}

void IndexedData::FillSource(int rank, const Tensor& source) const {
  const DeviceMesh& mesh = plan_.from().mesh();
  if (!mesh.Contains(rank)) return;
  const auto coordinate = mesh.Coordinate(rank);
  const Region region = Regions(plan_.from(), plan_.shape(), coordinate);
  const TermPlace place = {Flatten(mesh, kept_, coordinate),
                           static_cast<int>(Flatten(mesh, reduced_, coordinate)), terms_};
  VisitDType(plan_.dtype(), [&](auto element) {
    using T = decltype(element);
    const auto write = [&, data = source.data<T>()](int64_t number, int64_t at) {
      data[at] = FromInt<T>(code_.Term(number, place));
    };
    RegionWalk(region, plan_.shape(), source.strides(), write);
  });
}

Mismatches IndexedData::Check(int rank, const Tensor& result) const {
  const DeviceMesh& mesh = plan_.to().mesh();
  Mismatches wrong;
  if (!mesh.Contains(rank)) return wrong;
  const auto coordinate = mesh.Coordinate(rank);
  const Region region = Regions(plan_.to(), plan_.shape(), coordinate);
  const int64_t problem = Flatten(mesh, kept_, coordinate);
  VisitDType(plan_.dtype(), [&](auto element) {
    using T = decltype(element);
    const auto compare = [&, data = result.data<T>()](int64_t number, int64_t at) {
      const T want = Expected<T>(number, problem, coordinate);
      if (std::memcmp(&data[at], &want, sizeof(T)) == 0) return;
      if (wrong.count++ > 0) return;
      wrong.first = absl::StrCat("element ", number, " is ", Show(data[at]), ", not ", Show(want));
    };
    RegionWalk(region, plan_.shape(), result.strides(), compare);
  });
  return wrong;
}

}  // namespace dtensor::cli
