// What training programs have in common: flags, checks and error reporting, output. A program adds
// its own flags and says what it trains:
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

// Their values. Values that are set before DeclareFlags are the defaults.
struct ProgramFlags {
  std::string mesh = "dp=2,tp=2", dtype = "f32", device = "cpu", text, report, schedule = "1f1b";
  std::string dump;  // only if the program declares this flag
  TrainConfig config;
  TrainOptions options;
  double until = 0;
  int64_t compare = 0;
  CLI::Option* cp_pattern = nullptr;
  bool progress = false;
};

// Declares the flags that examples/llama/README.md lists, except those of the model and --dump.
void DeclareFlags(CLI::App& app, ProgramFlags& flags);

// What a program does in its own way. Each function is called in every process.
struct TrainingProgram {
  // Completes the config; its mesh and dtype are already set. Null: nothing is missing.
  std::function<absl::Status(TrainConfig& config)> read_model;
  // Loads the text as tokens. Null: as bytes.
  std::function<absl::StatusOr<Corpus>(const std::string& path, const TrainConfig& config)>
      load_text;
};

// Trains, and prints and writes what the flags ask for. Returns the exit status: 0 done; 1 the run
// failed; 2 flags or input were refused.
int RunProgram(const CLI::App& app, ProgramFlags& flags, const TrainingProgram& program = {});

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_PROGRAM_H_
