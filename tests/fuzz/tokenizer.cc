// A tokenizer.json, and a text after a line "---". A tokenizer that can be read encodes any text.
// If it has a token for every byte, decoding gives the text back.
#include "dtensor/examples/generate/tokenizer.h"

#include <string>
#include <vector>

#include "dtensor/examples/generate/tokenizer_words.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {

void Try(absl::string_view input) {
  constexpr absl::string_view kLine = "\n---\n";
  const size_t line = input.find(kLine);
  const absl::string_view file = input.substr(0, line);
  const absl::string_view text = line == input.npos ? input : input.substr(line + kLine.size());
  size_t bytes = 0;
  for (const absl::string_view word : generate::WordsOf(text)) {
    Require(!word.empty(), "a word has a byte");
    bytes += word.size();
  }
  Require(bytes == text.size(), "words are the text");
  bytes = 0;
  for (const absl::string_view piece : generate::DigitsApart(text)) bytes += piece.size();
  Require(bytes == text.size(), "and so are digits and what is between them");
  const absl::StatusOr<generate::Tokenizer> tokenizer = generate::Tokenizer::Parse(file);
  if (!IsRead(tokenizer)) return;
  generate::CharacterStream stream;
  std::string decoded, whole;
  for (const int64_t id : tokenizer->Encode(text)) {
    Require(id >= 0, "tokens have numbers");
    const std::string piece = tokenizer->Decode(id);
    decoded += piece;
    whole += stream.Add(piece);
  }
  Require(whole + stream.Rest() == decoded, "nothing is lost between tokens");
}

}  // namespace dtensor::fuzz
