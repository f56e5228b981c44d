// ParallelPlan: where a model's parameters and activations go, as a table of (path pattern, style).
//
//   ParallelPlan plan({
//       {"model.layers.*.input_layernorm",           SequenceParallel("tp")},
//       {"model.layers.*.self_attn.{q,k,v}_proj",    Colwise("tp")},
//       {"model.layers.*.self_attn.o_proj",          Rowwise("tp", Shard(1))},   // reduce-scatter
//       over tokens
//       {"",                                         DataParallel("dp")},
//   });
//   DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
//
// Activations are [batch, sequence, features]; Linear weights are [out, in] (layers.h). A pattern
// names modules: '*' is any run of characters within one component of the path, {a,b} alternatives;
// "" is the model itself. Styles on different mesh axes may meet in one module; two lines that set
// the same axis of the same module are an error.
//
//   style              parameters                      input            output            who
//   communicates, forward Colwise(a)         Linear S(0), Embedding S(1)     R on a           as it
//   comes       all-gather if the input was S Rowwise(a, out)    Linear S(1), Embedding S(0)     as
//   it comes      out on a (R)      P -> R all-reduce, P -> S(1) reduce-scatter SequenceParallel(a)
//   all R                          S(1) on a        S(1) on a         none; gradients of parameters
//   are P DataParallel(a)    as they are                     S(0) on a        as it comes none;
//   gradients are P Edges(a, in, out)  as they are                     in               out as
//   asked
//
// Modules that share an input share its gather: a tensor remembers its redistributions.
// Parameters that no line mentions are replicated. A parameter's dimension is cut between units
// only (heads).
#ifndef DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_
#define DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/parallel_plans/module.h"
#include "dtensor/placement.h"

namespace dtensor {

struct Style {
  std::string name;  // as written, for errors: "Colwise"
  std::string axis;  // a name of the mesh: an axis or a group
  std::optional<ParameterStyle> parameters;
  std::optional<Placement> input, output;
};

Style Colwise(std::string axis);
Style Rowwise(std::string axis, Placement output = Replicate());
Style SequenceParallel(std::string axis);
Style DataParallel(std::string axis);
Style Edges(std::string axis, std::optional<Placement> input, std::optional<Placement> output);

struct PlanOptions {
  uint64_t seed = 0;
  // Dimensions that an axis cannot split evenly are refused unless this is set; then trailing ranks
  // hold less, or nothing.
  bool allow_uneven = false;
};

class ParallelPlan {
 public:
  struct Line {
    std::string pattern;
    Style style;
  };
  ParallelPlan() = default;  // no lines: everything replicated
  explicit ParallelPlan(std::vector<Line> lines) : lines_(std::move(lines)) {}

  const std::vector<Line>& lines() const { return lines_; }
  void Add(Line line) { lines_.push_back(std::move(line)); }

  // Places and materializes the parameters and sets the edges. No communication. Nothing changes on
  // error. Errors: kInvalidArgument, naming the line: the pattern matches nothing (with the nearest
  // path there is); an axis that the mesh lacks; two lines for one module and axis; a style that
  // means nothing for a module; a dimension that the axis cannot split evenly (units counted), with
  // the sizes that would do.
  absl::Status Apply(Module& model, Context& context, const DeviceMesh& mesh,
                     const PlanOptions& options) const;

  std::string ToString() const;  // the table, a line each

 private:
  std::vector<Line> lines_;
};

// What a plan did: one line a module with parameters' placements and edges. For people.
std::string Explain(Module& model);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_
