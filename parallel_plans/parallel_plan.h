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
// A module or parameter that a model has in several places (module.h) can be named by any of its
// paths. Lines that name one module by two paths must give it the same style. Lines that reach one
// parameter through two modules must give it the same placement, while each module keeps its own
// edges. So a head tied to an embedding takes {"embed_tokens", Rowwise("tp")} and {"lm_head",
// Colwise("tp")}: both shard the vocabulary.
//
// What each style does and what it communicates is in styles.h. A style of your own is used in a
// plan in the same way (parallel_style.h).
//
// ContextParallel (context_parallel.h) shards the sequence in the order of its pattern. Its axes
// come before those of SequenceParallel, whichever line is first. At an attention module it also
// fixes the attention algorithm to that of the pattern.
//
// FullyShard (fully_shard.h) additionally shards the storage of a module's parameters between uses,
// on top of the placements that other lines give them.
//
// Stage (stage.h) puts a module on part of the ranks; other lines then apply there.
//
// Modules that share an input share its gather: a tensor remembers its redistributions. Parameters
// that no line mentions are replicated. A dimension of a parameter is cut only between its units,
// such as attention heads.
//
// A plan is data, and its text, one line per plan line, is complete: Parse(ToString(p)) == p. To
// parse styles that are not the library's, pass readers for them (style_text.h).
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
  // Without this, a dimension that its axis cannot split evenly is refused. With it, trailing ranks
  // hold less, or nothing.
  bool allow_uneven = false;
  // True: an activation that is gathered at a module's input edge, as by Colwise, stays gathered
  // until Backward (ModuleEdge::keep_gathered). False: each rank keeps its own part, and Backward
  // gathers it again.
  bool keep_gathered = false;
  // Patterns, as in lines, of the modules to recompute in Backward (Module::recomputes). Other
  // modules keep their setting. Recomputed modules may be nested.
  std::vector<std::string> recompute = {};
  // The modules of `recompute` keep the results of their collectives, so that they do not
  // communicate when they run again (RecomputeOptions).
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

  // Places and materializes the parameters and sets the modules' edges. No communication. If the
  // plan is refused, nothing has changed. Errors: kFailedPrecondition if a parameter already has
  // memory: a plan is applied once, before Materialize. kInvalidArgument, naming the line: the
  // pattern matches nothing (the nearest existing path is given); the mesh lacks the axis; two
  // lines for one module and axis; a style that has no meaning for a module, or needs something
  // that the module does not have; for Stage, a coordinate that the axis lacks, a module in two
  // stages, or a module with parameters in none if others are in one; an edge that is Partial or in
  // cyclic order; a context pattern that is unknown or does not fit the axes; a dimension that the
  // axis cannot split evenly (counted in units), with the sizes that would work, or that other axes
  // split in other units; two lines that want different things of a shared module or parameter,
  // naming both; a pattern of options.recompute that matches nothing. kInvalidArgument for a mesh
  // whose number of ranks is not that of the world; those of Parameter::Check. Failures.
  absl::Status Apply(Module& model, Context& context, const DeviceMesh& mesh,
                     const ParallelPlanOptions& options) const;

  std::string ToString() const;  // the table, a line each
  // Reads the text that ToString prints for the library's styles, and for those that `more` can
  // read. Blank lines are ignored. Only the text is checked: Apply checks that patterns and axes
  // exist. Errors: kInvalidArgument, naming the line, the column at which reading stopped, and the
  // styles there are.
  static absl::StatusOr<ParallelPlan> Parse(absl::string_view text,
                                            absl::Span<const StyleReader> more = {});

  friend bool operator==(const ParallelPlan&, const ParallelPlan&) = default;

 private:
  std::vector<Line> lines_;
};

// Describes, for people, what a plan did to a model: one line per module, with the mesh of its
// stage, its parameters' placements and its edges; a shared module or parameter is described at its
// first path, to which its other paths refer, with the layout of the copy that a module of another
// stage reads. After the model was called, it also names the modules whose Partial result was
// reduced inside Forward instead of at the output edge (styles.h).
std::string Explain(Module& model);

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_PARALLEL_PLAN_H_
