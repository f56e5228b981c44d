#include "dtensor/redistribution_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/redistribution_steps.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/transition.h"

namespace dtensor {
namespace {

std::string Describe(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                     DType dtype) {
  return absl::StrCat(from.ToString(), " -> ", to.ToString(), ", ", DimsToString(shape), " ",
                      ToString(dtype));
}

// Partial terms of `dtype` must combine by `layout`'s op without loss.
absl::Status CheckOp(const Layout& layout, DType dtype) {
  if (!layout.is_partial()) return absl::OkStatus();
  const ReduceOp op = layout.partial_op();
  if (op == ReduceOp::kAvg && !IsFloat(dtype)) {
    return InvalidArgument(
        {"an average of ", ToString(dtype), " is not one; use P(sum), or a float type"});
  }
  if (dtype == DType::kBool && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) {
    return InvalidArgument(
        {"bool has no ", ToString(op), "; use P(max) for \"or\", P(min) for \"and\""});
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const Layout& from, const Layout& to, absl::Span<const int64_t> shape) {
  if (from.mesh() != to.mesh()) {
    return InvalidArgument({"the layouts are on unlike meshes, ", from.mesh().ToString(), " and ",
                            to.mesh().ToString(), "; give both the same mesh"});
  }
  const size_t rank = shape.size();
  if (from.rank() != rank || to.rank() != rank) {
    return InvalidArgument({"the layouts have ", absl::StrCat(from.rank()), " and ",
                            absl::StrCat(to.rank()), " dimensions, the shape has ",
                            absl::StrCat(rank)});
  }
  if (std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n < 0; })) {
    return InvalidArgument({"a size is negative"});
  }
  return absl::OkStatus();
}

// An axis that stays partial keeps its terms, so they must keep their op.
absl::Status CheckOpsAgree(const Layout& from, const Layout& to) {
  if (from.partial_op() == to.partial_op()) return absl::OkStatus();
  for (int axis : from.partial_axes()) {
    if (to.use(axis) != Layout::AxisUse::kPartial) continue;
    return InvalidArgument({"on axis \"", from.mesh().axis_name(axis), "\" P(",
                            ToString(from.partial_op()), ") cannot become P(",
                            ToString(to.partial_op()),
                            "); redistribute to Replicate or Shard first"});
  }
  return absl::OkStatus();
}

absl::Status CheckRequest(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                          DType dtype) {
  DT_RETURN_IF_ERROR(CheckShape(from, to, shape));
  DT_RETURN_IF_ERROR(CheckOp(from, dtype));
  DT_RETURN_IF_ERROR(CheckOp(to, dtype));
  return CheckOpsAgree(from, to);
}

// FNV-1a over bytes: the same in every process, which absl::Hash is not.
class Digest {
 public:
  void Add(absl::string_view bytes) {
    for (const char c : bytes) value_ = (value_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    Add(static_cast<int64_t>(bytes.size()));
  }
  void Add(int64_t value) {
    value_ = (value_ ^ static_cast<uint64_t>(value)) * 0x100000001b3;
    value_ ^= value_ >> 29;  // high bytes reach the low ones
  }
  void Add(const Layout& layout) {
    Add(layout.rank());
    for (const DimLayout& dim : layout.dims()) {
      Add(static_cast<int64_t>(dim.size()));
      for (const Factor& factor : dim) {
        Add(factor.size);
        Add(static_cast<int64_t>(factor.splits.size()));
        for (const Split& split : factor.splits) Add(2 * split.axis + split.zigzag);
      }
    }
    Add(static_cast<int64_t>(layout.partial_op()));
    Add(static_cast<int64_t>(layout.partial_axes().size()));
    for (int axis : layout.partial_axes()) Add(axis);
  }
  void Add(const DeviceMesh& mesh) {
    Add(mesh.rank_of_axes());
    for (const DeviceMesh::Axis& axis : mesh.axes()) {
      Add(axis.name);
      Add(axis.size);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

uint64_t DigestOf(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                  DType dtype) {
  Digest digest;
  digest.Add(from.mesh());
  digest.Add(from);
  digest.Add(to);
  for (int64_t n : shape) digest.Add(n);
  digest.Add(static_cast<int64_t>(dtype));
  return digest.value();
}

}  // namespace

absl::StatusOr<RedistributionPlan> RedistributionPlan::Create(const Layout& from, const Layout& to,
                                                              absl::Span<const int64_t> shape,
                                                              DType dtype) {
  if (absl::Status status = CheckRequest(from, to, shape, dtype); !status.ok()) {
    return InvalidArgument(
        {"redistribute ", Describe(from, to, shape, dtype), ": ", status.message()});
  }
  RedistributionPlan plan;
  plan.from_ = from;
  plan.to_ = to;
  plan.shape_.assign(shape.begin(), shape.end());
  plan.dtype_ = dtype;
  plan.digest_ = DigestOf(from, to, shape, dtype);
  plan.transition_ = std::make_shared<const Transition>(from, to, shape);
  const Transition& t = *plan.transition_;
  plan.steps_ = StepsOf(t);
  plan.is_view_ = plan.steps_.empty() && t.IsView();
  plan.fills_identity_ = !t.created().empty();
  if (!t.reduced().empty()) {
    plan.op_ = from.partial_op();
    if (plan.op_ == ReduceOp::kAvg) plan.scale_ = 1.0 / static_cast<double>(t.terms());
  }
  return plan;
}

std::vector<Transfer> RedistributionPlan::Receives(int s, int rank) const {
  const bool gathers = s < static_cast<int>(steps_.size()) && !steps_[s].from_source;
  return gathers ? GatherBoxes(*transition_, rank) : ExchangeBoxes(*transition_, rank);
}

int64_t RedistributionPlan::BytesReceived(int s, int rank) const {
  if (s >= static_cast<int>(steps_.size())) return 0;
  const Transition& t = *transition_;
  const absl::InlinedVector<int, 4> coordinate = from_.mesh().Coordinate(rank);
  int64_t needed = 1, held = 1;
  for (int d = 0; d < static_cast<int>(t.shape().size()); ++d) {
    const bool gathers = !steps_[s].from_source;
    const IndexSet need = steps_[s].pivot ? t.Owned(d, coordinate) : t.Needed(d, coordinate);
    needed *= need.size();
    held *= need.Intersect(gathers ? t.Owned(d, coordinate) : t.Held(d, coordinate)).size();
  }
  const int64_t terms = steps_[s].reduces ? t.terms() : 1;
  return (needed * terms - held) * SizeOf(dtype_);
}

int64_t RedistributionPlan::BytesReceived(int rank) const {
  int64_t bytes = 0;
  for (size_t s = 0; s < steps_.size(); ++s) bytes += BytesReceived(static_cast<int>(s), rank);
  return bytes;
}

int64_t RedistributionPlan::TotalBytes() const {
  int64_t bytes = 0;
  for (int rank = 0; rank < from_.mesh().size(); ++rank) bytes += BytesReceived(rank);
  return bytes;
}

// For each element and each coordinate on the axes that stay partial. To reduce p terms for w ranks
// in need takes (p - 1) + (w - 1) messages, and one more where none of the w holds a term. With one
// term, all in need but those that hold it receive it: `helpers` of them where one does, else none.
int64_t RedistributionPlan::BoundTotalBytes() const {
  const Transition& t = *transition_;
  int64_t messages = t.elements() * t.needers();
  const int64_t in_place = t.ElementsInPlace();
  if (t.reduced().empty()) {
    messages -= t.helper_count() * in_place;
  } else {
    messages += t.elements() * (t.terms() - 1) - in_place;
  }
  int64_t problems = 1;
  for (int axis : from_.partial_axes()) {
    if (to_.use(axis) == Layout::AxisUse::kPartial) problems *= from_.mesh().axis_size(axis);
  }
  return messages * problems * SizeOf(dtype_);
}

std::string RedistributionPlan::ToString() const {
  const auto format = [this](std::string* out, const RedistributionStep& step) {
    int64_t busiest = 0;
    const int s = static_cast<int>(&step - steps_.data());
    for (int rank = 0; rank < from_.mesh().size(); ++rank)
      busiest = std::max(busiest, BytesReceived(s, rank));
    const auto name = [this](std::string* out, int axis) {
      out->append(from_.mesh().axis_name(axis));
    };
    absl::StrAppend(out, dtensor::ToString(step.kind), "(", absl::StrJoin(step.axes, ",", name),
                    ") ", busiest, " B");
  };
  const std::string local = fills_identity_ ? "fill" : is_view_ ? "view" : "copy";
  return absl::StrCat(Describe(from_, to_, shape_, dtype_), ": ",
                      steps_.empty() ? local : absl::StrJoin(steps_, ", ", format));
}

}  // namespace dtensor
