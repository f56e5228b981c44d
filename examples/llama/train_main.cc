// Trains a byte-level LLaMA on text, on ranks that are threads. See README.md beside this file.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/examples/llama/corpus.h"
#include "dtensor/examples/llama/report.h"
#include "dtensor/examples/llama/run.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor::llama {
namespace {

struct Flags {
  std::string mesh = "dp=2,tp=2", dtype = "f32", text, report, dump;
  TrainConfig config;
  TrainOptions options;
  double until = 0;
  int64_t compare = 0;
};

std::string DefaultText() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base =
      cache != nullptr && *cache ? cache : absl::StrCat(home != nullptr ? home : ".", "/.cache");
  return absl::StrCat(base, "/dtensor/kjv.txt");
}

void Declare(CLI::App& app, Flags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--mesh", flags.mesh,
                 "sizes of dp (splits the batch), cp (the sequence) and tp (the layers)")
      ->capture_default_str();
  app.add_option("--plan", config.plan, "tp: tensor parallel; tp+sp: and sequence parallel; none")
      ->capture_default_str();
  app.add_option("--cp_pattern", config.cp_pattern,
                 "what cp does: ring, zigzag, striped, ulysses; double_ring, ulysses+ring, "
                 "ulysses+zigzag, ulysses+striped on --mesh='a=2,b=2;cp=a*b'")
      ->capture_default_str();
  app.add_option("--dim", config.model.dim, "features of the residual stream")
      ->capture_default_str();
  app.add_option("--layers", config.model.layers, "decoder blocks")->capture_default_str();
  app.add_option("--heads", config.model.heads, "query heads")->capture_default_str();
  app.add_option("--kv_heads", config.model.kv_heads, "key and value heads")->capture_default_str();
  app.add_option("--hidden", config.model.hidden, "features of the MLP (0: 8/3 dim)")
      ->capture_default_str();
  app.add_option("--batch", config.batch, "sequences a step, over all ranks")
      ->capture_default_str();
  app.add_option("--seq", config.sequence, "bytes a sequence")->capture_default_str();
  app.add_option("--steps", config.steps, "training steps, at most")->capture_default_str();
  app.add_option("--seed", config.seed, "of weights and batches")->capture_default_str();
  app.add_option("--lr", config.lr, "learning rate after the warm-up")->capture_default_str();
  app.add_option("--warmup", config.warmup, "steps of warm-up")->capture_default_str();
  app.add_option("--dtype", flags.dtype, "f32, f64 or bf16")->capture_default_str();
  app.add_option("--text", flags.text, "the text (default: the one that tools/setup makes)");
  app.add_option("--until", flags.until,
                 "stop once the held-out loss is below this (looked at every 25 steps)");
  app.add_option("--compare", flags.compare,
                 "repeat this many steps on one rank and print the difference");
  app.add_option("--report", flags.report, "write a JSON report here");
  app.add_option("--dump", flags.dump,
                 "write weights, batches, losses and gradients here (safetensors)");
  app.add_flag("--allow_uneven", config.allow_uneven, "let shards differ in size");
}

absl::Status Resolve(Flags& flags) {
  DT_ASSIGN_OR_RETURN(flags.config.mesh, DeviceMesh::Parse(flags.mesh));
  DT_ASSIGN_OR_RETURN(flags.config.dtype, ParseDType(flags.dtype));
  if (!IsFloat(flags.config.dtype))
    return InvalidArgument({"--dtype: train in f32, f64 or bf16, not ", flags.dtype});
  if (flags.config.steps < 1) return InvalidArgument({"--steps must be at least 1"});
  DT_RETURN_IF_ERROR(flags.config.model.Validate());
  DT_RETURN_IF_ERROR(MakePlan(flags.config).status());
  if (flags.text.empty()) flags.text = DefaultText();
  if (flags.until > 0) flags.options.stop_below = flags.until;
  flags.options.keep_tensors = flags.compare > 0 || !flags.dump.empty();
  return absl::OkStatus();
}

// A bar on a terminal, a line every ten steps elsewhere.
void ShowProgress(int64_t step, int64_t steps, double loss) {
  if (isatty(STDERR_FILENO)) {
    constexpr int kWidth = 40;
    const int filled = static_cast<int>(kWidth * (step + 1) / steps);
    const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
    std::fprintf(stderr, "\r[%s] step %ld of %ld, loss %.4f ", bar.c_str(),
                 static_cast<long>(step + 1), static_cast<long>(steps), loss);
    if (step + 1 == steps) std::fputc('\n', stderr);
  } else if (step == 0 || (step + 1) % 10 == 0) {
    std::fprintf(stderr, "step %ld of %ld, loss %.4f\n", static_cast<long>(step + 1),
                 static_cast<long>(steps), loss);
  }
}

// The same model and batches on one rank, for as many steps as are compared.
absl::StatusOr<Difference> CompareWithOneRank(const Flags& flags, const Corpus& corpus,
                                              const RunResult& result) {
  TrainConfig config = flags.config;
  DT_ASSIGN_OR_RETURN(config.mesh, DeviceMesh::Parse("tp=1"));
  config.steps = std::min<int64_t>(flags.compare, static_cast<int64_t>(result.losses.size()));
  TrainOptions options;
  options.keep_tensors = true;
  options.eval_batches = 1;
  DT_ASSIGN_OR_RETURN(const RunResult reference, Train(config, corpus, options));
  return Compare(result, reference);
}

absl::Status Run(Flags& flags) {
  DT_ASSIGN_OR_RETURN(const Corpus corpus, Corpus::Load(flags.text, flags.config.sequence));
  flags.options.progress = [&](int64_t step, double loss) {
    ShowProgress(step, flags.config.steps, loss);
  };
  DT_ASSIGN_OR_RETURN(const RunResult result, Train(flags.config, corpus, flags.options));
  if (isatty(STDERR_FILENO)) std::fputc('\n', stderr);
  std::optional<Difference> difference;
  if (flags.compare > 0) {
    DT_ASSIGN_OR_RETURN(difference, CompareWithOneRank(flags, corpus, result));
  }
  std::fputs(Table(flags.config, result, difference).c_str(), stdout);
  if (!flags.report.empty())
    DT_RETURN_IF_ERROR(WriteReport(flags.report, flags.config, result, difference));
  if (!flags.dump.empty()) DT_RETURN_IF_ERROR(WriteDump(flags.dump, flags.config, corpus, result));
  return absl::OkStatus();
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "train: %s\n", std::string(status.message()).c_str());
  return code;
}

}  // namespace

// 0: done; 1: the run failed; 2: bad flags or input.
int Main(int argc, char** argv) {
  CLI::App app("Trains a byte-level LLaMA on text, on ranks that are threads.");
  Flags flags;
  Declare(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "train: %s (--help lists the flags)\n", error.what());
    return 2;
  }
  if (const absl::Status status = Resolve(flags); !status.ok()) return Fail(status, 2);
  const absl::Status status = Run(flags);
  if (status.ok()) return 0;
  const bool refused = status.code() == absl::StatusCode::kInvalidArgument ||
                       status.code() == absl::StatusCode::kNotFound;
  return Fail(status, refused ? 2 : 1);
}

}  // namespace dtensor::llama

int main(int argc, char** argv) { return dtensor::llama::Main(argc, argv); }
