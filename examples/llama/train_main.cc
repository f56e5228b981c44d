// Trains a byte-level LLaMA on text, on ranks that are threads, or processes that a launcher
// started. See README.md beside this file.
#include <optional>

#include "CLI/CLI.hpp"
#include "dtensor/examples/training/program.h"
#include "dtensor/tools/program/command_line.h"

namespace dtensor::training {
namespace {

void DeclareModel(CLI::App& app, ProgramFlags& flags) {
  TrainConfig& config = flags.config;
  app.add_option("--dim", config.model.dim, "features of the residual stream")
      ->capture_default_str();
  app.add_option("--layers", config.model.layers, "decoder blocks")->capture_default_str();
  app.add_option("--heads", config.model.heads, "query heads")->capture_default_str();
  app.add_option("--kv-heads", config.model.kv_heads, "key and value heads")->capture_default_str();
  app.add_option("--hidden", config.model.hidden, "features of the MLP (0: 8/3 dim)")
      ->capture_default_str();
  app.add_option("--experts", config.model.experts,
                 "MLPs of --hidden features in each layer, of which a token passes some; 0: one")
      ->capture_default_str();
  app.add_option("--experts-per-token", config.model.experts_per_token,
                 "how many it passes; a mesh may have the axis ep")
      ->capture_default_str();
  app.add_flag_callback(
      "--sigmoid-router", [&config] { config.model.router_score = RouterScore::kSigmoid; },
      "as DeepSeek-V3: experts are scored by sigmoids, and a bias balances them");
  app.add_option("--dump", flags.dump,
                 "write weights, batches, losses and gradients here (safetensors)");
}

}  // namespace

// 0: done; 1: the run failed; 2: bad flags or input.
int Main(int argc, char** argv) {
  CLI::App app(
      "Trains a byte-level LLaMA on text, on ranks that are threads, or, started by a launcher "
      "(dtrun, mpirun, torchrun, Slurm), processes.",
      "train");
  ProgramFlags flags;
  DeclareFlags(app, flags);
  DeclareModel(app, flags);
  if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
  return RunGuarded(app, [&] { return RunProgram(app, flags); });
}

}  // namespace dtensor::training

int main(int argc, char** argv) { return dtensor::training::Main(argc, argv); }
