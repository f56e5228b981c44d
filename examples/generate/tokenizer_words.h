// Divides a text into words as GPT-2 does, before the bytes of each word are merged:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
#ifndef DTENSOR_EXAMPLES_GENERATE_TOKENIZER_WORDS_H_
#define DTENSOR_EXAMPLES_GENERATE_TOKENIZER_WORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace dtensor::generate {

enum class CharacterKind : uint8_t { kLetter, kNumber, kSpace, kOther };
// By Unicode 14: categories L and N, and White_Space.
CharacterKind KindOf(uint32_t character);

// The first character and its 1 to 4 bytes. A byte that is not UTF-8 is a character of one byte,
// and is no letter, number or space. Requires: at least one byte.
struct Character {
  uint32_t value = 0;
  size_t bytes = 1;
  CharacterKind kind = CharacterKind::kOther;
};
Character FirstCharacter(absl::string_view text);

// The words, in order; together they have all bytes of the text.
std::vector<absl::string_view> WordsOf(absl::string_view text);
// Each number character separately, and the text between them.
std::vector<absl::string_view> DigitsApart(absl::string_view text);

}  // namespace dtensor::generate

#endif  // DTENSOR_EXAMPLES_GENERATE_TOKENIZER_WORDS_H_
