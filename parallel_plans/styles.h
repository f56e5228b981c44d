// The styles that plans are made of; FullyShard is in fully_shard.h, ContextParallel in
// context_parallel.h, those of a mixture's experts in expert_parallel.h, and Stage, which says on
// which ranks a module lies, in stage.h. On the style's axis `a` (S is Shard, R Replicate):
//
//   style                parameters                    input         output
//   Colwise(a, out)      output features S, others R   R             as it comes, or out
//   Rowwise(a, out, in)  input features and rows S,    as it comes,  out (R unless given)
//                        others R                      or in
//   VocabParallel(a,out) a table's rows S, others R    as it comes   out (R unless given)
//     of a head          output features S, others R   R             as it comes
//     of a loss          none                          S(-1)         as it comes
//   SequenceParallel(a)  R                             S(1)          S(1)
//   Replicated(a)        R                             R             as it comes
//   ShardParameters(a)   output features S, others R   as it comes   as it comes
//   DataParallel(a)      left to others                S(0)          as it comes
//   FullyShard(a, level) S between uses, R in use      at "": S(0)   as it comes
//   ContextParallel(a,p) left to others                S(1) as p     as it comes
//   Edges(a, in, out)    left to others                in            out
//   PrepareInput(a, ...) left to others                each its own  as it comes
//   PrepareOutput(a,...) left to others                as it comes   each its own
//
// So a Linear's weight [out, in] is S(0) by Colwise and S(1) by Rowwise, and its bias [out] is S(0)
// and R. An Embedding's [rows, dim] is S(1) by Colwise and S(0) by Rowwise. The same holds for a
// module of yours that says what its dimensions are (DimRole in module.h). A module that has
// parameters and does not say so is refused. A style places only the module's own parameters, not
// those of its submodules: name these in lines of their own.
//
// Communication in forward: Colwise gathers an input that was sharded; Rowwise reduces its Partial
// result, by an all-reduce (R) or a reduce-scatter (S), and adds its bias afterwards; FullyShard
// gathers parameters, one module ahead. SequenceParallel, DataParallel and ContextParallel move
// nothing; gradients of the parameters there are Partial.
//
// An input that Colwise or VocabParallel gathered is not kept for Backward, which gathers it again,
// unless ParallelPlanOptions::keep_gathered is set. This costs one more all-gather for each, and
// saved activations shrink in proportion to the size of the axis.
//
// VocabParallel is Rowwise for a table, and Colwise for the head that computes logits from it. The
// number of words may be any: trailing ranks may hold fewer, even if the plan does not allow uneven
// shards. At a module without parameters, which is a loss, it brings the first operand to S(-1):
// logits stay sharded over the classes, and CrossEntropy exchanges three numbers per token.
//
// Rowwise reduces the module's Partial result at its output edge. If a module of yours goes on
// computing with the Partial sum inside Forward, the sum has to be all-reduced there, which moves
// twice the bytes of the reduce-scatter at the edge. Do such work in Module::Finish, which runs
// after the edge. Explain names the modules whose last result was reduced too early.
//
// If a module has several operands or results, Colwise, Rowwise and VocabParallel apply to the
// first one, and other styles to each of them. PrepareInput and PrepareOutput give a placement for
// each, by position or by name.
//
// ShardParameters is for parameters that a module has beside those of its submodules, which place
// its operands: attention's sinks, one for each head.
//
// `axis` is the name of an axis or of a group of axes of the mesh. The text of a style is as in
// C++, except that placements are marked as input or output: Rowwise("tp", out S(1)), Edges("tp",
// in S(1), out R), PrepareInput("tp", S(1), -), PrepareInput("tp", memory S(1)).
#ifndef DTENSOR_PARALLEL_PLANS_STYLES_H_
#define DTENSOR_PARALLEL_PLANS_STYLES_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtensor/layout/placement.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct Colwise {
  explicit Colwise(std::string axis, std::optional<Placement> output = std::nullopt)
      : axis(std::move(axis)), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<Colwise> Read(const StyleText& text);
  friend bool operator==(const Colwise&, const Colwise&) = default;

  std::string axis;
  std::optional<Placement> output;
};

struct Rowwise {
  explicit Rowwise(std::string axis, Placement output = Replicate(),
                   std::optional<Placement> input = std::nullopt)
      : axis(std::move(axis)), output(output), input(input) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<Rowwise> Read(const StyleText& text);
  friend bool operator==(const Rowwise&, const Rowwise&) = default;

  std::string axis;
  Placement output;
  std::optional<Placement> input;
};

struct VocabParallel {
  explicit VocabParallel(std::string axis, Placement output = Replicate())
      : axis(std::move(axis)), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<VocabParallel> Read(const StyleText& text);
  friend bool operator==(const VocabParallel&, const VocabParallel&) = default;

  std::string axis;
  Placement output;
};

struct SequenceParallel {
  explicit SequenceParallel(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<SequenceParallel> Read(const StyleText& text);
  friend bool operator==(const SequenceParallel&, const SequenceParallel&) = default;

  std::string axis;
};

struct Replicated {
  explicit Replicated(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<Replicated> Read(const StyleText& text);
  friend bool operator==(const Replicated&, const Replicated&) = default;

  std::string axis;
};

struct ShardParameters {
  explicit ShardParameters(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<ShardParameters> Read(const StyleText& text);
  friend bool operator==(const ShardParameters&, const ShardParameters&) = default;

  std::string axis;
};

struct DataParallel {
  explicit DataParallel(std::string axis) : axis(std::move(axis)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<DataParallel> Read(const StyleText& text);
  friend bool operator==(const DataParallel&, const DataParallel&) = default;

  std::string axis;
};

// Allowed placements are R, and S(d) in contiguous, unit, block or zigzag order, which deals out
// what other axes left; Apply refuses others. No placement: the operand or result stays as it is.
struct Edges {
  Edges(std::string axis, std::optional<Placement> input, std::optional<Placement> output)
      : axis(std::move(axis)), input(input), output(output) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<Edges> Read(const StyleText& text);
  friend bool operator==(const Edges&, const Edges&) = default;

  std::string axis;
  std::optional<Placement> input, output;
};

// Placements of several operands or results: the first ones by position, others by name. The same
// placements are allowed as in Edges.
struct EachPlacement {
  std::vector<std::optional<Placement>> positional;
  std::map<std::string, Placement> named;
  EachPlacement(std::initializer_list<std::optional<Placement>> positional)
      : positional(positional) {}
  explicit EachPlacement(std::map<std::string, Placement> named) : named(std::move(named)) {}
  EachPlacement() = default;
  friend bool operator==(const EachPlacement&, const EachPlacement&) = default;
};

struct PrepareInput {
  PrepareInput(std::string axis, EachPlacement inputs)
      : axis(std::move(axis)), inputs(std::move(inputs)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<PrepareInput> Read(const StyleText& text);
  friend bool operator==(const PrepareInput&, const PrepareInput&) = default;

  std::string axis;
  EachPlacement inputs;
};

struct PrepareOutput {
  PrepareOutput(std::string axis, EachPlacement outputs)
      : axis(std::move(axis)), outputs(std::move(outputs)) {}
  absl::StatusOr<StyleWishes> WishesAt(const StyleSite& site) const;
  std::string ToString() const;
  static absl::StatusOr<PrepareOutput> Read(const StyleText& text);
  friend bool operator==(const PrepareOutput&, const PrepareOutput&) = default;

  std::string axis;
  EachPlacement outputs;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_STYLES_H_
