// Continues to train a model of a Hugging Face folder on text. Ranks are threads, or processes that
// a launcher started. See README.md beside this file.
#include <optional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "dtensor/examples/generate/model.h"
#include "dtensor/examples/training/program.h"
#include "dtensor/hugging_face/adapter.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/lora.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_folder.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/tools/program/command_line.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::finetune {
namespace {

using generate::ModelFiles;
using training::Corpus;
using training::ProgramFlags;
using training::TrainConfig;
using training::TrainingProgram;

struct Flags {
  ProgramFlags common;
  std::string model = generate::DefaultModelFolder(), out;
  LoraOptions lora = {.rank = 0};  // 0: all weights are trained
  double lora_alpha = 0;           // 0: the rank
  std::string adapter, adapter_out;

  bool has_adapters() const { return lora.rank > 0 || !adapter.empty(); }
};

// Defaults for a model that is already trained, and a machine with a few cores.
void SetDefaults(ProgramFlags& flags) {
  flags.mesh = "tp=1";
  flags.config.batch = 4;
  flags.config.sequence = 128;
  flags.config.steps = 100;
  flags.config.lr = 2e-5;
  flags.config.warmup = 10;
}

void Declare(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.model,
                 "a Hugging Face folder: config.json, tokenizer.json, weights (default: the one "
                 "that examples/generate/fetch_smollm2 makes)")
      ->type_name("FOLDER");
  app.add_option("--out", flags.out,
                 "write the model that comes of it into this Hugging Face folder, as a whole")
      ->type_name("FOLDER");
  app.add_option("--lora-rank", flags.lora.rank,
                 "train adapters of this rank in place of the weights (default: the weights)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--lora-alpha", flags.lora_alpha,
                 "adapters are multiplied by this, divided by their rank (default: the rank)")
      ->check(CLI::Range(1e-6, 1e6))
      ->needs("--lora-rank");
  app.add_option("--lora-layers", flags.lora.layers, "names of the layers that get adapters")
      ->delimiter(',')
      ->needs("--lora-rank")
      ->capture_default_str();
  app.add_option("--adapter", flags.adapter, "begin with the adapters of this folder of PEFT's")
      ->excludes("--lora-rank")
      ->type_name("FOLDER");
  app.add_option("--adapter-out", flags.adapter_out,
                 "write the adapters into this folder, as PEFT has them")
      ->type_name("FOLDER");
}

// --- What differs from training a LLaMA from scratch.

// If key/value heads must be shared by ranks of tp, the mesh becomes one that says so.
absl::Status ReadModel(const ModelFiles& files, TrainConfig& config) {
  config.pretrained = {files.config, files.folder};
  TensorParallelOptions options;
  options.allow_uneven = config.allow_uneven;
  if (const auto planned = PlanTensorParallel(files.config, config.mesh, options); planned.ok()) {
    config.mesh = planned->mesh;
  }
  if (files.positions == 0 || config.sequence <= files.positions) return absl::OkStatus();
  return InvalidArgument({"--seq: ", absl::StrCat(config.sequence), " tokens, and the model of '",
                          files.folder, "' has positions for ", absl::StrCat(files.positions)});
}

absl::Status ReadAdapters(const Flags& flags, TrainConfig& config) {
  if (!flags.has_adapters()) {
    if (flags.adapter_out.empty()) return absl::OkStatus();
    return InvalidArgument({"--adapter-out: there are no adapters; give --lora-rank or --adapter"});
  }
  if (!flags.out.empty() && flags.out == flags.adapter_out) {
    return InvalidArgument({"--adapter-out: '", flags.out, "' is --out, too, and who reads the ",
                            "model there would add the adapters once more; give another folder"});
  }
  config.adapter = flags.adapter;
  config.lora = flags.lora;
  config.lora->alpha =
      flags.lora_alpha > 0 ? flags.lora_alpha : static_cast<double>(flags.lora.rank);
  if (flags.adapter.empty()) return absl::OkStatus();
  const absl::StatusOr<LoraOptions> read = ReadLoraOptions(flags.adapter);
  if (!read.ok()) return InvalidArgument({"--adapter: ", read.status().message()});
  config.lora = *read;
  return absl::OkStatus();
}

// Before training: checks whether the folder could be created, or replaced, now.
absl::Status CheckOut(absl::string_view flag, const std::string& out) {
  if (out.empty() || !IsSpeaker()) return absl::OkStatus();
  const absl::Status made = AtomicFolder::Create(FileSystem::OfThisMachine(), out).status();
  if (made.ok()) return made;
  return InvalidArgument({flag, ": ", made.message()});
}

// After training. Adapters are a part of the model that is written.
absl::Status Write(Module& model, const Flags& flags, const ModelFiles& files,
                   const std::optional<LoraOptions>& lora) {
  if (!flags.adapter_out.empty()) {
    DT_RETURN_IF_ERROR(
        SaveAdapter(model, flags.adapter_out, {.config = LoraToJson(*lora, flags.model)}));
  }
  if (flags.out.empty()) return absl::OkStatus();
  if (lora) DT_RETURN_IF_ERROR(MergeLora(model));
  SaveHuggingFaceOptions options;
  options.config = files.config;
  options.others["tokenizer.json"] = files.tokens;
  return SaveHuggingFace(model, flags.out, options);
}

absl::StatusOr<Corpus> LoadText(const ModelFiles& files, const std::string& path,
                                const TrainConfig& config) {
  DT_ASSIGN_OR_RETURN(Corpus corpus, Corpus::Load(path, config.sequence, [&](auto text) {
                        return files.tokenizer.Encode(text);
                      }));
  if (corpus.largest() < files.vocabulary) return corpus;
  return InvalidArgument({"--model: '", files.folder, "/tokenizer.json' makes token ",
                          absl::StrCat(corpus.largest()), " of the text, and config.json has a ",
                          "vocab_size of ", absl::StrCat(files.vocabulary),
                          "; take the tokenizer of this model"});
}

// Every rank has read the folder, or has the error, which it reports where ranks agree on errors.
int RunProgram(const CLI::App& app, Flags& flags) {
  absl::StatusOr<ModelFiles> files = generate::ReadModelFiles(flags.model);
  if (!files.ok()) {
    files =
        absl::Status(files.status().code(), absl::StrCat("--model: ", files.status().message()));
  }
  std::optional<LoraOptions> lora;
  TrainingProgram program;
  program.read_model = [&](TrainConfig& config) {
    DT_RETURN_IF_ERROR(files.status());
    DT_RETURN_IF_ERROR(CheckOut("--out", flags.out));
    DT_RETURN_IF_ERROR(CheckOut("--adapter-out", flags.adapter_out));
    DT_RETURN_IF_ERROR(ReadAdapters(flags, config));
    lora = config.lora;
    return ReadModel(*files, config);
  };
  program.load_text = [&](const std::string& path, const TrainConfig& config) {
    return LoadText(*files, path, config);
  };
  flags.common.options.finish = [&](Module& model) { return Write(model, flags, *files, lora); };
  return training::RunProgram(app, flags.common, program);
}

}  // namespace

// 0: done; 1: the run failed; 2: bad flags or input.
int Main(int argc, char** argv) {
  CLI::App app(
      "Goes on training a model of a Hugging Face folder on text, on ranks that are threads, or, "
      "started by a launcher (dtrun, mpirun, torchrun, Slurm), processes.",
      "finetune");
  Flags flags;
  SetDefaults(flags.common);
  Declare(app, flags);
  training::DeclareFlags(app, flags.common);
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  return RunGuarded(app, [&] { return RunProgram(app, flags); });
}

}  // namespace dtensor::finetune

int main(int argc, char** argv) { return dtensor::finetune::Main(argc, argv); }
