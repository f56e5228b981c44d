#include "dtensor/testing/op_assignments.h"

#include <algorithm>
#include <utility>

namespace dtensor {
namespace {

class Enumeration {
 public:
  Enumeration(absl::string_view op, const BoundRule& rule, RuleLinearity linearity,
              const DeviceMesh& mesh)
      : op_(op),
        rule_(rule),
        linearity_(linearity),
        mesh_(mesh),
        letters_(rule.rule().letters().size()) {}

  std::vector<RuleAssignment> Run() {
    SplitBy(0);
    return std::move(found_);
  }

 private:
  void SplitBy(int axis) {
    if (axis == mesh_.num_axes()) return Keep();
    SplitBy(axis + 1);  // this axis splits nothing
    for (size_t l = 0; l < letters_.size(); ++l) {
      if (rule_.rule().letters()[l].whole || Ambiguous(static_cast<int>(l))) continue;
      const DimLayout before = letters_[l];
      for (const DimLayout& dim : Splits(before, axis, static_cast<int>(l))) {
        letters_[l] = dim;
        SplitBy(axis + 1);
        SplitWith(axis, static_cast<int>(l));
      }
      letters_[l] = before;
    }
  }

  // The axis, which splits `other`, splits what is streamed past it, or what it is sent to, too.
  void SplitWith(int axis, int other) {
    for (size_t l = 0; l < letters_.size(); ++l) {
      const RuleLetter& letter = rule_.rule().letters()[l];
      const bool is_sent = letter.reached && rule_.rule().letters()[other].rest;
      if (letter.past != other && !is_sent) continue;
      const DimLayout before = letters_[l];
      for (const DimLayout& dim : Splits(before, axis, static_cast<int>(l))) {
        letters_[l] = dim;
        SplitBy(axis + 1);
      }
      letters_[l] = before;
    }
  }

  // Of a dimension of several letters, one of size 1: its split could as well be its neighbour's.
  bool Ambiguous(int letter) const {
    if (rule_.letter_size(letter) != 1) return false;
    const auto& terms = rule_.rule().operands();
    return std::any_of(terms.begin(), terms.end(), [&](const RuleTerm& term) {
      return std::any_of(term.dims.begin(), term.dims.end(), [&](const auto& dim) {
        return dim.size() > 1 && std::find(dim.begin(), dim.end(), letter) != dim.end();
      });
    });
  }

  // `before` with one axis more.
  std::vector<DimLayout> Splits(const DimLayout& before, int axis, int letter) const {
    if (IsSplit(before)) {
      DimLayout inside = before, outside = before;
      inside.front().splits.push_back({axis, false});
      outside.front().splits.insert(outside.front().splits.begin(), AxisSplit{axis, false});
      return {inside, outside};
    }
    std::vector<DimLayout> out;
    for (ShardOrder order :
         {ShardOrder::Contiguous(), ShardOrder::Zigzag(), ShardOrder::Block(1)}) {
      // With at most one index for each rank, dealing is chunking: another layout of the same
      // regions.
      if (order == ShardOrder::Block(1) && rule_.letter_size(letter) <= mesh_.axis_size(axis))
        continue;
      Placements placements(mesh_.num_axes());
      placements[axis] = Shard(0, order);
      auto layout = Layout::FromPlacements(mesh_, placements, {rule_.letter_size(letter)});
      if (!layout.ok() || !IsSplit(layout->dim(0))) continue;
      if (std::find(out.begin(), out.end(), layout->dim(0)) == out.end())
        out.push_back(layout->dim(0));
    }
    return out;
  }

  // Follows `letters_` with no operand Partial, then with all choices of Partial operands.
  void Keep() {
    const size_t n = rule_.operand_shapes().size();
    std::vector<RuleOperand> operands(n);
    for (size_t i = 0; i < n; ++i) {
      operands[i].layout =
          Layout::Replicated(mesh_, static_cast<int>(rule_.operand_shapes()[i].size()));
    }
    const auto whole = DeriveAssignment(op_, rule_, linearity_, mesh_, letters_, operands);
    if (!whole.ok()) return;  // a composite dimension that no layout says
    AxisList free;
    for (int axis = 0; axis < mesh_.num_axes(); ++axis) {
      const bool used = std::any_of(letters_.begin(), letters_.end(), [&](const DimLayout& dim) {
        const AxisList axes = AxesOf(dim);
        return std::find(axes.begin(), axes.end(), axis) != axes.end();
      });
      if (!used) free.push_back(axis);
    }
    const int bits = static_cast<int>(n * free.size());
    for (int mask = 0; mask < 1 << bits; ++mask) {
      for (ReduceOp op :
           {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct}) {
        if (mask != 0 || op == ReduceOp::kSum) KeepPartial(whole->operands, free, mask, op);
      }
    }
  }

  void KeepPartial(absl::Span<const Layout> layouts, const AxisList& free, int mask, ReduceOp op) {
    std::vector<RuleOperand> operands(layouts.size());
    for (size_t i = 0; i < layouts.size(); ++i) {
      AxisList partial;
      for (size_t a = 0; a < free.size(); ++a) {
        if (mask >> (i * free.size() + a) & 1) partial.push_back(free[a]);
      }
      auto layout = layouts[i].WithPartial(partial, op);
      if (!layout.ok()) return;
      operands[i].layout = *std::move(layout);
    }
    auto assignment = DeriveAssignment(op_, rule_, linearity_, mesh_, letters_, operands);
    if (!assignment.ok()) return;
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!(assignment->operands[i] == operands[i].layout)) return;
    }
    found_.push_back(*std::move(assignment));
  }

  absl::string_view op_;
  const BoundRule& rule_;
  RuleLinearity linearity_;
  const DeviceMesh& mesh_;
  std::vector<DimLayout> letters_;
  std::vector<RuleAssignment> found_;
};

}  // namespace

std::vector<RuleAssignment> LegalAssignments(absl::string_view op, const BoundRule& rule,
                                             RuleLinearity linearity, const DeviceMesh& mesh) {
  return Enumeration(op, rule, linearity, mesh).Run();
}

}  // namespace dtensor
