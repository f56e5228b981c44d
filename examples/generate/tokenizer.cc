#include "dtensor/examples/generate/tokenizer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/examples/generate/tokenizer_words.h"
#include "dtensor/runtime/core/status.h"
#include "nlohmann/json.hpp"

namespace dtensor::generate {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokens = int64_t{1} << 24;

absl::Status Wrong(absl::string_view what, absl::string_view why = "") {
  return InvalidArgument({"tokenizer.json: ", what, why});
}

// GPT-2 writes each byte as a printable character: printable bytes as themselves, the others as
// characters from 256 on.
std::array<uint32_t, 256> VisibleBytes() {
  std::array<uint32_t, 256> visible = {};
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    visible[byte] = printable ? byte : next++;
  }
  return visible;
}

// The bytes that a token stands for; none if it has a character that stands for no byte.
std::optional<std::string> BytesOf(absl::string_view token) {
  static const auto& bytes = *[] {
    auto* const map = new absl::flat_hash_map<uint32_t, char>;
    const std::array<uint32_t, 256> visible = VisibleBytes();
    for (size_t byte = 0; byte < visible.size(); ++byte) {
      (*map)[visible[byte]] = static_cast<char>(byte);
    }
    return map;
  }();
  std::string out;
  while (!token.empty()) {
    const Character next = FirstCharacter(token);
    const auto byte = bytes.find(next.value);
    if (byte == bytes.end()) return std::nullopt;
    out.push_back(byte->second);
    token.remove_prefix(next.bytes);
  }
  return out;
}

// A member of an object, or null.
const json& At(const json& object, const char* name) {
  static const json& null = *new json;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : null;
}
std::string TextAt(const json& object, const char* name) {
  const json& member = At(object, name);
  return member.is_string() ? member.get<std::string>() : "";
}
bool FlagAt(const json& object, const char* name, bool if_missing) {
  const json& member = At(object, name);
  return member.is_boolean() ? member.get<bool>() : if_missing;
}

struct Steps {
  bool digits = false, words = true, space = false, is_byte_level = false;
};

absl::Status AddPreTokenizer(const json& one, Steps& steps) {
  const std::string type = TextAt(one, "type");
  if (steps.is_byte_level) return Wrong("pre_tokenizer: nothing may follow ByteLevel");
  if (type == "Sequence") {
    for (const json& inner : At(one, "pretokenizers")) {
      if (TextAt(inner, "type") == "Sequence") return Wrong("pre_tokenizer: a Sequence within one");
      DT_RETURN_IF_ERROR(AddPreTokenizer(inner, steps));
    }
    return absl::OkStatus();
  }
  if (type == "Digits") {
    if (!FlagAt(one, "individual_digits", false)) {
      return Wrong("pre_tokenizer: Digits that are not individual_digits");
    }
    steps.digits = true;
    return absl::OkStatus();
  }
  if (type != "ByteLevel")
    return Wrong("pre_tokenizer: there is no ", type.empty() ? "type" : type);
  steps.is_byte_level = true;
  steps.space = FlagAt(one, "add_prefix_space", true);
  steps.words = FlagAt(one, "use_regex", true);
  return absl::OkStatus();
}

// Refuses settings that would give other tokens and that this tokenizer does not support.
absl::Status RefuseOthers(const json& file) {
  const json& model = At(file, "model");
  if (TextAt(model, "type") != "BPE") return Wrong("the model is no BPE");
  if (FlagAt(model, "byte_fallback", false)) return Wrong("byte_fallback");
  if (!At(model, "dropout").is_null()) return Wrong("dropout of merges");
  for (const char* const name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!TextAt(model, name).empty()) return Wrong(name);
  }
  if (!At(file, "normalizer").is_null()) return Wrong("a normalizer");
  const json& after = At(file, "post_processor");
  if (!after.is_null() && TextAt(after, "type") != "ByteLevel") {
    return Wrong("a post_processor other than ByteLevel");
  }
  return absl::OkStatus();
}

// The two halves of a merge, which is written as "a b" or as two texts.
std::optional<std::pair<std::string, std::string>> HalvesOf(const json& merge) {
  if (merge.is_string()) {
    const std::string& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == text.npos) return std::nullopt;
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
    return std::nullopt;
  }
  return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
}

// The id of a token.
std::optional<int64_t> IdAt(const json& id) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxTokens)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(id.get<uint64_t>());
}

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Parse(absl::string_view text) {
  const json file = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return Wrong("it is no JSON object");
  DT_RETURN_IF_ERROR(RefuseOthers(file));
  Steps steps;
  DT_RETURN_IF_ERROR(AddPreTokenizer(At(file, "pre_tokenizer"), steps));
  if (!steps.is_byte_level) return Wrong("pre_tokenizer: there is no ByteLevel");
  Tokenizer out;
  out.splits_digits_ = steps.digits;
  out.splits_words_ = steps.words;
  out.adds_space_ = steps.space;
  const json& model = At(file, "model");
  out.ignores_merges_ = FlagAt(model, "ignore_merges", false);

  const json &vocab = At(model, "vocab"), &added = At(file, "added_tokens");
  // Ids far beyond the number of tokens would need unlimited memory.
  const size_t most = 2 * (vocab.size() + added.size()) + 1024;
  const auto keep = [&](int64_t id, const std::string& spelled, std::string bytes) -> absl::Status {
    if (id >= static_cast<int64_t>(most)) return Wrong(absl::StrCat("there is a token ", id));
    if (static_cast<int64_t>(out.tokens_.size()) <= id) out.tokens_.resize(id + 1);
    out.tokens_[id] = std::move(bytes);
    out.spelled_[spelled] = id;
    return absl::OkStatus();
  };
  if (!vocab.is_object()) return Wrong("the model has no vocab");
  std::fill(std::begin(out.bytes_), std::end(out.bytes_), -1);
  for (const auto& [token, number] : vocab.items()) {
    const std::optional<int64_t> id = IdAt(number);
    if (!id) return Wrong("a token of vocab has no number");
    // Added tokens are also listed here; their bytes are their text as spelled.
    const std::optional<std::string> bytes = BytesOf(token);
    DT_RETURN_IF_ERROR(keep(*id, token, bytes.value_or(token)));
    if (!bytes) continue;
    out.ids_[*bytes] = *id;
    if (bytes->size() == 1) out.bytes_[static_cast<unsigned char>((*bytes)[0])] = *id;
  }
  int64_t rank = 0;
  if (!At(model, "merges").is_array()) return Wrong("the model has no merges");
  for (const json& merge : At(model, "merges")) {
    const auto halves = HalvesOf(merge);
    if (!halves) return Wrong(absl::StrCat("merge ", rank, " is no pair"));
    const auto a = out.spelled_.find(halves->first), b = out.spelled_.find(halves->second);
    const auto both = out.spelled_.find(absl::StrCat(halves->first, halves->second));
    for (const auto& one : {a, b, both}) {
      if (one == out.spelled_.end()) {
        return Wrong(absl::StrCat("merge ", rank, " has a token that is not in vocab"));
      }
    }
    out.merges_.emplace(std::pair(a->second, b->second), std::pair(rank++, both->second));
  }
  for (const json& token : added) {
    const std::optional<int64_t> id = IdAt(At(token, "id"));
    const std::string content = TextAt(token, "content");
    if (!id || content.empty()) return Wrong("an added token without id or content");
    for (const char* const name : {"lstrip", "rstrip", "single_word"}) {
      if (FlagAt(token, name, false)) {
        return Wrong(absl::StrCat("an added token with ", name));
      }
    }
    DT_RETURN_IF_ERROR(keep(*id, content, content));
    out.added_.emplace_back(content, *id);
  }
  std::stable_sort(out.added_.begin(), out.added_.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return out;
}

std::vector<int64_t> Tokenizer::Encode(absl::string_view text) const {
  std::vector<int64_t> ids;
  size_t begin = 0, at = 0;
  while (at < text.size()) {
    const auto token = std::find_if(added_.begin(), added_.end(), [&](const auto& added) {
      return absl::StartsWith(text.substr(at), added.first);
    });
    if (token == added_.end()) {
      ++at;
      continue;
    }
    EncodeText(text.substr(begin, at - begin), ids);
    ids.push_back(token->second);
    at += token->first.size();
    begin = at;
  }
  EncodeText(text.substr(begin), ids);
  return ids;
}

void Tokenizer::EncodeText(absl::string_view text, std::vector<int64_t>& ids) const {
  if (text.empty()) return;
  std::vector<absl::string_view> pieces = {text};
  if (splits_digits_) pieces = DigitsApart(text);
  for (const absl::string_view piece : pieces) {
    std::string spaced;
    if (adds_space_ && piece[0] != ' ') {
      spaced = absl::StrCat(" ", piece);
    }
    const absl::string_view from = spaced.empty() ? piece : absl::string_view(spaced);
    if (!splits_words_) {
      EncodeWord(from, ids);
      continue;
    }
    for (const absl::string_view word : WordsOf(from)) EncodeWord(word, ids);
  }
}

void Tokenizer::EncodeWord(absl::string_view word, std::vector<int64_t>& ids) const {
  const auto whole = ignores_merges_ ? ids_.find(std::string(word)) : ids_.end();
  if (whole != ids_.end()) {
    ids.push_back(whole->second);
    return;
  }
  std::vector<int64_t> parts;
  for (const char byte : word) {
    const int64_t id = bytes_[static_cast<unsigned char>(byte)];
    if (id >= 0) parts.push_back(id);  // as Hugging Face has it: unknown bytes are left out
  }
  while (parts.size() > 1) {
    std::pair<int64_t, int64_t> best(std::numeric_limits<int64_t>::max(), 0);
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto merge = merges_.find(std::pair(parts[i], parts[i + 1]));
      if (merge != merges_.end()) best = std::min(best, merge->second);
    }
    if (best.first == std::numeric_limits<int64_t>::max()) break;
    size_t out = 0;
    for (size_t i = 0; i < parts.size(); ++i, ++out) {
      const auto merge =
          i + 1 < parts.size() ? merges_.find(std::pair(parts[i], parts[i + 1])) : merges_.end();
      const bool merges = merge != merges_.end() && merge->second == best;
      parts[out] = merges ? best.second : parts[i];
      i += merges;
    }
    parts.resize(out);
  }
  ids.insert(ids.end(), parts.begin(), parts.end());
}

std::string Tokenizer::Decode(int64_t id) const {
  return id >= 0 && id < static_cast<int64_t>(tokens_.size()) ? tokens_[id] : "";
}

int64_t Tokenizer::IdOf(absl::string_view token) const {
  const auto found = spelled_.find(std::string(token));
  return found == spelled_.end() ? -1 : found->second;
}

std::string CharacterStream::Add(absl::string_view bytes) {
  waiting_.append(bytes.data(), bytes.size());
  // At most three bytes of an incomplete character wait.
  size_t keep = 0;
  for (size_t last = 1; last <= std::min<size_t>(3, waiting_.size()); ++last) {
    const unsigned char byte = waiting_[waiting_.size() - last];
    if ((byte & 0xc0) == 0x80) continue;
    const bool begins = byte >= 0xc2 && byte <= 0xf4;
    const size_t wanted = !begins ? 1 : byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    if (wanted > last) keep = last;
    break;
  }
  std::string whole = waiting_.substr(0, waiting_.size() - keep);
  waiting_.erase(0, whole.size());
  return whole;
}

}  // namespace dtensor::generate
