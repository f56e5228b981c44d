// Tokenizer: text to a model's tokens and back, as Hugging Face's tokenizer.json says: byte-level
// BPE, which GPT-2 and SmolLM2 have.
//
//   DT_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Parse(text_of_tokenizer_json));
//   const std::vector<int64_t> ids = tokenizer.Encode("Hello, world!");
//
// A text is cut at the file's added tokens ("<|im_end|>"), which stay whole; what is between them
// into words, by GPT-2's expression (with Digits before it, every digit is a word of its own); and
// a word's bytes are merged, the pair of the lowest rank first, as long as the file has one. Any
// bytes are encoded, and decoded to the same bytes; what is no UTF-8 counts as punctuation.
#ifndef DTENSOR_EXAMPLES_GENERATE_TOKENIZER_H_
#define DTENSOR_EXAMPLES_GENERATE_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor::generate {

class Tokenizer {
 public:
  Tokenizer() = default;  // knows no token
  // Errors: kInvalidArgument for text that is no JSON, and whatever the file has that would give
  // other tokens than Hugging Face's library, by name: another model than BPE, byte_fallback,
  // prefixes or suffixes of words, a normalizer, another pre_tokenizer than ByteLevel or Digits
  // before it, a post_processor that adds tokens; and for merges and tokens that contradict each
  // other.
  static absl::StatusOr<Tokenizer> Parse(absl::string_view json);

  std::vector<int64_t> Encode(absl::string_view text) const;
  // The bytes of tokens; those that there are not have none. One token may be a part of a
  // character.
  std::string Decode(int64_t id) const;
  // The number of this token, as the file spells it; -1: there is none.
  int64_t IdOf(absl::string_view token) const;

 private:
  void EncodeText(absl::string_view text, std::vector<int64_t>& ids) const;
  void EncodeWord(absl::string_view word, std::vector<int64_t>& ids) const;

  bool splits_digits_ = false, splits_words_ = true, ignores_merges_ = false;
  bool adds_space_ = false;
  int64_t bytes_[256] = {};                        // the token of each byte; -1: none
  std::vector<std::string> tokens_;                // bytes, by id
  absl::flat_hash_map<std::string, int64_t> ids_;  // by bytes, of the model's own
  // Of two neighbours: rank and what they become.
  absl::flat_hash_map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> merges_;
  std::vector<std::pair<std::string, int64_t>> added_;  // the longest first
  absl::flat_hash_map<std::string, int64_t> spelled_;   // as the file spells them
};

// Bytes as whole characters of UTF-8: what a token leaves of one waits for the next.
class CharacterStream {
 public:
  // What is whole now. Bytes that can begin nothing are passed on as they are.
  std::string Add(absl::string_view bytes);
  std::string Rest() { return std::move(waiting_); }

 private:
  std::string waiting_;
};

}  // namespace dtensor::generate

#endif  // DTENSOR_EXAMPLES_GENERATE_TOKENIZER_H_
