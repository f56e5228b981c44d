#include "dtensor/runtime/core/shortened.h"

#include "absl/strings/str_cat.h"

namespace dtensor {
namespace {

constexpr size_t kLongest = 1000, kBeginning = 700, kEnd = 200;

bool ContinuesCharacter(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string Shortened(absl::string_view text) {
  if (text.size() <= kLongest) return std::string(text);
  size_t first = kBeginning, last = text.size() - kEnd;
  // A character has at most four bytes; text that is not UTF-8 may be cut anywhere.
  for (int i = 0; i < 3 && ContinuesCharacter(text[first]); ++i) --first;
  for (int i = 0; i < 3 && ContinuesCharacter(text[last]); ++i) ++last;
  return absl::StrCat(text.substr(0, first), "... (", text.size(), " bytes) ...",
                      text.substr(last));
}

}  // namespace dtensor
