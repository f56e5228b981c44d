// The text to train on, as bytes, and the batches drawn from it.
#ifndef DTENSOR_EXAMPLES_LLAMA_CORPUS_H_
#define DTENSOR_EXAMPLES_LLAMA_CORPUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace dtensor::llama {

// The first 95% train, the rest is held out.
class Corpus {
 public:
  // Errors: kNotFound / kInvalidArgument, with the remedy, for a file that is missing, a folder, a
  // device, empty, of more than 1 GiB, or too short for a sequence of `sequence` bytes and the byte
  // after it in either part.
  static absl::StatusOr<Corpus> Load(const std::string& path, int64_t sequence);

  // Tokens [batch, sequence + 1], row-major: `batch` windows of the training part at places that
  // depend on (seed, step) alone.
  std::vector<int32_t> TrainingBatch(int64_t batch, uint64_t seed, int64_t step) const;
  // The same of the held-out part: windows `index * batch` and on of those that lie side by side,
  // wrapping round.
  std::vector<int32_t> HeldOutBatch(int64_t batch, int64_t index) const;

  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  uint64_t digest() const { return digest_; }  // equal for equal texts, in every process

 private:
  static absl::StatusOr<Corpus> Read(const std::string& path);
  std::vector<int32_t> Windows(const std::vector<int64_t>& starts) const;
  std::string text_;
  uint64_t digest_ = 0;
  int64_t sequence_ = 0;
  int64_t held_out_from_ = 0;
};

}  // namespace dtensor::llama

#endif  // DTENSOR_EXAMPLES_LLAMA_CORPUS_H_
