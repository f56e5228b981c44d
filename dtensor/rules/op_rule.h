// OpRule: how an operator treats placements, as one line of text.
//
//   "m k, k n -> m n"
//       MatMul. A letter that is missing from a result is summed: sharding it gives Partial(sum).
//   "..., ... -> ..."
//       Add. ... is any leading dimensions, aligned at the right; size 1 broadcasts.
//   "b t h d! -> b t h d!"
//       Rope. d! must be whole on every rank: it is never sharded.
//   "t @v, v d -> t d"
//       Embedding. The values of the first operand are indices of v.
//   "b s (h g) d!, b t~s h d! -> b s (h g) d!"
//       Attention. (h g) is one dimension made of two factors, outer first. "t~s" says that t is
//       streamed past s: t may be sharded by exactly the axes that shard s; the operator then
//       brings the shards of t to each shard of s, one after the other (ring attention). If t is
//       sharded by axes that do not shard s, it is treated like v^ below. s itself is not streamed.
//   "... i!, ... c @e, ... c, e<... f i!, e<... f i!, e<... d f -> ... d"
//       ExpertMlp. "e<..." says that what ... stands for is sent to e: an axis that shards one of
//       these dimensions may shard e as well; the operator then sends each shard of e what it needs
//       of the others' shards, and brings the results back. On other axes e is a letter like any.
//   "t v^, t -> t", "... d^, d^ -> ... d^"
//       CrossEntropy, RmsNorm. v^ may be sharded; the operator merges the shards' results itself,
//       so they are not Partial.
//   "a k:max -> a"
//       A reduction by another op than sum. If k is sharded, the result is Partial(max). No
//       gradient passes its reduction, so recording that is refused.
//
// The same code evaluates all rules. ChooseAssignment() returns the layouts that operands must have
// and the layouts that results then have:
//
//   * Sharding follows letters. All dimensions with the same letter are split in the same way. A
//     mesh axis splits only one letter, or a streamed letter and the one that it is streamed past,
//     or a letter and one of "..." that is sent to it.
//     The candidates are splits that some operand already has, or such splits without some of their
//     axes.
//   * A Partial operand stays Partial if the operator is linear (below) and the op allows it; else
//     it is reduced. Replicate or Shard never becomes Partial by choice.
//   * An assignment that moves nothing wins. Pinned operands (parameters) are moved only if there
//     is no other way. Cost decides among the rest, then the order of enumeration, which is the
//     same on every rank.
//
// Gradients need no rule of their own (Griewank & Walther, "Evaluating Derivatives", adjoints of
// linear maps). With the operands where the forward pass put them, an operand's local gradient has
// the operand's layout. In addition it is Partial(sum) on axes that shard only letters which the
// operand lacks, and on axes on which another operand is Partial it is Partial with that operand's
// op. (On axes that also shard the letter past which it is streamed, or one that is sent to it, an
// operand's gradient is not Partial: the operator brings each shard's gradient to its owner.) A
// result that is Partial(sum) on an axis has a gradient that is replicated on it (Layout::Dual).
#ifndef DTENSOR_RULES_OP_RULE_H_
#define DTENSOR_RULES_OP_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace DTENSOR_EXPORT dtensor {

// When a Partial operand may stay Partial on an axis; what passes is derived from this.
enum class RuleLinearity : uint8_t {
  // Never.
  kNone,
  // Linear in all operands together (add): sum and avg pass if every operand is Partial.
  kJoint,
  // Linear in each operand (matmul, mul): sum and avg pass if exactly one operand is Partial. The
  // other operands' gradients are Partial with the same op.
  kMulti,
  // Increasing, of one operand: max and min pass.
  kIncreasing,
  // Decreasing, of one operand: max becomes min, min becomes max.
  kDecreasing,
  // Values are only moved (views): every op passes if every operand is Partial with it.
  kView,
};

struct RuleLetter {
  std::string name;
  bool whole = false;                // "d!"
  bool merged = false;               // "v^"
  int past = -1;                     // "t~s": the letter s that t is streamed past
  bool reached = false;              // "e<...": letters of "..." are sent to e
  bool rest = false;                 // it is one of those that "..." stands for (BoundRule)
  ReduceOp reduce = ReduceOp::kSum;  // "k:max"
  friend bool operator==(const RuleLetter&, const RuleLetter&) = default;
};

// One operand or result.
struct RuleTerm {
  bool ellipsis = false;  // "..." before the named dimensions
  int indexes = -1;       // "@v": the letter that the values index
  // For each dimension its letters, outermost first. No letters, "()": size 1, broadcast.
  std::vector<absl::InlinedVector<int, 2>> dims;
};

// A parsed rule. Parse(ToString(r)) == r. Rules are equal if they have the same text, however their
// letters are numbered.
class OpRule {
 public:
  static constexpr size_t kMaxText = 65536;  // bytes
  static constexpr size_t kMaxOperands = 32;

  // Errors: kInvalidArgument, showing where the text cannot be read, or if a limit is exceeded.
  static absl::StatusOr<OpRule> Parse(absl::string_view text);
  std::string ToString() const;

  absl::Span<const RuleLetter> letters() const { return letters_; }
  absl::Span<const RuleTerm> operands() const { return operands_; }
  absl::Span<const RuleTerm> results() const { return results_; }
  friend bool operator==(const OpRule& a, const OpRule& b) { return a.ToString() == b.ToString(); }

 private:
  friend class RuleParser;
  friend class BoundRule;
  std::vector<RuleLetter> letters_;
  std::vector<RuleTerm> operands_, results_;
};

// Sizes for letters that no operand determines: the results of slice, concat, ...
using LetterSizes = std::vector<std::pair<std::string, int64_t>>;

// A rule applied to operands' shapes: ellipses are expanded, and every letter has a size.
class BoundRule {
 public:
  // Errors: kInvalidArgument, naming `op` and the shapes, for a wrong number of operands or
  // dimensions, different sizes of one letter, a size other than 1 for "()", or a composite
  // dimension that does not divide; for a letter whose size follows neither from an operand nor
  // from `sizes`, and for sizes that are negative or of letters that the rule does not have; for
  // more dimensions than Layout::kMaxDims, or a result's shape that no tensor may have (dims.h).
  static absl::StatusOr<BoundRule> Bind(absl::string_view op, const OpRule& rule,
                                        absl::Span<const Dims> operand_shapes,
                                        const LetterSizes& sizes = {});

  const OpRule& rule() const { return rule_; }                      // without ellipses
  int64_t letter_size(int letter) const { return sizes_[letter]; }  // of rule().letters()[letter]
  absl::Span<const Dims> operand_shapes() const { return operand_shapes_; }
  absl::Span<const Dims> result_shapes() const { return result_shapes_; }
  // Requires: the rule has this letter.
  int LetterIndex(absl::string_view name) const;

 private:
  OpRule rule_;
  std::vector<int64_t> sizes_;
  std::vector<Dims> operand_shapes_, result_shapes_;
};

// The layouts of a call.
struct RuleAssignment {
  std::vector<DimLayout> letters;         // how each letter is split
  std::vector<Layout> operands, results;  // operands: the layouts to redistribute them to first
  std::vector<Layout> gradients;          // of each operand's local gradient
  double cost = 0;                        // of moving the operands: see ChooseAssignment
};

struct RuleOperand {
  Layout layout;
  DType dtype = DType::kF32;
  bool pinned = false;
};

// Returns the assignment of least cost. The cost is the sum of the operands' MovingCost, 0 if
// nothing moves. That of a pinned operand is multiplied by 1e15, so that these move last. Streaming
// and sending count as no cost; an operator that has alternatives to streaming can choose one with
// OpDef::choose_layouts.
// Requires: one operand for each of the rule's (at least one), with its number of dimensions.
// Errors: kInvalidArgument, naming `op` and the layouts, if the operands are on different meshes,
// or if no assignment fits.
absl::StatusOr<RuleAssignment> ChooseAssignment(absl::string_view op, const BoundRule& rule,
                                                RuleLinearity linearity,
                                                absl::Span<const RuleOperand> operands);

// Returns the assignment that follows if letters are split as in `letters`, and operands are
// Partial as in `operands`. ChooseAssignment returns the best of these; the brute-force verifier
// tries all.
// Requires: as ChooseAssignment; one entry of `letters` for each of rule.rule().letters(), all on
// `mesh`.
// Errors: kInvalidArgument, naming `op`, if one mesh axis splits two letters, or a result would be
// Partial with two ops; as JoinDims if no layout can express the product of two letters.
absl::StatusOr<RuleAssignment> DeriveAssignment(absl::string_view op, const BoundRule& rule,
                                                RuleLinearity linearity, const DeviceMesh& mesh,
                                                absl::Span<const DimLayout> letters,
                                                absl::Span<const RuleOperand> operands);

// The axes that split a letter (by its number) and one that is sent to it, ascending. `rule`: of a
// BoundRule.
AxisList SentAxes(const OpRule& rule, const RuleAssignment& assignment, size_t letter);

// An estimate of what moving a tensor of `shape` from one layout to another costs, used to choose
// an assignment: 0 for equal layouts, else about the bytes received, summed over ranks. It is a
// closed form and may differ from the plan's exact bytes (redistribution_plan.h): sizes are taken
// to divide evenly; where both layouts split a dimension in unrelated ways, a rank is assumed to
// hold already as much of what it needs as a random shard of that size would; and if Partial axes
// are reduced, only the reduction is counted. Latency and link speeds are ignored, and so is the
// possibility that another operator needs the same redistribution.
// Requires: both layouts are on one mesh and have as many dimensions as `shape`.
double MovingCost(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                  DType dtype);

// Returns the rule of a reshape: for [6, 4] -> [3, 8] it is "(a b) c -> a (b c)" with b = 2.
// Dimensions whose boundaries do not nest must be whole. Sets `sizes` (not null) to the sizes of
// all letters.
// Errors: kInvalidArgument, naming both shapes, if they have different numbers of elements.
absl::StatusOr<std::string> ReshapeRule(absl::Span<const int64_t> from,
                                        absl::Span<const int64_t> to, LetterSizes* sizes);

}  // namespace dtensor

#endif  // DTENSOR_RULES_OP_RULE_H_
