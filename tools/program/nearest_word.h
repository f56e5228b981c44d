// "Did you mean --shape?"
#ifndef DTENSOR_TOOLS_PROGRAM_NEAREST_WORD_H_
#define DTENSOR_TOOLS_PROGRAM_NEAREST_WORD_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace dtensor {

// The one of `words` that `word` most likely stands for: the fewest letters added, dropped, changed
// or swapped, but no more than one in three (one in a word of less). "" if there is none so near.
std::string NearestWord(absl::string_view word, absl::Span<const std::string> words);

// "; did you mean --shape?", or "" if no word is near.
std::string DidYouMean(absl::string_view word, absl::Span<const std::string> words);

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_NEAREST_WORD_H_
