// dtensor: plans, runs and shows redistributions, plans and runs rings of attention, explains
// training steps, and looks into checkpoints, from the command line. Manual: docs/cli.md.
//
// Exit status 0: done. 1: it ran, and failed or went wrong. 2: refused, with one line on stderr
// that names the bad part and the remedy.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/tools/cli/checkpoint/checkpoint_command.h"
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
  ExplainFlags explain, model;
  CheckpointFlags checkpoint;
  bool json = false;
  RoundsFlags rounds;
  int64_t ranks = 2;
};

struct Commands {
  CLI::App *plan, *redistribute, *regions, *links, *ring, *explain, *model, *checkpoint;
  CLI::App *show, *verify, *write;  // of checkpoint
};

void DeclareShape(CLI::App& app, std::string& shape) {
  app.add_option("--shape", shape, "of the global tensor: 64,64; or scalar")->required();
}

void DeclareSvg(CLI::App& app, std::string& svg) {
  const auto has_name = [](const std::string& file) {
    return file.empty() ? "the file has no name" : "";
  };
  app.add_option("--svg", svg, "draw it into this file")
      ->type_name("FILE")
      ->check(CLI::Validator(has_name, ""));
}

void DeclarePictures(CLI::App& app, const std::string& what, bool& picture, std::string& svg) {
  app.add_flag("--picture", picture, "draw it, too: " + what);
  DeclareSvg(app, svg);
}

void DeclareMove(CLI::App& app, MoveFlags& move) {
  app.add_option("--mesh", move.mesh, "axes and sizes: dp=4,tp=8; and ranks: tp=2@4..5");
  app.add_option("--from-mesh", move.from_mesh, "of the source, where the result's is another");
  app.add_option("--to-mesh", move.to_mesh, "of the result, where the source's is another");
  DeclareShape(app, move.shape);
  app.add_option("--dtype", move.dtype, "of the tensor")
      ->type_name("f32|f64|bf16|f16|i32|i64|bool")
      ->capture_default_str();
  app.add_option("--from", move.from, "a placement for each mesh axis: P(sum),S(0); or a layout")
      ->required();
  app.add_option("--to", move.to, "the same of the result")->required();
  app.add_option("--objective", move.objective, "what to make least")
      ->type_name("total|busiest|latency")
      ->capture_default_str();
  app.add_option("--max-extra-bytes", move.max_extra_bytes, "that a rank may allocate: 64MiB")
      ->type_name("BYTES");
  app.add_option("--links", move.links, "a file with a link table (see the command links)")
      ->type_name("FILE");
}

void DeclareRing(CLI::App& app, RingFlags& ring) {
  app.add_option("--mesh", ring.mesh, "the ring's axis: cp=8; for double_ring two: node=2,cp=4")
      ->required();
  app.add_option("--pattern", ring.pattern, "how the sequence is dealt out")
      ->type_name("ring|zigzag|striped|double_ring")
      ->capture_default_str();
  app.add_option("--batch", ring.batch, "sequences; 1 if missing");
  app.add_option("--heads", ring.heads, "of the queries; 1 if missing");
  app.add_option("--kv-heads", ring.kv_heads, "of keys and values; as many as --heads if missing");
  app.add_option("--seq", ring.seq, "positions, of all ranks together; required without --in");
  app.add_option("--head-dim", ring.head_dim, "elements of a head; 64 if missing");
  app.add_option("--dtype", ring.dtype, "of the tensors; f32 if missing")
      ->type_name("f32|f64|bf16|f16");
  app.add_option("--mask", ring.mask, "full, causal, window:W, prefix:N or documents:0,A,B")
      ->capture_default_str();
  app.add_option("--links", ring.links, "a file with a link table (see the command links)")
      ->type_name("FILE");
  app.add_flag("--run", ring.run, "run it on threads, and compare it with an oracle");
  app.add_flag("--progress", ring.progress,
               "with --run: say on stderr how long it will take, on a terminal or not");
  app.add_option("--in", ring.in,
                 "with --run: a safetensors file with q, k, v and do, whose sizes "
                 "and type are those of flags that are missing; random data if missing")
      ->type_name("FILE");
  app.add_option("--out", ring.out, "with --run: a safetensors file for o, lse, dq, dk and dv")
      ->type_name("FILE");
}

// Declares the flags that explain and model have in common.
void DeclareStep(CLI::App& app, ExplainFlags& step) {
  app.add_option(step.model_flag, step.model, "Hugging Face's config.json")
      ->type_name("FILE")
      ->required();
  app.add_option("--plan", step.plan,
                 "a file with a plan, or a name as dp+tp+sp; if missing, that of the mesh's axes");
  app.add_option("--mesh", step.mesh, "axes and sizes: dp=8,tp=8")->required();
  app.add_option("--dtype", step.dtype, "of the model")
      ->type_name("f32|f64|bf16|f16")
      ->capture_default_str();
  app.add_option("--optimizer", step.optimizer, "and its states")
      ->type_name("adamw|muon|sgd|none")
      ->capture_default_str();
  app.add_option("--lora-rank", step.lora.rank,
                 "train adapters of this rank in place of the weights (default: the weights)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--lora-layers", step.lora.layers, "names of the layers that get adapters")
      ->delimiter(',')
      ->needs("--lora-rank")
      ->capture_default_str();
  app.add_option("--recompute", step.recompute,
                 "modules that are computed again in backward, by a pattern of their paths: "
                 "'model.layers.*'; may be given several times");
  app.add_option("--cp-pattern", step.pattern, "of a plan's cp")
      ->type_name(
          "zigzag|ring|striped|double_ring|ulysses|ulysses+ring|ulysses+zigzag|ulysses+striped")
      ->capture_default_str();
  app.add_option("--micro-batches", step.micro_batches,
                 "parts of the batch, which go through a pipeline, or are computed one after the "
                 "other")
      ->capture_default_str();
  app.add_option("--schedule", step.schedule, "of a pipeline (docs/pipelines.md)")
      ->type_name("1f1b|zero_bubble")
      ->capture_default_str();
  app.add_flag("--allow-uneven", step.allow_uneven, "sizes need not divide");
  app.add_option("--memory", step.memory, "that a rank has, as 80GiB: is it enough?")
      ->type_name("BYTES");
  app.add_option("--links", step.links, "a file with a link table (see the command links)")
      ->type_name("FILE");
}

void DeclareExplain(CLI::App& app, ExplainFlags& explain) {
  DeclareStep(app, explain);
  app.add_option("--batch", explain.batch, "sequences, of all ranks together")->required();
  app.add_option("--seq", explain.sequence, "tokens of a sequence")->required();
  DeclareSvg(app, explain.svg);
  app.add_option("--compare", explain.compare, "another plan: print what differs");
}

void DeclareModel(CLI::App& app, ExplainFlags& model) {
  model.model_flag = "--config";
  DeclareStep(app, model);
  app.add_option(
      "--batch", model.batch,
      "sequences, of all ranks together; if missing, one for each rank of dp and ep, and each "
      "micro-batch");
  app.add_option("--seq", model.sequence,
                 "tokens of a sequence; if missing 4096, or the model's positions if they are "
                 "fewer");
  DeclarePictures(app, "where the plan brings activations and parameters", model.picture,
                  model.svg);
}

// Declares checkpoint's own commands: show, verify and export.
void DeclareCheckpoint(Commands& commands, CheckpointFlags& flags) {
  CLI::App& app = *commands.checkpoint;
  commands.show = app.add_subcommand("show", "the tensors, files and entries of a checkpoint");
  commands.verify = app.add_subcommand("verify", "whether every byte is what was written");
  commands.write =
      app.add_subcommand("export", "whole tensors of the model, in Hugging Face's files");
  for (CLI::App* command : app.get_subcommands({})) {
    command
        ->add_option("CHECKPOINT", flags.path,
                     "its folder, or that of a run: then the latest in it")
        ->required();
  }
  commands.write->add_option("FOLDER", flags.folder, "where the files go")->required();
  commands.write
      ->add_option("--max-file-bytes", flags.max_file_bytes,
                   "of the tensors in one file together, unless one alone has more")
      ->type_name("BYTES")
      ->capture_default_str();
  app.require_subcommand(1);
}

Commands Declare(CLI::App& app, Flags& flags) {
  Commands commands = {
      app.add_subcommand("plan", "what a redistribution does and costs, on a mesh of any size"),
      app.add_subcommand("redistribute",
                         "runs it on threads or processes, and checks every element"),
      app.add_subcommand("regions", "what each rank holds of a tensor"),
      app.add_subcommand("links", "measures this machine and prints a link table"),
      app.add_subcommand("ring",
                         "the schedule of ring attention, its bytes and its balance; and its run"),
      app.add_subcommand("explain", "what a training step of a model costs under a plan"),
      app.add_subcommand("model",
                         "a model's modules under a plan: placements, memory, bytes for each "
                         "axis"),
      app.add_subcommand("checkpoint", "shows, verifies and exports checkpoints"),
      nullptr,
      nullptr,
      nullptr};
  const std::string elements = "up to 64 x 64 elements, slice by slice";
  DeclareMove(*commands.plan, flags.move);
  DeclarePictures(*commands.plan, elements, flags.move.picture, flags.move.svg);
  DeclareMove(*commands.redistribute, flags.move);
  commands.redistribute->add_option("--rounds", flags.rounds.rounds, "that are timed")
      ->capture_default_str();
  commands.redistribute->add_flag("--progress", flags.rounds.progress,
                                  "say on stderr how long it will take, on a terminal or not");
  commands.regions->add_option("--mesh", flags.regions.mesh, "axes and sizes: dp=4,tp=8")
      ->required();
  DeclareShape(*commands.regions, flags.regions.shape);
  commands.regions
      ->add_option("--layout", flags.regions.layout, "a placement for each mesh axis, or a layout")
      ->required();
  DeclarePictures(*commands.regions, elements, flags.regions.picture, flags.regions.svg);
  commands.links
      ->add_option("--ranks", flags.ranks, "threads that talk at once; or as many processes")
      ->capture_default_str();
  DeclareRing(*commands.ring, flags.ring);
  DeclareExplain(*commands.explain, flags.explain);
  DeclareModel(*commands.model, flags.model);
  DeclareCheckpoint(commands, flags.checkpoint);
  std::vector<CLI::App*> all = app.get_subcommands({});
  all.insert(all.end(), {commands.show, commands.verify, commands.write});
  for (CLI::App* command : all) {
    if (command != commands.checkpoint) command->add_flag("--json", flags.json, "print JSON");
  }
  app.require_subcommand(1);
  return commands;
}

// Whether to use colours: on a terminal, unless its user asked for none (no-color.org).
bool WantsColour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) && (no_colour == nullptr || *no_colour == '\0');
}

absl::StatusOr<Outcome> Run(const Commands& commands, const Flags& flags) {
  if (commands.plan->parsed()) return RunPlan(flags.move, flags.json, WantsColour());
  if (commands.redistribute->parsed()) {
    return RunRedistribute(flags.move, flags.rounds, flags.json);
  }
  if (commands.regions->parsed()) return RunRegions(flags.regions, flags.json, WantsColour());
  if (commands.ring->parsed()) return RunRing(flags.ring, flags.json);
  if (commands.explain->parsed()) return RunExplain(flags.explain, flags.json);
  if (commands.model->parsed()) return RunModel(flags.model, flags.json);
  if (commands.show->parsed()) return RunCheckpointShow(flags.checkpoint, flags.json);
  if (commands.verify->parsed()) return RunCheckpointVerify(flags.checkpoint, flags.json);
  if (commands.write->parsed()) return RunCheckpointExport(flags.checkpoint, flags.json);
  const bool says_ranks = commands.links->count("--ranks") > 0;
  return RunLinks(says_ranks ? std::optional(flags.ranks) : std::nullopt, flags.json);
}

// Every process finds out by itself what is refused, so only one reports it.
int Fail(const CLI::App& app, const absl::Status& status, int code) {
  if (code == 1 || IsSpeaker()) ReportError(app, status);
  return code;
}

int RunAndPrint(const CLI::App& app, const Commands& commands, const Flags& flags) {
  // Of several processes, one alone does what they need not do together.
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
      "explains training steps; looks into checkpoints. "
      "Manual: docs/cli.md",
      "dtensor");
  Flags flags;
  const Commands commands = Declare(app, flags);
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  return RunGuarded(app, [&] { return RunAndPrint(app, commands, flags); });
}

}  // namespace dtensor::cli

int main(int argc, char** argv) { return dtensor::cli::Main(argc, argv); }
