// The output of a run: a table for people, a JSON file for programs, and a dump that other
// frameworks can check.
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

// For the keys, see examples/llama/README.md. Numbers that are not finite become null. An existing
// file is replaced as a whole. Errors: kUnavailable if the file cannot be written.
absl::Status WriteReport(const std::string& path, const TrainConfig& config,
                         const RunResult& result, const std::optional<Difference>& difference);

// Initial weights under their Hugging Face names, step.N.tokens, losses, grad_norms, grad.NAME,
// and, as metadata, what is needed to repeat the run. Requires: result.initial_weights. Errors: as
// WriteReport.
absl::Status WriteDump(const std::string& path, const TrainConfig& config, const Corpus& corpus,
                       const RunResult& result);

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_REPORT_H_
