// Tokenizer: converts text to a model's tokens and back, as Hugging Face's tokenizer.json says:
// byte-level BPE, as in GPT-2 and SmolLM2.
//
//   DT_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Parse(text_of_tokenizer_json));
//   const std::vector<int64_t> ids = tokenizer.Encode("Hello, world!");
//
// A text is cut at the file's added tokens ("<|im_end|>"), which are never split. The text between
// them is cut into words by GPT-2's regular expression (if the file has Digits before it, every
// digit is a word of its own). Then the bytes of each word are merged, the pair with the lowest
// rank first, as long as the file has a merge for a pair. Any bytes can be encoded, and are decoded
// to the same bytes; bytes that are not UTF-8 count as punctuation.
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
  Tokenizer() = default;  // has no tokens
  // Errors: kInvalidArgument for text that is not JSON; for everything in the file that would make
  // Hugging Face's library produce other tokens, by name: another model than BPE, byte_fallback,
  // prefixes or suffixes of words, a normalizer, another pre_tokenizer than ByteLevel or Digits
  // before it, a post_processor that adds tokens; and for merges and tokens that contradict each
  // other.
  static absl::StatusOr<Tokenizer> Parse(absl::string_view json);

  std::vector<int64_t> Encode(absl::string_view text) const;
  // The bytes of a token; empty for an unknown id. A token may be a part of a character.
  std::string Decode(int64_t id) const;
  // The id of this token, as the file spells it; -1 if there is none.
  int64_t IdOf(absl::string_view token) const;

 private:
  void EncodeText(absl::string_view text, std::vector<int64_t>& ids) const;
  void EncodeWord(absl::string_view word, std::vector<int64_t>& ids) const;

  bool splits_digits_ = false, splits_words_ = true, ignores_merges_ = false;
  bool adds_space_ = false;
  int64_t bytes_[256] = {};                        // the token of each byte; -1: none
  std::vector<std::string> tokens_;                // bytes, by id
  absl::flat_hash_map<std::string, int64_t> ids_;  // by bytes, without added tokens
  // For two neighbours: the merge's rank, and the token that they become.
  absl::flat_hash_map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> merges_;
  std::vector<std::pair<std::string, int64_t>> added_;  // the longest first
  absl::flat_hash_map<std::string, int64_t> spelled_;   // as the file spells them
};

// Turns bytes into whole UTF-8 characters: if a token ends within a character, its bytes wait for
// the next token.
class CharacterStream {
 public:
  // Returns the characters that are complete now. Bytes that cannot begin a character are passed on
  // as they are.
  std::string Add(absl::string_view bytes);
  std::string Rest() { return std::move(waiting_); }

 private:
  std::string waiting_;
};

}  // namespace dtensor::generate

#endif  // DTENSOR_EXAMPLES_GENERATE_TOKENIZER_H_
