// The text to train on, as bytes or as a model's tokens, and the batches drawn from it.
#ifndef DTENSOR_EXAMPLES_TRAINING_CORPUS_H_
#define DTENSOR_EXAMPLES_TRAINING_CORPUS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor::training {

// The first 95% are for training, the rest is held out.
class Corpus {
 public:
  // Makes tokens from a text. If there is none, the tokens are the text's bytes.
  using Encode = std::function<std::vector<int64_t>(absl::string_view text)>;

  // Errors: kNotFound / kInvalidArgument, with the remedy, for a file that is missing, a folder, a
  // device, empty, of more than 1 GiB, or too short for a sequence of `sequence` tokens and the
  // token after it, in either part.
  static absl::StatusOr<Corpus> Load(const std::string& path, int64_t sequence,
                                     const Encode& encode = nullptr);

  // Tokens [batch, sequence + 1], row-major: `batch` windows of the training part, at positions
  // that depend only on (seed, step).
  std::vector<int32_t> TrainingBatch(int64_t batch, uint64_t seed, int64_t step) const;
  // The same from the held-out part, divided into adjacent windows: the `batch` windows from number
  // `index * batch` on, wrapping around.
  std::vector<int32_t> HeldOutBatch(int64_t batch, int64_t index) const;

  int64_t size() const;                        // in tokens
  int64_t largest() const;                     // the largest token
  absl::string_view unit() const;              // what a token is called: "byte" or "token"
  uint64_t digest() const { return digest_; }  // equal for equal tokens, in every process

 private:
  static absl::StatusOr<Corpus> Read(const std::string& path, const Encode& encode);
  std::vector<int32_t> Windows(const std::vector<int64_t>& starts) const;
  bool is_encoded_ = false;
  std::string text_;             // if not encoded
  std::vector<int32_t> tokens_;  // if encoded
  uint64_t digest_ = 0;
  int64_t sequence_ = 0;
  int64_t held_out_from_ = 0;
};

}  // namespace dtensor::training

#endif  // DTENSOR_EXAMPLES_TRAINING_CORPUS_H_
