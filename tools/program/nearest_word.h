// "Did you mean --shape?"
#ifndef DTENSOR_TOOLS_PROGRAM_NEAREST_WORD_H_
#define DTENSOR_TOOLS_PROGRAM_NEAREST_WORD_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtensor {

// The word in `words` that `word` most likely stands for: the one that needs the fewest insertions,
// deletions, changes or swaps of letters, but at most one per three letters (one in shorter words).
// "" if none is so near.
std::string NearestWord(absl::string_view word, absl::Span<const std::string> words);

// "; did you mean --shape?", or "" if no word is near.
std::string DidYouMean(absl::string_view word, absl::Span<const std::string> words);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_NEAREST_WORD_H_
