// OpRule: how an operator treats placements, as one line of text.
//
//   "m k, k n -> m n"                       matmul     a letter that is missing from a result is
//   summed, so
//                                                      sharding it gives Partial(sum)
//   "..., ... -> ..."                       add        ... is any leading dimensions, aligned at
//   the right; size 1 broadcasts
//   "... d!, d! -> ... d!"                  RMSNorm    d! must be whole on every rank
//   "t @v, v d -> t d"                      embedding  the first operand's values index v
//   "b s (h g) d, b t h d -> b s (h g) d"   attention  one dimension of two factors, outer first
//   "t v^, t -> t"                          cross-entropy  v^ may be sharded; the operator merges
//   the shards'
//                                                      results itself, so they are not Partial
//   "a k:max -> a"                          reduced by another op than sum
//
// One engine reads the rules. Solve() says where operands must be and where results then are:
//   * Sharding follows letters: every dimension with that letter is split alike, and one mesh axis
//   splits one
//     letter. Candidates are the splits that the operands have already; none is invented.
//   * Partial passes through where the operator is linear (below) and the op allows it; else it is
//   reduced.
//     Choice never turns Replicate or Shard into Partial.
//   * An assignment that moves nothing wins; what is pinned (parameters) is moved only if there is
//   no other way;
//     bytes decide among the rest; then the order of enumeration, which is the same on every rank.
//
// Gradients need no rule of their own (Griewank & Walther, "Evaluating Derivatives", adjoints of
// linear maps): with the operands where the forward put them, an operand's local gradient has the
// operand's layout, is Partial(sum) on axes that shard letters which the operand lacks, and Partial
// with their op on axes on which other operands are Partial. The gradient of a Partial(sum) result
// is replicated there (Layout::Dual).
#ifndef DTENSOR_OP_RULE_H_
#define DTENSOR_OP_RULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/reduce_op.h"

namespace dtensor {

// When a Partial operand may stay Partial; what passes is derived from this.
enum class Linearity : uint8_t {
  kNone,   // never
  kJoint,  // linear in all operands together: sum/avg pass when every operand is Partial on the
           // axis (add, views)
  kMulti,  // linear in each operand: sum/avg pass when exactly one operand is Partial on the axis
           // (matmul, mul)
  kIncreasing,  // monotone: max and min pass (one operand)
  kDecreasing,  // antitone: max passes as min, min as max (one operand)
  kView,  // values only move: every op passes when every operand is Partial with it on the axis
};

struct RuleLetter {
  std::string name;
  bool whole = false;                // "d!"
  bool staged = false;               // "v^"
  ReduceOp reduce = ReduceOp::kSum;  // "k:max"
  friend bool operator==(const RuleLetter&, const RuleLetter&) = default;
};

// One operand or result: for each dimension its letters, outermost first (no letters, "()": size 1,
// broadcast).
struct RuleTerm {
  bool ellipsis = false;  // "..." before the named dimensions
  int indexes = -1;       // "@v": the letter that the values index
  std::vector<absl::InlinedVector<int, 2>> dims;
};

// The parsed text. Parse(ToString(r)) == r: rules are equal when they say the same, however their
// letters are numbered.
class OpRule {
 public:
  // Errors: kInvalidArgument, showing where the text cannot be read.
  static absl::StatusOr<OpRule> Parse(absl::string_view text);
  std::string ToString() const;

  absl::Span<const RuleLetter> letters() const { return letters_; }
  absl::Span<const RuleTerm> operands() const { return operands_; }
  absl::Span<const RuleTerm> results() const { return results_; }
  friend bool operator==(const OpRule& a, const OpRule& b);

 private:
  friend class RuleParser;
  friend class BoundRule;
  std::vector<RuleLetter> letters_;
  std::vector<RuleTerm> operands_, results_;
};

// Sizes for letters that no operand determines: the results of slice, concat, ...
using LetterSizes = std::vector<std::pair<std::string, int64_t>>;

// A rule with the operands' shapes: ellipses written out, every letter's size known.
class BoundRule {
 public:
  // Errors: kInvalidArgument naming `op`, the shapes and the letter, for a wrong number of operands
  // or dimensions, unlike sizes of one letter, a composite dimension that does not divide.
  static absl::StatusOr<BoundRule> Bind(absl::string_view op, const OpRule& rule,
                                        absl::Span<const Dims> operand_shapes,
                                        const LetterSizes& sizes = {});

  const OpRule& rule() const { return rule_; }  // without ellipses
  int64_t letter_size(int letter) const { return sizes_[letter]; }
  absl::Span<const Dims> operand_shapes() const { return operand_shapes_; }
  absl::Span<const Dims> result_shapes() const { return result_shapes_; }
  // Requires: the rule has this letter.
  int LetterIndex(absl::string_view name) const;

 private:
  OpRule rule_;
  std::vector<int64_t> sizes_;
  std::vector<Dims> operand_shapes_, result_shapes_;
};

// Where everything goes.
struct Assignment {
  std::vector<DimLayout> letters;         // how each letter is split
  std::vector<Layout> operands, results;  // operands: redistribute to these first
  std::vector<Layout> gradients;          // of each operand's local gradient
  double moved_bytes = 0;                 // estimate over all ranks
};

struct RuleOperand {
  Layout layout;
  DType dtype = DType::kF32;
  bool pinned = false;
};

// Errors: kInvalidArgument naming `op` and the placements when the operands lie on unlike meshes.
absl::StatusOr<Assignment> Solve(absl::string_view op, const BoundRule& rule, Linearity linearity,
                                 absl::Span<const RuleOperand> operands);

// The layouts that follow when letters are split so (one axis at most once) and operands are
// Partial so: what Solve returns for the winner; the brute-force verifier walks all of them.
absl::StatusOr<Assignment> Follow(absl::string_view op, const BoundRule& rule, Linearity linearity,
                                  const DeviceMesh& mesh, absl::Span<const DimLayout> letters,
                                  absl::Span<const RuleOperand> operands);

// Bytes that a redistribution moves, summed over ranks: closed form, exact when sizes divide.
double EstimateMovedBytes(const Layout& from, const Layout& to, absl::Span<const int64_t> shape,
                          DType dtype);

// The rule of a reshape, written out: [6, 4] -> [3, 8] is "(a b) c -> a (b c)" with b = 2.
// Dimensions whose boundaries do not nest must be whole. Sets `sizes` to all letters' sizes.
// Errors: kInvalidArgument naming both shapes when the element counts differ.
absl::StatusOr<std::string> ReshapeRule(absl::Span<const int64_t> from,
                                        absl::Span<const int64_t> to, LetterSizes* sizes);

}  // namespace dtensor

#endif  // DTENSOR_OP_RULE_H_
