#include "dtensor/examples/training/corpus.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/layout/digest.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"

namespace dtensor::training {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a small generator with the same numbers everywhere.
uint64_t Next(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

}  // namespace

absl::StatusOr<Corpus> Corpus::Read(const std::string& path, const Encode& encode) {
  constexpr int64_t kMost = int64_t{1} << 30;
  absl::StatusOr<std::string> text = ReadFile(path, kMost);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat("--text: ", text.status().message(),
                     "; run tools/setup, which makes a text, or name another file"));
  }
  if (text->empty()) {
    return InvalidArgument({"--text: '", path, "' is empty; name a file with text"});
  }
  Corpus corpus;
  Digest digest;
  if (encode == nullptr) {
    corpus.text_ = *std::move(text);
    digest.Add(corpus.text_);
  } else {
    corpus.is_encoded_ = true;
    const std::vector<int64_t> ids = encode(*text);
    corpus.tokens_.assign(ids.begin(), ids.end());
    for (const int64_t id : ids) digest.Add(id);
  }
  corpus.digest_ = digest.value();
  return corpus;
}

int64_t Corpus::size() const {
  return static_cast<int64_t>(is_encoded_ ? tokens_.size() : text_.size());
}

int64_t Corpus::largest() const {
  if (is_encoded_) return tokens_.empty() ? 0 : *std::max_element(tokens_.begin(), tokens_.end());
  unsigned char largest = 0;
  for (const char byte : text_) largest = std::max(largest, static_cast<unsigned char>(byte));
  return largest;
}

absl::string_view Corpus::unit() const { return is_encoded_ ? "token" : "byte"; }

absl::StatusOr<Corpus> Corpus::Load(const std::string& path, int64_t sequence,
                                    const Encode& encode) {
  DT_ASSIGN_OR_RETURN(Corpus corpus, Read(path, encode));
  corpus.sequence_ = sequence;
  corpus.held_out_from_ = corpus.size() / 20 * 19;
  // A window is a sequence and the token that follows it.
  const int64_t longest =
      std::min(corpus.held_out_from_, corpus.size() - corpus.held_out_from_) - 1;
  if (sequence >= 1 && sequence <= longest) return corpus;
  return InvalidArgument(
      {"--seq: windows of ", absl::StrCat(sequence), " + 1 ", corpus.unit(),
       "s do not fit into both parts of '", path, "', of which the last twentieth is held out (",
       absl::StrCat(corpus.size()), " ", corpus.unit(), "s in all); choose ",
       longest < 1 ? "" : absl::StrCat("a --seq from 1 to ", longest, ", or "), "a longer text"});
}

std::vector<int32_t> Corpus::TrainingBatch(int64_t batch, uint64_t seed, int64_t step) const {
  uint64_t state = seed * 0x100000001B3ull + static_cast<uint64_t>(step);
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < batch; ++i) {
    starts.push_back(
        static_cast<int64_t>(Next(state) % static_cast<uint64_t>(held_out_from_ - sequence_)));
  }
  return Windows(starts);
}

std::vector<int32_t> Corpus::HeldOutBatch(int64_t batch, int64_t index) const {
  const int64_t windows = (size() - held_out_from_) / (sequence_ + 1);
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < batch; ++i) {
    starts.push_back(held_out_from_ + (index * batch + i) % windows * (sequence_ + 1));
  }
  return Windows(starts);
}

std::vector<int32_t> Corpus::Windows(const std::vector<int64_t>& starts) const {
  std::vector<int32_t> tokens;
  tokens.reserve(starts.size() * (sequence_ + 1));
  for (const int64_t start : starts) {
    for (int64_t i = start; i <= start + sequence_; ++i) {
      tokens.push_back(is_encoded_ ? tokens_[i] : static_cast<unsigned char>(text_[i]));
    }
  }
  return tokens;
}

}  // namespace dtensor::training
