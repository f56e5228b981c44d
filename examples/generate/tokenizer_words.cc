#include "dtensor/examples/generate/tokenizer_words.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"

namespace dtensor::generate {
namespace {

struct Range {
  uint32_t first, last;
};
constexpr Range kLetters[] = {
#include "examples/generate/letters.inc"
};
constexpr Range kNumbers[] = {
#include "examples/generate/numbers.inc"
};

template <size_t n>
bool IsIn(const Range (&ranges)[n], uint32_t character) {
  const Range* const behind =
      std::upper_bound(std::begin(ranges), std::end(ranges), character,
                       [](uint32_t c, const Range& range) { return c < range.first; });
  return behind != std::begin(ranges) && character <= behind[-1].last;
}

bool IsSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

// The number of bytes of the longest prefix whose characters are all of this kind.
size_t RunOf(CharacterKind kind, absl::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const Character next = FirstCharacter(text.substr(bytes));
    if (next.kind != kind) break;
    bytes += next.bytes;
  }
  return bytes;
}

// The spaces, without the last one if a word follows: `\s+(?!\S)`; or else `\s+`, which is then a
// single one.
size_t SpacesOf(absl::string_view text) {
  const size_t bytes = RunOf(CharacterKind::kSpace, text);
  if (bytes == text.size()) return bytes;
  size_t last = 0;
  for (size_t at = 0; at < bytes; at += FirstCharacter(text.substr(at)).bytes) last = at;
  return last == 0 ? bytes : last;
}

size_t WordOf(absl::string_view text) {
  for (const absl::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (absl::StartsWith(text, ending)) return ending.size();
  }
  const size_t space = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const Character first = FirstCharacter(text.substr(space));
  if (first.kind != CharacterKind::kSpace) return space + RunOf(first.kind, text.substr(space));
  return SpacesOf(text);
}

}  // namespace

CharacterKind KindOf(uint32_t character) {
  if (IsSpace(character)) return CharacterKind::kSpace;
  if (IsIn(kLetters, character)) return CharacterKind::kLetter;
  return IsIn(kNumbers, character) ? CharacterKind::kNumber : CharacterKind::kOther;
}

Character FirstCharacter(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1, KindOf(byte(0))};
  const size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return {};
  uint32_t value = byte(0) & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < kLeast[bytes] || value > 0x10ffff || surrogate) return {};
  return {value, bytes, KindOf(value)};
}

std::vector<absl::string_view> WordsOf(absl::string_view text) {
  std::vector<absl::string_view> words;
  while (!text.empty()) {
    words.push_back(text.substr(0, WordOf(text)));
    text.remove_prefix(words.back().size());
  }
  return words;
}

std::vector<absl::string_view> DigitsApart(absl::string_view text) {
  std::vector<absl::string_view> pieces;
  size_t begin = 0, at = 0;
  while (at < text.size()) {
    const Character next = FirstCharacter(text.substr(at));
    if (next.kind == CharacterKind::kNumber) {
      if (at > begin) pieces.push_back(text.substr(begin, at - begin));
      pieces.push_back(text.substr(at, next.bytes));
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  if (at > begin) pieces.push_back(text.substr(begin));
  return pieces;
}

}  // namespace dtensor::generate
