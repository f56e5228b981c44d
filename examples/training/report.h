// What a run tells: a table for people, a JSON file for programs, and a dump that other frameworks
// can check.
#ifndef DTENSOR_EXAMPLES_TRAINING_REPORT_H_
#define DTENSOR_EXAMPLES_TRAINING_REPORT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "dtensor/examples/training/corpus.h"
#include "dtensor/examples/training/run.h"

namespace dtensor::training {

// Loss at start and end, speed, collectives and bytes predicted and counted, memory.
std::string Table(const TrainConfig& config, const RunResult& result,
                  const std::optional<Difference>& difference);

// Keys: see examples/llama/README.md. Numbers that are not finite are null. A file that is there is
// replaced as a whole. Errors: kUnavailable when the file cannot be written.
absl::Status WriteReport(const std::string& path, const TrainConfig& config,
                         const RunResult& result, const std::optional<Difference>& difference);

// Initial weights by their Hugging Face names, step.N.tokens, losses, grad_norms, grad.NAME, and
// what a repetition needs as metadata. Requires: result.initial_weights. Errors: as WriteReport.
absl::Status WriteDump(const std::string& path, const TrainConfig& config, const Corpus& corpus,
                       const RunResult& result);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_REPORT_H_
