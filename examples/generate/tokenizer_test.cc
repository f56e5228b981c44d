// What Hugging Face's library gives, of a small byte-level BPE; and what is refused.
#include "dtensor/examples/generate/tokenizer.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "dtensor/examples/generate/tokenizer_words.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::generate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// \u0120 is a space as GPT-2 writes it, \u00c3 and \u00a9 are the bytes of an e with an accent.
constexpr char kFile[] = R"({
  "added_tokens": [{"id": 20, "content": "<|end|>", "special": true},
                   {"id": 21, "content": "<|end|>!", "special": true}],
  "normalizer": null, "post_processor": null, "decoder": {"type": "ByteLevel"},
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
  "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false,
    "vocab": {"a": 0, "b": 1, "c": 2, "\u0120": 3, "1": 4, "2": 5, "\u00c3": 6, "\u00a9": 7, "!": 8,
              "'": 9, "s": 10, "ab": 11, "\u0120a": 12, "abc": 13, "\u00c3\u00a9": 14, "bc": 15,
              "\u0120\u0120": 16, "12": 17, "'s": 18},
    "merges": ["a b", "\u0120 a", ["ab", "c"], "\u00c3 \u00a9", "b c", "\u0120 \u0120", "1 2",
               "' s"]}})";

std::vector<int64_t> Encode(absl::string_view text) {
  const auto tokenizer = Tokenizer::Parse(kFile);
  DT_EXPECT_OK(tokenizer);
  return tokenizer->Encode(text);
}

TEST(Tokenizer, MergesWithinWords) {
  EXPECT_THAT(Encode("abc"), ElementsAre(13));
  EXPECT_THAT(Encode("abcbc"), ElementsAre(13, 15));
  EXPECT_THAT(Encode("a ab"), ElementsAre(0, 3, 11)) << "the pair of the lowest rank first";
  EXPECT_THAT(Encode("b a"), ElementsAre(1, 12));
  EXPECT_THAT(Encode("b   a"), ElementsAre(1, 16, 12)) << "one space goes with the word";
  EXPECT_THAT(Encode("b's"), ElementsAre(1, 18));
  EXPECT_THAT(Encode("a12"), ElementsAre(0, 4, 5)) << "digits are apart";
  EXPECT_THAT(Encode("\xc3\xa9"), ElementsAre(14));
  EXPECT_THAT(Encode("\xc3"), ElementsAre(6)) << "no UTF-8";
  EXPECT_THAT(Encode("axb"), ElementsAre(11)) << "a byte without a token is left out";
  EXPECT_THAT(Encode(""), ElementsAre());
}

// But where there is a space; a new line is none.
TEST(Tokenizer, PutsASpaceInFront) {
  const std::string text =
      absl::StrReplaceAll(kFile, {{"add_prefix_space\": false", "add_prefix_space\": true"}});
  const auto tokenizer = Tokenizer::Parse(text);
  DT_ASSERT_OK(tokenizer);
  EXPECT_THAT(tokenizer->Encode("a"), ElementsAre(12));
  EXPECT_THAT(tokenizer->Encode(" a"), ElementsAre(12));
  EXPECT_THAT(tokenizer->Encode("\na"), ElementsAre(3, 0));
}

TEST(Tokenizer, KeepsAddedTokensWhole) {
  EXPECT_THAT(Encode("a<|end|>b<|end|>!"), ElementsAre(0, 20, 1, 21));
  const auto tokenizer = Tokenizer::Parse(kFile);
  DT_ASSERT_OK(tokenizer);
  EXPECT_EQ(tokenizer->IdOf("<|end|>"), 20);
  EXPECT_EQ(tokenizer->IdOf("<|begin|>"), -1);
  EXPECT_EQ(tokenizer->Decode(20), "<|end|>");
  EXPECT_EQ(tokenizer->Decode(12), " a");
  EXPECT_EQ(tokenizer->Decode(14), "\xc3\xa9");
  EXPECT_EQ(tokenizer->Decode(-1), "");
  EXPECT_EQ(tokenizer->Decode(99), "");
}

TEST(Tokenizer, RefusesWhatGivesOtherTokens) {
  const auto with = [](absl::string_view from, absl::string_view to) {
    const std::string text = absl::StrReplaceAll(kFile, {{from, to}});
    EXPECT_NE(text, kFile) << from;
    return Tokenizer::Parse(text).status();
  };
  EXPECT_THAT(Tokenizer::Parse("{"), Refuses(HasSubstr("no JSON")));
  EXPECT_THAT(with("\"BPE\"", "\"WordPiece\""), Refuses(HasSubstr("no BPE")));
  EXPECT_THAT(with("\"byte_fallback\": false", "\"byte_fallback\": true"),
              Refuses(HasSubstr("byte_fallback")));
  EXPECT_THAT(with("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}"),
              Refuses(HasSubstr("normalizer")));
  EXPECT_THAT(with("\"Digits\"", "\"Split\""), Refuses(HasSubstr("no Split")));
  EXPECT_THAT(with("\"individual_digits\": true", "\"individual_digits\": false"),
              Refuses(HasSubstr("individual_digits")));
  EXPECT_THAT(with("\"post_processor\": null", "\"post_processor\": {\"type\": \"X\"}"),
              Refuses(HasSubstr("post_processor")));
  EXPECT_THAT(with("\"a b\"", "\"a x\""), Refuses(HasSubstr("merge 0 has a token")));
  EXPECT_THAT(with("\"a b\"", "3"), Refuses(HasSubstr("merge 0 is no pair")));
  EXPECT_THAT(with("\"id\": 20", "\"id\": 16000000"), Refuses(HasSubstr("token 16000000")));
  EXPECT_THAT(with("\"id\": 20", "\"id\": -1"), Refuses(HasSubstr("without id")));
}

TEST(Words, AreGpt2s) {
  EXPECT_THAT(WordsOf("Hello, world!  It's 12 \n x"),
              ElementsAre("Hello", ",", " world", "!", " ", " It", "'s", " 12", " \n", " x"));
  EXPECT_THAT(WordsOf("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(WordsOf("a \xc2\xa0"
                      "b"),
              ElementsAre("a", " ", "\xc2\xa0", "b"));
  EXPECT_THAT(WordsOf("\n\na"), ElementsAre("\n", "\n", "a"));
  EXPECT_THAT(WordsOf("na\xc3\xafve \xe6\x97\xa5\xe6\x9c\xac"),
              ElementsAre("na\xc3\xafve", " \xe6\x97\xa5\xe6\x9c\xac"));
  EXPECT_THAT(WordsOf("\xff\xfe"
                      "a"),
              ElementsAre("\xff\xfe", "a"));
  EXPECT_THAT(DigitsApart("in 2024\xc2\xbd."),
              ElementsAre("in ", "2", "0", "2", "4", "\xc2\xbd", "."));
}

TEST(CharacterStream, WaitsForWholeCharacters) {
  CharacterStream stream;
  EXPECT_EQ(stream.Add("a\xe6"), "a");
  EXPECT_EQ(stream.Add("\x97"), "");
  EXPECT_EQ(stream.Add("\xa5"
                       "b"),
            "\xe6\x97\xa5"
            "b");
  EXPECT_EQ(stream.Add("\xf0\x9f\x98"), "");
  EXPECT_EQ(stream.Rest(), "\xf0\x9f\x98");
  EXPECT_EQ(stream.Add("\x97\x97\x97\x97"), "\x97\x97\x97\x97") << "begins nothing";
  EXPECT_EQ(stream.Add("\xff"), "\xff") << "begins nothing";
  EXPECT_EQ(stream.Add("\xc0"), "\xc0") << "begins nothing";
}

}  // namespace
}  // namespace dtensor::generate
