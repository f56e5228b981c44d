// GPT-2's division of a text into words, before bytes are merged within each:
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
// By Unicode 14's categories L and N, and White_Space.
CharacterKind KindOf(uint32_t character);

// The first character and its bytes, 1 to 4. What is no UTF-8 is one byte, and no letter, number or
// space. Requires: a byte.
struct Character {
  uint32_t value = 0;
  size_t bytes = 1;
  CharacterKind kind = CharacterKind::kOther;
};
Character FirstCharacter(absl::string_view text);

// The words, whose bytes are all of the text's, in order.
std::vector<absl::string_view> WordsOf(absl::string_view text);
// Numbers one by one, and what is between them.
std::vector<absl::string_view> DigitsApart(absl::string_view text);

}  // namespace dtensor::generate

#endif  // DTENSOR_EXAMPLES_GENERATE_TOKENIZER_WORDS_H_
