#include "dtensor/examples/training/program.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "dtensor/examples/training/report.h"
#include "dtensor/parallel_plans/pipeline_schedule.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/program/command_line.h"
#include "dtensor/tools/program/output.h"
#include "dtensor/tools/program/progress.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::training {
namespace {

// The file in the user's cache that tools/setup creates.
std::string DefaultText() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return absl::StrCat(cache, "/dtensor/kjv.txt");
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    const passwd* user = getpwuid(getuid());
    home = user != nullptr ? user->pw_dir : "";
  }
  return absl::StrCat(home, "/.cache/dtensor/kjv.txt");
}

void DeclarePlan(CLI::App& app, ProgramFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--mesh", flags.mesh,
                 "sizes of axes; presets know dp, ep (of a model with experts), cp, pp and tp")
      ->capture_default_str();
  app.add_option(
      "--plan", config.plan,
      "a file of a plan's lines (a path with a / or a .), or a preset: some of dp, zero1, "
      "zero2, fsdp, hsdp, ep, cp, pp, tp, sp, none, joined by + (default: the mesh's axes, as "
      "dp+tp+sp)");
  app.add_option("--recompute", config.recompute,
                 "modules that are computed again in backward, as 'model.layers.*'")
      ->allow_extra_args(false);
  app.add_flag("--recompute-keeps-collectives", config.recompute_keeps_collectives,
               "they keep what they received, and do not communicate again");
  app.add_flag("--keep-gathered", config.keep_gathered,
               "keep activations that were gathered for backward, in place of each rank's part");
  flags.cp_pattern =
      app.add_option("--cp-pattern", config.cp_pattern,
                     "what cp does; double_ring and ulysses+... on --mesh='a=2,b=2;cp=a*b'")
          ->type_name(
              "zigzag|ring|striped|double_ring|ulysses|ulysses+ring|ulysses+zigzag|"
              "ulysses+striped")
          ->capture_default_str();
  app.add_flag("--allow-uneven", config.allow_uneven, "let shards differ in size");
}

void DeclareRun(CLI::App& app, ProgramFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--batch", config.batch, "sequences a step, over all ranks")
      ->capture_default_str();
  app.add_option("--micro-batches", config.micro_batches,
                 "parts of a batch, which go through the stages of pp one after the other")
      ->capture_default_str();
  app.add_option("--schedule", flags.schedule,
                 "of the stages of pp: zero_bubble waits less, and keeps more")
      ->type_name("1f1b|zero_bubble")
      ->capture_default_str();
  app.add_option("--seq", config.sequence, "tokens a sequence")->capture_default_str();
  app.add_option("--steps", config.steps, "training steps, at most")->capture_default_str();
  app.add_option("--seed", config.seed, "of weights and batches")->capture_default_str();
  app.add_option("--lr", config.lr, "learning rate after the warm-up")->capture_default_str();
  app.add_option("--warmup", config.warmup, "steps of warm-up")->capture_default_str();
  app.add_option(
         "--balance", config.balance,
         "of models with experts: the factor of the auxiliary loss that balances them; 0: none")
      ->capture_default_str();
  app.add_option(
         "--bias-rate", config.bias_rate,
         "of models with sigmoid routers: by how much each step moves the bias of an expert")
      ->capture_default_str();
  app.add_option(
         "--bucket-bytes", config.bucket_bytes,
         "gradients of so many bytes are reduced together while backward goes on; 0: all at "
         "its end")
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option("--dtype", flags.dtype, "of weights and activations")
      ->type_name("f32|f64|bf16")
      ->capture_default_str();
  app.add_option("--device", flags.device,
                 "what ranks compute on; GPUs are shared out among ranks that are threads")
      ->type_name("cpu|cuda")
      ->capture_default_str();
}

void DeclareFiles(CLI::App& app, ProgramFlags& flags) {
  app.add_option("--text", flags.text,
                 "the text to train on (default: the one that tools/setup makes)");
  app.add_option("--until", flags.until,
                 "stop once the held-out loss is below this (looked at every 25 steps)");
  app.add_option("--compare", flags.compare,
                 "repeat this many steps on one rank, on the cpu, and print the difference");
  app.add_option("--report", flags.report, "write a JSON report here");
  app.add_option("--trace", flags.options.contexts.trace_file,
                 "write what each rank did here, for Perfetto; a name in .txt: as tables");
  app.add_option("--save", flags.options.save, "write checkpoints into this folder")
      ->type_name("FOLDER");
  app.add_option("--save-every", flags.options.save_every,
                 "after so many steps, and after the last one")
      ->capture_default_str();
  app.add_option("--keep-last", flags.options.keep_last, "how many checkpoints stay; 0: all")
      ->capture_default_str();
  app.add_flag("--resume", flags.options.resume,
               "go on from the latest checkpoint in the folder of --save, if there is one");
  app.add_flag("--progress", flags.progress,
               "say on stderr how long the rest will take, on a terminal or not");
}

// The same error, with the flag whose value caused it in front.
absl::Status Of(absl::string_view flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

// Reads it only once: the file may be a pipe.
absl::Status ReadPlan(ProgramFlags& flags) {
  TrainConfig& config = flags.config;
  if (IsPlanFile(config.plan) && flags.cp_pattern->count() > 0) {
    return InvalidArgument({"--cp-pattern: it is of presets, and --plan is the file '", config.plan,
                            "'; say it in ContextParallel's lines there"});
  }
  if (IsPlanFile(config.plan)) config.cp_pattern.clear();
  DT_ASSIGN_OR_RETURN(config.lines, MakePlan(config));
  if (config.plan.empty()) config.plan = DefaultPreset(config.mesh);
  return absl::OkStatus();
}

absl::Status ReadConfig(ProgramFlags& flags, const TrainingProgram& program) {
  absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(flags.mesh);
  if (!mesh.ok()) return Of("--mesh", mesh.status());
  flags.config.mesh = *std::move(mesh);
  const absl::StatusOr<DType> dtype = ParseDType(flags.dtype);
  if (!dtype.ok()) return Of("--dtype", dtype.status());
  flags.config.dtype = *dtype;
  if (!IsFloat(*dtype)) {
    return InvalidArgument({"--dtype: train in f32, f64 or bf16, not ", flags.dtype});
  }
  if (flags.cp_pattern->count() > 0 && !flags.config.mesh.Find("cp").ok()) {
    return InvalidArgument({"--cp-pattern: ", flags.config.mesh.ToString(), " has no axis cp; add ",
                            "one to --mesh, as in cp=2, or leave the flag out"});
  }
  if (program.read_model) DT_RETURN_IF_ERROR(program.read_model(flags.config));
  DT_RETURN_IF_ERROR(flags.config.Validate());
  return ReadPlan(flags);
}

absl::Status ReadRest(ProgramFlags& flags) {
  const absl::StatusOr<PipelineSchedule> schedule = ParsePipelineSchedule(flags.schedule);
  if (!schedule.ok()) return InvalidArgument({"--schedule: ", schedule.status().message()});
  flags.config.schedule = *schedule;
  if (*schedule != PipelineSchedule::k1F1B && !flags.config.mesh.Find("pp").ok()) {
    return InvalidArgument({"--schedule: ", flags.config.mesh.ToString(), " has no axis pp; add ",
                            "one to --mesh, as in pp=2, or leave the flag out"});
  }
  if (flags.device != "cpu" && flags.device != "cuda") {
    return InvalidArgument({"--device: take cpu or cuda, not ", flags.device});
  }
  if (flags.device == "cuda") flags.options.device = Device::Kind::kCuda;
  if (!(flags.until >= 0)) return InvalidArgument({"--until: take a loss of 0 or more"});
  if (flags.compare < 0) return InvalidArgument({"--compare: take 0 steps or more"});
  if (flags.options.save_every < 1) {
    return InvalidArgument({"--save-every: take 1 step or more"});
  }
  if (flags.options.keep_last < 0) return InvalidArgument({"--keep-last: take 0 or more"});
  if (flags.options.resume && flags.options.save.empty()) {
    return InvalidArgument({"--resume: name the folder, by --save"});
  }
  if (flags.options.resume && (flags.compare > 0 || !flags.dump.empty())) {
    return InvalidArgument({"--resume: the first step, which --compare and --dump look at, may be ",
                            "over; leave these out"});
  }
  if (flags.text.empty()) flags.text = DefaultText();
  if (flags.until > 0) flags.options.stop_below = flags.until;
  flags.options.keep_tensors = flags.compare > 0 || !flags.dump.empty();
  return absl::OkStatus();
}

// Files such as /dev/null are never the same file.
bool AreOneFile(const std::string& a, const std::string& b) {
  std::error_code error;  // ignored: files may not exist yet
  if (std::filesystem::exists(a, error) && !std::filesystem::is_regular_file(a, error))
    return false;
  return std::filesystem::weakly_canonical(a, error) ==
             std::filesystem::weakly_canonical(b, error) ||
         std::filesystem::equivalent(a, b, error);
}

// Checks the output files before training: the run must not fail at its end because of something
// that can be seen now, nor replace a file that it reads or writes.
absl::Status CheckOutputs(const ProgramFlags& flags) {
  struct File {
    const char* flag;
    std::string path;
  };
  std::vector<File> files = {{"--text", flags.text}};
  for (const File& file : {File{"--report", flags.report}, File{"--dump", flags.dump},
                           File{"--trace", flags.options.contexts.trace_file}}) {
    if (file.path.empty()) continue;
    DT_RETURN_IF_ERROR(CheckOutputFile(file.flag, file.path));
    for (const File& known : files) {
      if (!AreOneFile(file.path, known.path)) continue;
      return InvalidArgument(
          {file.flag, ": '", file.path, "' is ", known.flag, "'s file; name another one"});
    }
    files.push_back(file);
  }
  return absl::OkStatus();
}

// On a terminal, or if asked for, shows how long it will take; else prints a line every ten steps.
void ShowProgress(Progress& progress, int64_t step, int64_t steps, double loss) {
  const std::string so_far = absl::StrFormat("loss %.4f", loss);
  progress.Report(step + 1, so_far);
  if (isatty(STDERR_FILENO) || (step != 0 && (step + 1) % 10 != 0)) return;
  std::fprintf(stderr, "step %ld of %ld, %s\n", static_cast<long>(step + 1),
               static_cast<long>(steps), so_far.c_str());
}

// Runs the same model and batches on one rank, for as many steps as are to be compared.
absl::StatusOr<Difference> CompareWithOneRank(const ProgramFlags& flags, const Corpus& corpus,
                                              const RunResult& result) {
  TrainConfig config = flags.config;
  DT_ASSIGN_OR_RETURN(config.mesh, DeviceMesh::Parse("tp=1"));
  config.lines = ParallelPlan();
  config.recompute.clear();
  config.steps = std::min<int64_t>(flags.compare, static_cast<int64_t>(result.losses.size()));
  TrainOptions options;
  options.keep_tensors = true;
  options.eval_batches = 1;
  options.as_launched = false;                // the world of processes has ended
  options.contexts.read_environment = false;  // do not overwrite the run's trace
  DT_ASSIGN_OR_RETURN(const RunResult reference, Train(config, corpus, options));
  return Compare(result, reference);
}

// If something cannot be written, the rest still is, since the run may have taken long. Returns the
// first error.
absl::Status WriteResults(const ProgramFlags& flags, const Corpus& corpus, const RunResult& result,
                          const std::optional<Difference>& difference) {
  absl::Status status = Print(Table(flags.config, result, difference));
  if (!flags.report.empty()) {
    status.Update(WriteReport(flags.report, flags.config, result, difference));
  }
  if (!flags.dump.empty()) status.Update(WriteDump(flags.dump, flags.config, corpus, result));
  if (!result.diverged) return status;
  status.Update(absl::InternalError(
      absl::StrCat("training diverged: after ", result.losses.size(), " steps the loss is ",
                   result.losses.empty() ? 0 : result.losses.back(), ", of held-out text ",
                   result.heldout_loss, "; take a smaller --lr or a longer --warmup")));
  return status;
}

// The text, or the reason why this process cannot train. Only rank 0 checks output files, since it
// writes them.
absl::StatusOr<Corpus> Prepare(ProgramFlags& flags, const TrainingProgram& program) {
  DT_RETURN_IF_ERROR(ReadConfig(flags, program));
  DT_RETURN_IF_ERROR(ReadRest(flags));
  DT_ASSIGN_OR_RETURN(Corpus corpus, program.load_text
                                         ? program.load_text(flags.text, flags.config)
                                         : Corpus::Load(flags.text, flags.config.sequence));
  if (IsSpeaker()) DT_RETURN_IF_ERROR(CheckOutputs(flags));
  return corpus;
}

absl::StatusOr<RunResult> TrainAndShow(ProgramFlags& flags, const absl::StatusOr<Corpus>& corpus) {
  const int64_t steps = flags.config.steps;
  Progress progress("steps", steps, Progress::OnStderr(flags.progress));
  flags.options.progress = [&](int64_t step, double loss) {
    ShowProgress(progress, step, steps, loss);
  };
  absl::StatusOr<RunResult> result = Train(flags.config, corpus, flags.options);
  flags.options.progress = nullptr;
  return result;
}

absl::Status Run(ProgramFlags& flags, const TrainingProgram& program) {
  const absl::StatusOr<Corpus> corpus = Prepare(flags, program);
  DT_ASSIGN_OR_RETURN(const RunResult result, TrainAndShow(flags, corpus));
  if (!IsSpeaker()) return absl::OkStatus();
  std::optional<Difference> difference;
  if (flags.compare > 0 && !result.diverged) {
    DT_ASSIGN_OR_RETURN(difference, CompareWithOneRank(flags, *corpus, result));
  }
  return WriteResults(flags, *corpus, result, difference);
}

int Fail(const CLI::App& app, const absl::Status& status, int code) {
  // Errors of plans and layouts about sizes.
  const bool uneven = absl::StrContains(status.message(), "allow uneven shards");
  PrintError(CommandName(app),
             absl::StrCat(status.message(), uneven ? " (--mesh, --seq, --allow-uneven)" : ""));
  return code;
}

}  // namespace

void DeclareFlags(CLI::App& app, ProgramFlags& flags) {
  DeclarePlan(app, flags);
  DeclareRun(app, flags);
  DeclareFiles(app, flags);
}

// If all ranks refuse something, all know it, and one of them prints it. A failure looks different
// on each rank, so each prints its own.
int RunProgram(const CLI::App& app, ProgramFlags& flags, const TrainingProgram& program) {
  const absl::Status status = Run(flags, program);
  if (status.ok()) return 0;
  const bool refused = status.code() == absl::StatusCode::kInvalidArgument ||
                       status.code() == absl::StatusCode::kNotFound;
  if (refused && !IsSpeaker()) return 2;
  return Fail(app, status, refused ? 2 : 1);
}

}  // namespace dtensor::training
