// Continues a text with a model of a Hugging Face folder. Ranks are threads, or processes that a
// launcher started. See README.md beside this file.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/examples/generate/model.h"
#include "dtensor/examples/generate/tokenizer.h"
#include "dtensor/generation/generate.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/gather_values.h"
#include "dtensor/tensor/join_world.h"
#include "dtensor/tools/program/command_line.h"
#include "dtensor/tools/program/output.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::generate {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string model = DefaultModelFolder(), prompt = "Gravity is the force that", mesh = "tp=1";
  std::string dtype = "f32";
  int64_t tokens = 200;
  SamplingOptions sampling;
  bool chat = false, ignore_end = false;
};

void Declare(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.model,
                 "a Hugging Face folder: config.json, tokenizer.json, weights (default: the one "
                 "that fetch_smollm2 makes)");
  app.add_option("--prompt", flags.prompt, "the text to go on with")->capture_default_str();
  app.add_flag("--chat", flags.chat, "the prompt is a question, as <|im_start|>user has it");
  app.add_option("--tokens", flags.tokens, "how many, at most")->capture_default_str();
  app.add_option("--mesh", flags.mesh, "the ranks: tp splits the model")->capture_default_str();
  app.add_option("--temperature", flags.sampling.temperature, "0: always the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", flags.sampling.top_k, "of so many likeliest tokens; 0: of all")
      ->capture_default_str();
  app.add_option("--top-p", flags.sampling.top_p, "of the likeliest, up to this probability")
      ->capture_default_str();
  app.add_option("--seed", flags.sampling.seed, "of what is drawn")->capture_default_str();
  app.add_option("--dtype", flags.dtype, "of weights and activations")
      ->type_name("f32|bf16|f64")
      ->capture_default_str();
  app.add_flag("--ignore-end", flags.ignore_end, "go on behind the end of the text");
}

struct Job {
  ModelFiles files;
  DeviceMesh mesh;
  DType dtype = DType::kF32;
  std::vector<int64_t> prompt;
};

// Checks the flags and what they name.
absl::StatusOr<Job> Prepare(const Flags& flags) {
  const auto of = [](absl::string_view flag, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
  };
  absl::StatusOr<ModelFiles> files = ReadModelFiles(flags.model);
  if (!files.ok()) return of("--model", files.status());
  Job job{.files = *std::move(files)};
  const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(flags.mesh);
  if (!mesh.ok()) return of("--mesh", mesh.status());
  job.mesh = *mesh;
  const absl::StatusOr<DType> dtype = ParseDType(flags.dtype);
  if (!dtype.ok() || !IsFloat(*dtype)) {
    return InvalidArgument({"--dtype: take f32, bf16 or f64, not ", flags.dtype});
  }
  job.dtype = *dtype;
  DT_RETURN_IF_ERROR(flags.sampling.Validate());
  const std::string text = flags.chat ? absl::StrCat("<|im_start|>user\n", flags.prompt,
                                                     "<|im_end|>\n<|im_start|>assistant\n")
                                      : flags.prompt;
  job.prompt = job.files.tokenizer.Encode(text);
  if (job.prompt.empty()) return InvalidArgument({"--prompt: give a text"});
  constexpr int64_t kMost = int64_t{1} << 40;
  const int64_t positions = static_cast<int64_t>(job.prompt.size()) + std::min(flags.tokens, kMost);
  if (flags.tokens < 1 || flags.tokens > kMost ||
      (job.files.positions > 0 && positions > job.files.positions)) {
    return InvalidArgument({"--tokens: with the prompt's, ", absl::StrCat(positions),
                            " tokens; take 1 or more, and ", absl::StrCat(job.files.positions),
                            " in all, which the model has positions for"});
  }
  return job;
}

struct Speed {
  Clock::time_point start = Clock::now(), first, last;
  int64_t tokens = 0;

  void Count() {
    last = Clock::now();
    if (tokens++ == 0) first = last;
  }
  std::string Text() const {
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const double rate = tokens > 1 ? static_cast<double>(tokens - 1) / seconds(last - first) : 0;
    return absl::StrFormat("%d tokens; the first after %.2f s, then %.1f tokens/s\n", tokens,
                           seconds(first - start), rate);
  }
};

absl::Status RunRank(Context& context, const Flags& flags, const absl::StatusOr<Job>& job) {
  DT_RETURN_IF_ERROR(AgreeOn(context, job.status()));
  DT_ASSIGN_OR_RETURN(const LoadedModel loaded,
                      LoadModel(context, job->files, job->mesh, job->dtype));
  const int64_t capacity = static_cast<int64_t>(job->prompt.size()) + flags.tokens;
  DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(*loaded.model, {.capacity = capacity}));
  const bool speaks = context.rank() == 0;
  CharacterStream characters;
  Speed speed;
  absl::Status printed;
  GenerateOptions options{.tokens = flags.tokens, .sampling = flags.sampling};
  if (!flags.ignore_end) options.stop = job->files.ends;
  options.on_token = [&](int64_t, int64_t token) {
    speed.Count();
    const bool ends =
        std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end();
    if (speaks && !ends) printed.Update(Print(characters.Add(job->files.tokenizer.Decode(token))));
    return true;
  };
  if (speaks && !flags.chat) DT_RETURN_IF_ERROR(Print(flags.prompt));
  DT_RETURN_IF_ERROR(Generate(*cache, context, loaded.mesh, {job->prompt}, options).status());
  if (!speaks) return absl::OkStatus();
  printed.Update(Print(absl::StrCat(characters.Rest(), "\n")));
  std::fputs(speed.Text().c_str(), stderr);
  return printed;
}

int RunProgram(const CLI::App& app, const Flags& flags) {
  const absl::StatusOr<Job> job = Prepare(flags);
  const int ranks = job.ok() ? job->mesh.size() : 1;
  const absl::Status status =
      !job.ok() && LaunchedRanks() == 0
          ? job.status()
          : RunWorld(ranks, [&](Context& context) { return RunRank(context, flags, job); });
  if (status.ok()) return 0;
  const bool refused = status.code() == absl::StatusCode::kInvalidArgument ||
                       status.code() == absl::StatusCode::kNotFound;
  if (!refused || IsSpeaker()) PrintError(CommandName(app), status.message());
  return refused ? 2 : 1;
}

}  // namespace

// 0: done; 1: the run failed; 2: bad flags or input.
int Main(int argc, char** argv) {
  CLI::App app(
      "Goes on with a text by a model of a Hugging Face folder, on ranks that are threads, or, "
      "started by a launcher (dtrun, mpirun, torchrun, Slurm), processes.",
      "generate");
  Flags flags;
  Declare(app, flags);
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  return RunGuarded(app, [&] { return RunProgram(app, flags); });
}

}  // namespace dtensor::generate

int main(int argc, char** argv) { return dtensor::generate::Main(argc, argv); }
