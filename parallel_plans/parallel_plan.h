// ParallelPlan: where a model's parameters and activations go, as a table of (path pattern, style).
//
//   ParallelPlan plan({
//       {"model.layers.*.input_layernorm",         SequenceParallel("tp")},
//       {"model.layers.*.self_attn.{q,k,v}_proj",  Colwise("tp")},
//       {"model.layers.*.self_attn.o_proj",        Rowwise("tp", Shard(1))},  // reduce-scatter
//       {"",                                       DataParallel("dp")},
//   });
//   DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
//
// Activations are [batch, sequence, features]; Linear weights are [out, in] (layers.h). A pattern
// names modules: '*' is any run of characters within one component of the path, {a,b} alternatives;
// "" is the model itself. Styles on different mesh axes may meet in one module; two lines that set
// the same axis of the same module are an error.
//
// What a model has in several places (module.h) goes by any of its paths. Lines that name a module
// by two paths must give it one style; lines that reach one parameter through two modules must give
// it one placement, while each module keeps its own edges. So a head tied to an embedding takes
// {"embed_tokens", Rowwise("tp")} and {"lm_head", Colwise("tp")}: both split the vocabulary.
//
// What each style does, and what it communicates, is in styles.h; a style of your own goes into a
// plan as ours do (parallel_style.h).
//
// ContextParallel (context_parallel.h) splits the sequence in the order of its pattern, before the
// axes of SequenceParallel, whichever line comes first; and at an attention module it pins the
// pattern's plan.
//
// FullyShard (fully_shard.h) shards what a module's parameters take between uses, on top of what
// other lines make of them.
//
// Modules that share an input share its gather: a tensor remembers its redistributions.
// Parameters that no line mentions are replicated. A parameter's dimension is cut between units
// only (heads).
//
// A plan is data, and its text says all of it: a line each. Parse(ToString(p)) == p, with readers
// for styles that are not the library's (style_text.h).
//
//   {"model.layers.*.self_attn.{q,k,v}_proj", Colwise("tp")}
//   {"model.layers.*.self_attn.o_proj", Rowwise("tp", out S(1))}
//   {"mlp", Edges("tp", in S(1), out R)}
//   {"", ContextParallel("cp", "zigzag")}
#ifndef DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_
#define DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/fully_shard.h"
#include "dtensor/parallel_plans/parallel_style.h"
#include "dtensor/parallel_plans/style_text.h"
#include "dtensor/parallel_plans/styles.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

struct ParallelPlanOptions {
  uint64_t seed = 0;
  // Dimensions that an axis cannot split evenly are refused unless this is set; then trailing ranks
  // hold less, or nothing.
  bool allow_uneven = false;
  // Activations that a module's input edge gathers, as Colwise does, stay gathered until Backward
  // (ModuleEdge::keep_gathered). Else each rank keeps its part, and Backward gathers them again.
  bool keep_gathered = false;
  // Patterns, as those of lines, of modules that are recomputed in Backward (Module::recomputes);
  // others stay as they are. A module in one that is recomputed may be, too.
  std::vector<std::string> recompute = {};
  // Those keep the results of their collectives, and do not communicate when they run again
  // (RecomputeOptions).
  bool recompute_keeps_collectives = false;
};

class ParallelPlan {
 public:
  struct Line {
    std::string pattern;
    ParallelStyle style;
    std::string ToString() const;
    friend bool operator==(const Line&, const Line&) = default;
  };
  ParallelPlan() = default;  // no lines: everything replicated
  explicit ParallelPlan(std::vector<Line> lines) : lines_(std::move(lines)) {}

  const std::vector<Line>& lines() const { return lines_; }
  void Add(Line line) { lines_.push_back(std::move(line)); }
  void Add(const ParallelPlan& plan) {  // all of its lines
    lines_.insert(lines_.end(), plan.lines_.begin(), plan.lines_.end());
  }

  // Places and materializes the parameters and sets the edges. No communication. Nothing changes on
  // a refusal. Errors: kFailedPrecondition when a parameter has memory already: a plan is applied
  // once, before Materialize. kInvalidArgument, naming the line: the pattern matches nothing (with
  // the nearest path there is); an axis that the mesh lacks; two lines for one module and axis; a
  // style that means nothing for a module, or wants what it does not have; an edge that is Partial
  // or in cyclic order; a pattern that is unknown or does not fit the axes; a dimension that the
  // axis cannot split evenly (units counted), with the sizes that would do, or that other axes
  // split in other units; two lines that want a shared module or parameter in two ways, naming
  // both; a pattern of options.recompute that matches nothing.
  // kInvalidArgument for a mesh that has not as many ranks as the world; those of Parameter::Check.
  // Failures.
  absl::Status Apply(Module& model, Context& context, const DeviceMesh& mesh,
                     const ParallelPlanOptions& options) const;

  std::string ToString() const;  // the table, a line each
  // Reads what ToString prints of the library's styles, and of those that `more` reads; blank lines
  // do not count. Nothing is looked up: whether patterns and axes exist, Apply says. Errors:
  // kInvalidArgument, naming the line, the column where it could not be read on, and the styles
  // there are.
  static absl::StatusOr<ParallelPlan> Parse(absl::string_view text,
                                            absl::Span<const StyleReader> more = {});

  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;

 private:
  std::vector<Line> lines_;
};

// Describes, for people, what a plan did to a model: one line per module, with its parameters'
// placements and its edges; a shared module or parameter is described at its first path, to which
// its other paths refer. After the model was called, it also names the modules whose Partial result
// was reduced inside Forward instead of at the output edge (styles.h).
std::string Explain(Module& model);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_
