// dtensor: plans, runs and shows redistributions, plans and runs rings of attention, and explains
// training steps, from the command line. Manual: docs/cli.md.
//
// Exit status 0: done. 1: it ran, and failed or went wrong. 2: refused, with one line on stderr
// that names the bad part and the remedy.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/tools/cli/explain/explain_command.h"
#include "dtensor/tools/cli/links_command.h"
#include "dtensor/tools/cli/plan_command.h"
#include "dtensor/tools/cli/redistribute_command.h"
#include "dtensor/tools/cli/regions_command.h"
#include "dtensor/tools/cli/request.h"
#include "dtensor/tools/cli/ring/ring_command.h"
#include "dtensor/tools/program/command_line.h"
#include "dtensor/tools/program/output.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::cli {
namespace {

struct Flags {
  MoveFlags move;
  RegionsFlags regions;
  RingFlags ring;
  ExplainFlags explain;
  bool json = false;
  int64_t rounds = 10, ranks = 2;
};

struct Commands {
  CLI::App *plan, *redistribute, *regions, *links, *ring, *explain;
};

void DeclareShape(CLI::App& app, std::string& shape) {
  app.add_option("--shape", shape, "of the global tensor: 64,64; or scalar")->required();
}

void DeclareMove(CLI::App& app, MoveFlags& move) {
  app.add_option("--mesh", move.mesh, "axes and sizes: dp=4,tp=8; and ranks: tp=2@4..5");
  app.add_option("--from-mesh", move.from_mesh, "of the source, where the result's is another");
  app.add_option("--to-mesh", move.to_mesh, "of the result, where the source's is another");
  DeclareShape(app, move.shape);
  app.add_option("--dtype", move.dtype, "f32, f64, bf16, f16, i32, i64 or bool")
      ->capture_default_str();
  app.add_option("--from", move.from, "a placement for each mesh axis: P(sum),S(0); or a layout")
      ->required();
  app.add_option("--to", move.to, "the same of the result")->required();
  app.add_option("--objective", move.objective, "what to make least: total, busiest or latency")
      ->capture_default_str();
  app.add_option("--max-extra-bytes", move.max_extra_bytes, "that a rank may allocate");
  app.add_option("--links", move.links, "a file with a link table (see the command links)");
}

void DeclareRing(CLI::App& app, RingFlags& ring) {
  app.add_option("--mesh", ring.mesh, "the ring's axis: cp=8; for double_ring two: node=2,cp=4")
      ->required();
  app.add_option("--pattern", ring.pattern, "ring, zigzag, striped or double_ring")
      ->capture_default_str();
  app.add_option("--batch", ring.batch, "sequences; 1 if missing");
  app.add_option("--heads", ring.heads, "of the queries; 1 if missing");
  app.add_option("--kv-heads", ring.kv_heads, "of keys and values; as many as --heads if missing");
  app.add_option("--seq", ring.seq, "positions, of all ranks together; required without --in");
  app.add_option("--head-dim", ring.head_dim, "elements of a head; 64 if missing");
  app.add_option("--dtype", ring.dtype, "f32, f64, bf16 or f16; f32 if missing");
  app.add_option("--mask", ring.mask, "full, causal, window:W, prefix:N or documents:0,A,B")
      ->capture_default_str();
  app.add_option("--links", ring.links, "a file with a link table (see the command links)");
  app.add_flag("--run", ring.run, "run it on threads, and compare it with an oracle");
  app.add_option("--in", ring.in,
                 "with --run: a safetensors file with q, k, v and do, whose sizes "
                 "and type are those of flags that are missing; random data if missing");
  app.add_option("--out", ring.out, "with --run: a safetensors file for o, lse, dq, dk and dv");
}

void DeclareExplain(CLI::App& app, ExplainFlags& explain) {
  app.add_option("--model", explain.model, "a file: Hugging Face's config.json")->required();
  app.add_option("--plan", explain.plan,
                 "a file with a plan, or a name as dp+tp+sp; if missing, that of the mesh's axes");
  app.add_option("--mesh", explain.mesh, "axes and sizes: dp=8,tp=8")->required();
  app.add_option("--batch", explain.batch, "sequences, of all ranks together")->required();
  app.add_option("--seq", explain.sequence, "tokens of a sequence")->required();
  app.add_option("--dtype", explain.dtype, "of the model: f32, f64, bf16 or f16")
      ->capture_default_str();
  app.add_option("--optimizer", explain.optimizer, "adamw, sgd or none")->capture_default_str();
  app.add_option("--recompute", explain.recompute,
                 "modules that are computed again in backward, by a pattern of their paths: "
                 "'model.layers.*'; may be given several times");
  app.add_option("--cp-pattern", explain.pattern, "of a plan's cp: zigzag, ring, striped, ...")
      ->capture_default_str();
  app.add_flag("--allow-uneven", explain.allow_uneven, "sizes need not divide");
  app.add_option("--links", explain.links, "a file with a link table (see the command links)");
  app.add_option("--svg", explain.svg, "draw it into this file");
  app.add_option("--compare", explain.compare, "another plan: print what differs");
}

Commands Declare(CLI::App& app, Flags& flags) {
  const Commands commands = {
      app.add_subcommand("plan", "what a redistribution does and costs, on a mesh of any size"),
      app.add_subcommand("redistribute",
                         "runs it on threads or processes, and checks every element"),
      app.add_subcommand("regions", "what each rank holds of a tensor"),
      app.add_subcommand("links", "measures this machine and prints a link table"),
      app.add_subcommand("ring",
                         "the schedule of ring attention, its bytes and its balance; and its run"),
      app.add_subcommand("explain", "what a training step of a model costs under a plan")};
  DeclareMove(*commands.plan, flags.move);
  DeclareMove(*commands.redistribute, flags.move);
  commands.redistribute->add_option("--rounds", flags.rounds, "that are timed")
      ->capture_default_str();
  commands.regions->add_option("--mesh", flags.regions.mesh, "axes and sizes: dp=4,tp=8")
      ->required();
  DeclareShape(*commands.regions, flags.regions.shape);
  commands.regions
      ->add_option("--layout", flags.regions.layout, "a placement for each mesh axis, or a layout")
      ->required();
  commands.regions->add_flag("--picture", flags.regions.picture, "draw a 1-D or 2-D tensor");
  commands.regions->add_option("--svg", flags.regions.svg, "draw it into this file");
  commands.links
      ->add_option("--ranks", flags.ranks, "threads that talk at once; or as many processes")
      ->capture_default_str();
  DeclareRing(*commands.ring, flags.ring);
  DeclareExplain(*commands.explain, flags.explain);
  for (CLI::App* command : app.get_subcommands({})) {
    command->add_flag("--json", flags.json, "print JSON");
  }
  app.require_subcommand(1);
  return commands;
}

// Colours suit a terminal, unless its user asked for none (no-color.org).
bool WantsColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) && (no_colour == nullptr || *no_colour == '\0');
}

absl::StatusOr<Outcome> Run(const Commands& commands, const Flags& flags) {
  if (commands.plan->parsed()) return RunPlan(flags.move, flags.json);
  if (commands.redistribute->parsed()) {
    return RunRedistribute(flags.move, flags.rounds, flags.json);
  }
  if (commands.regions->parsed()) return RunRegions(flags.regions, flags.json, WantsColour());
  if (commands.ring->parsed()) return RunRing(flags.ring, flags.json);
  if (commands.explain->parsed()) return RunExplain(flags.explain, flags.json);
  const bool says_ranks = commands.links->count("--ranks") > 0;
  return RunLinks(says_ranks ? std::optional(flags.ranks) : std::nullopt, flags.json);
}

// What is refused, every process finds out by itself.
int Fail(const CLI::App& app, const absl::Status& status, int code) {
  if (code == 1 || IsSpeaker()) PrintError(CommandName(app), status.message());
  return code;
}

int RunAndPrint(const CLI::App& app, const Commands& commands, const Flags& flags) {
  // Of several processes one does for all what is not done together.
  const bool together = commands.redistribute->parsed() || commands.links->parsed();
  if (!together && !IsSpeaker()) return 0;
  const absl::StatusOr<Outcome> outcome = Run(commands, flags);
  if (!outcome.ok()) {
    const bool refused = outcome.status().code() != absl::StatusCode::kInternal;
    return Fail(app, outcome.status(), refused ? 2 : 1);
  }
  if (!IsSpeaker()) return 0;
  const absl::Status printed = Print(outcome->text);
  if (!printed.ok()) return Fail(app, printed, 1);
  return outcome->ok ? 0 : 1;
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app(
      "Plans, runs and shows redistributions of sharded tensors; plans and runs ring attention; "
      "explains training steps. "
      "Manual: docs/cli.md",
      "dtensor");
  Flags flags;
  const Commands commands = Declare(app, flags);
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  return RunGuarded(app, [&] { return RunAndPrint(app, commands, flags); });
}

}  // namespace dtensor::cli

int main(int argc, char** argv) { return dtensor::cli::Main(argc, argv); }
