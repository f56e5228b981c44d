// The text form of rules: parsing and printing.
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

class RuleParser {
 public:
  explicit RuleParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<OpRule> Run() {
    if (text_.size() > OpRule::kMaxText) {
      return InvalidArgument({"an op rule has ", absl::StrCat(text_.size()), " bytes; at most ",
                              absl::StrCat(OpRule::kMaxText)});
    }
    const std::vector<absl::string_view> sides = absl::StrSplit(text_, "->");
    if (sides.size() != 2) return Error("needs exactly one '->'");
    DT_RETURN_IF_ERROR(ParseSide(sides[0], rule_.operands_));
    DT_RETURN_IF_ERROR(ParseSide(sides[1], rule_.results_));
    DT_RETURN_IF_ERROR(CheckPairs());
    if (rule_.operands_.size() > OpRule::kMaxOperands) {
      return Error(absl::StrCat("has ", rule_.operands_.size(), " operands; at most ",
                                OpRule::kMaxOperands));
    }
    return std::move(rule_);
  }

 private:
  // A letter cannot be streamed past one that is itself streamed, nor be both streamed and reached;
  // and one letter is reached at most: an axis could split two of them.
  absl::Status CheckPairs() const {
    const auto is_reached = [](const RuleLetter& letter) { return letter.reached; };
    if (std::count_if(rule_.letters_.begin(), rule_.letters_.end(), is_reached) > 1) {
      return Error("sends '...' to two letters");
    }
    for (const RuleLetter& letter : rule_.letters_) {
      if (letter.past < 0) continue;
      if (letter.reached) {
        return Error(absl::StrCat("streams '", letter.name, "' and sends to it"));
      }
      if (rule_.letters_[letter.past].past < 0) continue;
      return Error(absl::StrCat("streams '", letter.name, "' past '",
                                rule_.letters_[letter.past].name, "', which is streamed itself"));
    }
    return absl::OkStatus();
  }

  absl::Status Error(absl::string_view why) const {
    return InvalidArgument(
        {"op rule \"", text_, "\" ", why, "; write for example \"m k, k n -> m n\""});
  }

  absl::Status ParseSide(absl::string_view side, std::vector<RuleTerm>& terms) {
    for (absl::string_view term : absl::StrSplit(side, ',')) {
      terms.emplace_back();
      DT_RETURN_IF_ERROR(ParseTerm(term, terms.back()));
    }
    return absl::OkStatus();
  }

  absl::Status ParseTerm(absl::string_view text, RuleTerm& term) {
    bool open = false;  // inside "( )"
    for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
      if (word == "...") {
        if (!term.dims.empty() || open) return Error("has '...' after a dimension");
        if (term.ellipsis) return Error("has '...' twice in one term");
        term.ellipsis = true;
        continue;
      }
      if (absl::ConsumePrefix(&word, "@")) {
        if (open || term.indexes >= 0) return Error("has '@' inside '( )', or twice in one term");
        DT_ASSIGN_OR_RETURN(term.indexes, ParseLetter(word));
        continue;
      }
      if (word == "()" && !open) {
        term.dims.emplace_back();
        continue;
      }
      const bool opens = absl::ConsumePrefix(&word, "(");
      const bool closes = absl::ConsumeSuffix(&word, ")");
      if (opens && open) return Error("nests '('");
      if (closes && !(open || opens)) return Error("has ')' without '('");
      if (!open) term.dims.emplace_back();
      DT_ASSIGN_OR_RETURN(const int letter, ParseLetter(word));
      term.dims.back().push_back(letter);
      open = (open || opens) && !closes;
    }
    return open ? Error("lacks a ')'") : absl::OkStatus();
  }

  // "t~s": returns t, and records that it is streamed past s, which may not have occurred yet.
  absl::StatusOr<int> ParseStreamed(absl::string_view letter, absl::string_view past) {
    if (absl::StrContains(past, '~')) {
      return Error(absl::StrCat("streams '", letter, "' past a letter that is streamed itself"));
    }
    DT_ASSIGN_OR_RETURN(const int t, ParseLetter(letter));
    DT_ASSIGN_OR_RETURN(const int s, ParseLetter(past));
    int& known = rule_.letters_[t].past;
    if (s == t || (known >= 0 && known != s)) {
      return Error(absl::StrCat("streams '", letter, "' past itself, or past two letters"));
    }
    known = s;
    return t;
  }

  // "d", "d!", "v^", "t~s", "e<...", "k:max". A mark at one place holds for the letter everywhere.
  absl::StatusOr<int> ParseLetter(absl::string_view word) {
    const std::pair<absl::string_view, absl::string_view> streamed =
        absl::StrSplit(word, absl::MaxSplits('~', 1));
    if (!streamed.second.empty()) return ParseStreamed(streamed.first, streamed.second);
    RuleLetter letter;
    letter.reached = absl::ConsumeSuffix(&word, "<...");
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(word, absl::MaxSplits(':', 1));
    absl::string_view name = parts.first;
    if (!parts.second.empty()) {
      const auto op = ParseReduceOp(parts.second);
      if (!op.ok())
        return Error(absl::StrCat("has the letter '", word, "': ", op.status().message()));
      letter.reduce = *op;
    }
    letter.whole = absl::ConsumeSuffix(&name, "!");
    letter.merged = absl::ConsumeSuffix(&name, "^");
    if (name.empty()) return Error("has a dimension without a letter");
    for (char c : name) {
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') {
        return Error(absl::StrCat("has the strange letter '", word, "'"));
      }
    }
    letter.name = std::string(name);
    const auto [it, fresh] = indices_.try_emplace(name, static_cast<int>(rule_.letters_.size()));
    if (fresh) {
      rule_.letters_.push_back(std::move(letter));
      return it->second;
    }
    RuleLetter& known = rule_.letters_[it->second];
    known.whole |= letter.whole;
    known.merged |= letter.merged;
    known.reached |= letter.reached;
    if (letter.reduce != ReduceOp::kSum) known.reduce = letter.reduce;
    return it->second;
  }

  absl::string_view text_;
  OpRule rule_;
  HashMap<absl::string_view, int> indices_;  // of letters, by name in text_
};

absl::StatusOr<OpRule> OpRule::Parse(absl::string_view text) { return RuleParser(text).Run(); }

namespace {

std::string LetterText(const RuleLetter& letter, absl::Span<const RuleLetter> letters) {
  std::string text = absl::StrCat(letter.name, letter.merged ? "^" : "", letter.whole ? "!" : "");
  if (letter.reduce != ReduceOp::kSum) absl::StrAppend(&text, ":", ToString(letter.reduce));
  if (letter.past >= 0) absl::StrAppend(&text, "~", letters[letter.past].name);
  if (letter.reached) absl::StrAppend(&text, "<...");
  return text;
}

std::string TermText(const RuleTerm& term, absl::Span<const RuleLetter> letters) {
  std::vector<std::string> words;
  if (term.ellipsis) words.push_back("...");
  for (const auto& dim : term.dims) {
    std::string text = absl::StrJoin(dim, " ", [&](std::string* out, int letter) {
      absl::StrAppend(out, LetterText(letters[letter], letters));
    });
    words.push_back(dim.size() == 1 ? text : absl::StrCat("(", text, ")"));
  }
  if (term.indexes >= 0) {
    words.push_back(absl::StrCat("@", LetterText(letters[term.indexes], letters)));
  }
  return absl::StrJoin(words, " ");
}

}  // namespace

std::string OpRule::ToString() const {
  const auto side = [&](absl::Span<const RuleTerm> terms) {
    return absl::StrJoin(terms, ", ", [&](std::string* out, const RuleTerm& term) {
      absl::StrAppend(out, TermText(term, letters_));
    });
  };
  return absl::StrCat(side(operands_), " -> ", side(results_));
}

}  // namespace dtensor
