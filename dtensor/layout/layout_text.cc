// The text form of a layout: [dp,tp x 16] [] P(sum: cp).
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/layout_factors.h"
#include "dtensor/layout/text_scanner.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

std::string SplitsToString(const DeviceMesh& mesh, const LayoutFactor& factor) {
  return absl::StrJoin(factor.splits, ",", [&](std::string* out, const AxisSplit& split) {
    absl::StrAppend(out, mesh.axis_name(split.axis), split.zigzag ? ":zigzag" : "");
  });
}

std::string FactorToString(const DeviceMesh& mesh, const LayoutFactor& factor) {
  const std::string splits = SplitsToString(mesh, factor);
  if (factor.size == 0) return splits.empty() ? "_" : splits;
  return splits.empty() ? absl::StrCat(factor.size) : absl::StrCat(factor.size, "(", splits, ")");
}

// Parses one layout. Each Read function moves the scanner past what it read, or returns an error.
class LayoutReader {
 public:
  LayoutReader(const DeviceMesh& mesh, absl::string_view text)
      : mesh_(mesh), text_(text), in_(text) {}

  absl::StatusOr<Layout> Read() {
    if (!in_.Eat("scalar")) DT_RETURN_IF_ERROR(ReadDims());
    while (in_.Eat("P(")) DT_RETURN_IF_ERROR(ReadPartial());
    if (!in_.AtEnd()) return Expected("the end");
    return Layout::Create(mesh_, dims_, partial_axes_, op_.value_or(ReduceOp::kSum), averaged_);
  }

 private:
  absl::Status Expected(absl::string_view what) {
    return InvalidArgument({"cannot read the layout \"", text_, "\": expected ", what, " at \"",
                            in_.rest(), "\"; write one bracket for each dimension, as in ",
                            "[dp,tp x 16] [] P(sum: cp)", IfPlacements()});
  }

  // An addition to the error if the text looks like placements.
  absl::string_view IfPlacements() const {
    for (const char* word : {"S(", "Shard(", "Replicate("}) {
      if (!absl::StrContains(text_, word)) continue;
      return "; placements are written one for each mesh axis, without names: S(0),R";
    }
    return "";
  }

  // Reads one name, which may stand for a group of axes.
  absl::StatusOr<AxisList> ReadAxes() {
    const absl::string_view name = in_.EatName();
    if (name.empty()) return Expected("the name of a mesh axis");
    absl::StatusOr<AxisList> axes = mesh_.Find(name);
    if (axes.ok()) return axes;
    return InvalidArgument({"layout \"", text_, "\": ", axes.status().message(), IfPlacements()});
  }

  absl::Status ReadSplits(LayoutFactor& factor) {
    do {
      DT_ASSIGN_OR_RETURN(const AxisList axes, ReadAxes());
      const bool zigzag = in_.Eat(":zigzag");
      if (zigzag && axes.size() > 1) return Expected("one axis before \":zigzag\", not a group,");
      for (int axis : axes) factor.splits.push_back({axis, zigzag});
    } while (in_.Eat(","));
    return absl::OkStatus();
  }

  absl::Status ReadInnerFactor(LayoutFactor& factor) {
    if (!in_.EatInt(&factor.size)) return Expected("a size, a whole number,");
    if (!in_.Eat("(")) return absl::OkStatus();
    DT_RETURN_IF_ERROR(ReadSplits(factor));
    return in_.Eat(")") ? absl::OkStatus() : Expected("')'");
  }

  absl::Status ReadDim(DimLayout& dim) {
    if (in_.Eat("]")) return absl::OkStatus();
    LayoutFactor& outermost = dim.emplace_back();
    if (!EatWhole()) DT_RETURN_IF_ERROR(ReadSplits(outermost));
    while (in_.Eat("x")) DT_RETURN_IF_ERROR(ReadInnerFactor(dim.emplace_back()));
    return in_.Eat("]") ? absl::OkStatus() : Expected("']'");
  }

  // Reads "_", unless it is the first character of a name.
  bool EatWhole() {
    TextScanner ahead = in_;
    if (ahead.EatName() != "_") return false;
    in_ = ahead;
    return true;
  }

  absl::Status ReadDims() {
    while (in_.Eat("[")) DT_RETURN_IF_ERROR(ReadDim(dims_.emplace_back()));
    return absl::OkStatus();
  }

  absl::Status ReadPartial() {
    DT_ASSIGN_OR_RETURN(const ReduceOp op, ParseReduceOp(in_.EatName()));
    if (op != ReduceOp::kAvg) {
      if (op_.value_or(op) != op) {
        return InvalidArgument({"layout \"", text_, "\": the partial axes of a tensor share one ",
                                "op, or sum and average; reduce one of them first"});
      }
      op_ = op;
    }
    if (!in_.Eat(":")) return Expected("':' and axes");
    do {
      DT_ASSIGN_OR_RETURN(const AxisList axes, ReadAxes());
      partial_axes_.insert(partial_axes_.end(), axes.begin(), axes.end());
      if (op == ReduceOp::kAvg) averaged_.insert(averaged_.end(), axes.begin(), axes.end());
    } while (in_.Eat(","));
    return in_.Eat(")") ? absl::OkStatus() : Expected("')'");
  }

  const DeviceMesh& mesh_;
  const absl::string_view text_;
  TextScanner in_;
  absl::InlinedVector<DimLayout, 4> dims_;
  AxisList partial_axes_, averaged_;
  std::optional<ReduceOp> op_;  // of those that do not average
};

}  // namespace

std::string DimToString(const DeviceMesh& mesh, const DimLayout& dim) {
  return absl::StrCat("[",
                      absl::StrJoin(dim, " x ",
                                    [&](std::string* out, const LayoutFactor& factor) {
                                      out->append(FactorToString(mesh, factor));
                                    }),
                      "]");
}

std::string Layout::ToString() const {
  std::vector<std::string> parts;
  for (const DimLayout& dim : dims_) parts.push_back(DimToString(mesh_, dim));
  for (const ReduceOp op : {term_op(), ReduceOp::kAvg}) {
    AxisList axes;
    for (int axis : partial_axes_) {
      if (partial_op(axis) == op) axes.push_back(axis);
    }
    if (axes.empty()) continue;
    parts.push_back(absl::StrCat("P(", dtensor::ToString(op), ": ", mesh_.AxisNames(axes), ")"));
  }
  return parts.empty() ? "scalar" : absl::StrJoin(parts, " ");
}

absl::StatusOr<Layout> Layout::Parse(const DeviceMesh& mesh, absl::string_view text) {
  return LayoutReader(mesh, text).Read();
}

}  // namespace dtensor
