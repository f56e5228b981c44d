// What programs that train have in common: flags, what is refused and by whom it is told, what is
// shown and written. A program adds flags of its own, and says what it trains:
//
//   CLI::App app("Trains ...", "train");
//   ProgramFlags flags;
//   DeclareFlags(app, flags);
//   ...                                    // its own
//   if (const std::optional<int> status = ParseCommandLine(app, argc, argv)) return *status;
//   return RunGuarded(app, [&] { return RunProgram(app, flags); });
#ifndef DTENSOR_EXAMPLES_TRAINING_PROGRAM_H_
#define DTENSOR_EXAMPLES_TRAINING_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/examples/training/corpus.h"
#include "dtensor/examples/training/run.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dtensor::training {

// Their values. What is set before DeclareFlags is the default.
struct ProgramFlags {
  std::string mesh = "dp=2,tp=2", dtype = "f32", device = "cpu", text, report;
  std::string dump;  // of a program that declares it
  TrainConfig config;
  TrainOptions options;
  double until = 0;
  int64_t compare = 0;
  CLI::Option* cp_pattern = nullptr;
  bool progress = false;
};

// Of the flags that examples/llama/README.md lists all but those of the model, and --dump.
void DeclareFlags(CLI::App& app, ProgramFlags& flags);

// What a program does in its own way; each is asked in every process.
struct TrainingProgram {
  // Completes the config, of which mesh and dtype are known. Null: nothing is missing.
  std::function<absl::Status(TrainConfig& config)> read_model;
  // The text's tokens. Null: its bytes.
  std::function<absl::StatusOr<Corpus>(const std::string& path, const TrainConfig& config)>
      load_text;
};

// Trains, prints and writes what the flags ask for. The exit status: 0 done; 1 the run failed; 2
// what is refused.
int RunProgram(const CLI::App& app, ProgramFlags& flags, const TrainingProgram& program = {});

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_PROGRAM_H_
