#include "dtensor/nn/config_reader.h"

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "dtensor/runtime/core/status.h"
#include "nlohmann/json.hpp"

namespace dtensor::internal {

using nlohmann::json;

// The callbacks of nlohmann's parser for each part of the text; they return false to stop it. Keeps
// the members of the object, of objects that are its members, and of theirs.
class ConfigParser : public nlohmann::json_sax<json> {
 public:
  explicit ConfigParser(ConfigReader& reader) : reader_(reader) {}

  bool null() override { return Keep(nullptr); }
  bool boolean(bool value) override { return Keep(value); }
  bool number_integer(int64_t value) override { return Keep(value); }
  bool number_unsigned(uint64_t value) override {
    const bool fits = value <= uint64_t{std::numeric_limits<int64_t>::max()};
    return fits ? Keep(static_cast<int64_t>(value)) : Keep(static_cast<double>(value));
  }
  bool number_float(double value, const std::string&) override { return Keep(value); }
  bool string(std::string& value) override { return Keep(std::move(value)); }
  bool binary(json::binary_t&) override { return Fail("it is no text"); }

  bool start_object(size_t) override { return Enter(ConfigReader::Object(), /*is_list=*/false); }
  bool key(std::string& name) override {
    keys_.back() = std::move(name);
    return true;
  }
  bool end_object() override { return Leave(); }
  bool start_array(size_t) override { return Enter(ConfigReader::List(), /*is_list=*/true); }
  bool end_array() override { return Leave(); }
  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Fail(absl::StrCat("it is no JSON object: it goes wrong at byte ", position));
  }

 private:
  static constexpr size_t kMaxDepth = 32;
  static constexpr size_t kKeptDepth = 3;

  bool Enter(ConfigReader::Value value, bool is_list) {
    if (keys_.empty() && is_list) return Fail("it is no JSON object");
    if (keys_.size() == kMaxDepth) return Fail("it is nested too deeply for a configuration");
    if (!keys_.empty() && !Keep(std::move(value))) return false;
    lists_ += is_list;
    is_list_.push_back(is_list);
    keys_.emplace_back();
    return true;
  }
  bool Leave() {
    lists_ -= is_list_.back();
    is_list_.pop_back();
    keys_.pop_back();
    return true;
  }
  bool Keep(ConfigReader::Value value) {
    if (keys_.empty()) return Fail("it is no JSON object");
    if (lists_ == 1 && is_list_.back()) AddElement(value);
    if (lists_ > 0 || keys_.size() > kKeptDepth) return true;
    const std::string name = NameOf(keys_.size());
    const bool fresh = reader_.members_.emplace(name, std::move(value)).second;
    return fresh || Fail(absl::StrCat("it has '", absl::Utf8SafeCEscape(name), "' twice"));
  }
  // The name of the member that is `depth` objects deep.
  std::string NameOf(size_t depth) const {
    return absl::StrJoin(absl::MakeConstSpan(keys_).first(depth), ".");
  }
  // To the open list, whose own key is the last but one.
  void AddElement(const ConfigReader::Value& value) {
    if (keys_.size() > kKeptDepth + 1) return;
    auto& list = std::get<ConfigReader::List>(reader_.members_[NameOf(keys_.size() - 1)]);
    if (const auto* const whole = std::get_if<int64_t>(&value)) {
      list.numbers.push_back(*whole);
    } else if (const auto* const text = std::get_if<std::string>(&value)) {
      list.texts.push_back(*text);
    } else {
      list.has_others = true;
    }
  }
  bool Fail(absl::string_view why) {
    if (reader_.status_.ok()) reader_.status_ = InvalidArgument({reader_.reader_, ": ", why});
    return false;
  }

  ConfigReader& reader_;
  std::vector<std::string> keys_;  // the member being read, for each open object or list
  std::vector<bool> is_list_;
  int lists_ = 0;
};

absl::StatusOr<ConfigReader> ConfigReader::Parse(absl::string_view reader, absl::string_view text) {
  ConfigReader out(reader);
  ConfigParser parser(out);
  json::sax_parse(text.begin(), text.end(), &parser);
  DT_RETURN_IF_ERROR(out.status_);
  return out;
}

const ConfigReader::Value* ConfigReader::Find(absl::string_view name) const {
  const auto found = members_.find(name);
  if (found == members_.end() || std::holds_alternative<std::nullptr_t>(found->second)) {
    return nullptr;
  }
  return &found->second;
}

bool ConfigReader::Has(absl::string_view name) const { return Find(name) != nullptr; }

bool ConfigReader::IsNull(absl::string_view name) const {
  const auto found = members_.find(name);
  return found != members_.end() && std::holds_alternative<std::nullptr_t>(found->second);
}

bool ConfigReader::HasObject(absl::string_view name) {
  const Value* const value = Find(name);
  if (value == nullptr) return false;
  if (std::holds_alternative<Object>(*value)) return true;
  Refuse(name, "give an object");
  return false;
}

void ConfigReader::OnlyModel(absl::string_view type) {
  OnlyText("model_type", type, absl::StrCat("this reads the configuration of a ", type));
  if (HasMxfp4() && type == "gpt_oss") return;
  Fp8Block();
}

bool ConfigReader::HasMxfp4() {
  return HasObject("quantization_config") &&
         Text("quantization_config.quant_method", "") == "mxfp4";
}

std::vector<int64_t> ConfigReader::Fp8Block() {
  if (!HasObject("quantization_config")) return {};
  if (Text("quantization_config.quant_method", "") != "fp8") {
    Refuse("quantization_config.quant_method",
           "of weights that are quantized, those in FP8 can be read (\"fp8\"), and those of a "
           "gpt_oss in MXFP4 (\"mxfp4\")");
  }
  OnlyText("quantization_config.fmt", "e4m3", "FP8 can be read in this form");
  OnlyText("quantization_config.activation_scheme", "dynamic",
           "scales of activations cannot be read");
  constexpr absl::string_view kBlock = "quantization_config.weight_block_size";
  if (IsNull(kBlock)) Refuse(kBlock, "weights with one scale cannot be read");
  if (!Has(kBlock)) return {128, 128};
  const std::vector<int64_t> block = Indices(kBlock, kMaxSize);
  if (block.size() == 2 && block[0] > 0 && block[1] > 0) return block;
  Refuse(kBlock, "give two sizes of at least 1");
  return {};
}

std::string ConfigReader::TextOf(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    constexpr size_t kMost = 60;
    return absl::StrCat("\"", absl::Utf8SafeCEscape(absl::string_view(*text).substr(0, kMost)),
                        text->size() > kMost ? "...\"" : "\"");
  }
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t>(&value)) return absl::StrCat(*whole);
  if (const auto* number = std::get_if<double>(&value)) return absl::StrCat(*number);
  if (std::holds_alternative<std::nullptr_t>(value)) return "null";
  return std::holds_alternative<Object>(value) ? "an object" : "a list";
}

void ConfigReader::Refuse(absl::string_view name, absl::string_view why) {
  if (!status_.ok()) return;
  const Value* const value = Find(name);
  status_ = InvalidArgument(
      {reader_, ": ", name, " is ", value == nullptr ? "missing" : TextOf(*value), "; ", why});
}

template <typename T>
T ConfigReader::Get(absl::string_view name, T if_missing, absl::string_view wanted) {
  const Value* const value = Find(name);
  if (value == nullptr) return if_missing;
  if (const T* const read = std::get_if<T>(value)) return *read;
  Refuse(name, wanted);
  return if_missing;
}

int64_t ConfigReader::Size(absl::string_view name, int64_t if_missing, int64_t most) {
  const std::string wanted = absl::StrCat("give a whole number from 1 to ", most);
  const int64_t size = Get<int64_t>(name, if_missing, wanted);
  if (size < 1 || size > most) Refuse(name, wanted);
  return size;
}

int64_t ConfigReader::Count(absl::string_view name, int64_t if_missing) {
  const std::string wanted = absl::StrCat("give a whole number from 0 to ", kMaxSize);
  const int64_t count = Get<int64_t>(name, if_missing, wanted);
  if (count < 0 || count > kMaxSize) Refuse(name, wanted);
  return count;
}

double ConfigReader::Number(absl::string_view name, double if_missing) {
  constexpr absl::string_view kWanted = "give a finite number that is at least 0";
  const Value* const value = Find(name);
  const auto* const whole = value == nullptr ? nullptr : std::get_if<int64_t>(value);
  const double number =
      whole != nullptr ? static_cast<double>(*whole) : Get<double>(name, if_missing, kWanted);
  if (!std::isfinite(number) || number < 0) Refuse(name, kWanted);
  return number;
}

double ConfigReader::Probability(absl::string_view name, double if_missing) {
  const double p = Number(name, if_missing);
  if (p >= 1) Refuse(name, "give a probability, at least 0 and below 1");
  return p;
}

bool ConfigReader::Flag(absl::string_view name, bool if_missing) {
  return Get<bool>(name, if_missing, "give true or false");
}

std::string ConfigReader::Text(absl::string_view name, absl::string_view if_missing) {
  return Get<std::string>(name, std::string(if_missing), "give a text");
}

GeluForm ConfigReader::Gelu(absl::string_view name, absl::string_view if_missing) {
  const std::optional<GeluForm> form = GeluNamed(Text(name, if_missing));
  if (!form) Refuse(name, "the MLP has gelu, gelu_new or gelu_pytorch_tanh");
  return form.value_or(GeluForm::kErf);
}

void ConfigReader::OnlyFlag(absl::string_view name, bool only, absl::string_view why) {
  if (Flag(name, only) != only) Refuse(name, why);
}

void ConfigReader::OnlyText(absl::string_view name, absl::string_view only, absl::string_view why) {
  if (Text(name, only) != only) Refuse(name, why);
}

void ConfigReader::Never(absl::string_view name, absl::string_view why) {
  if (Has(name)) Refuse(name, why);
}

void ConfigReader::NoMembers(absl::string_view name, absl::string_view why) {
  if (!HasObject(name)) return;
  const std::string prefix = absl::StrCat(name, ".");
  const auto first = members_.lower_bound(prefix);
  if (first != members_.end() && absl::StartsWith(first->first, prefix)) Refuse(first->first, why);
}

void ConfigReader::OnlyOneOf(absl::string_view name, absl::Span<const absl::string_view> values,
                             absl::string_view why) {
  const Value* const value = Find(name);
  if (value == nullptr) return;
  const auto* const text = std::get_if<std::string>(value);
  const auto* const flag = std::get_if<bool>(value);
  const absl::string_view given = text != nullptr   ? absl::string_view(*text)
                                  : flag == nullptr ? ""
                                  : *flag           ? "true"
                                                    : "false";
  if (!absl::c_linear_search(values, given)) Refuse(name, why);
}

std::vector<int64_t> ConfigReader::Indices(absl::string_view name, int64_t size) {
  const List list = Get<List>(name, {}, "give a list");
  const auto fits = [&](int64_t i) { return 0 <= i && i < size; };
  const bool whole = !list.has_others && list.texts.empty();
  if (whole && absl::c_all_of(list.numbers, fits)) return list.numbers;
  Refuse(name, absl::StrCat("give a list of whole numbers from 0 to ", size - 1));
  return {};
}

std::vector<std::string> ConfigReader::Texts(absl::string_view name) {
  const List list = Get<List>(name, {}, "give a list");
  if (!list.has_others && list.numbers.empty()) return list.texts;
  Refuse(name, "give a list of texts");
  return {};
}

int64_t ConfigReader::Members(absl::string_view name, int64_t if_missing) {
  if (!HasObject(name)) return if_missing;
  const std::string prefix = absl::StrCat(name, ".");
  return absl::c_count_if(members_, [&](const auto& member) {
    absl::string_view rest = member.first;
    return absl::ConsumePrefix(&rest, prefix) && !absl::StrContains(rest, '.');
  });
}

absl::Status CheckSizes(absl::string_view model, absl::Span<const NamedSize> sizes) {
  for (const auto& [name, size] : sizes) {
    if (size >= 1) continue;
    return InvalidArgument(
        {model, ": ", name, " is ", absl::StrCat(size), "; every size must be at least 1"});
  }
  return absl::OkStatus();
}

absl::Status CheckDivides(absl::string_view model, NamedSize divisor, NamedSize size) {
  if (size.second % divisor.second == 0) return absl::OkStatus();
  return InvalidArgument({model, ": ", divisor.first, " must divide ", size.first, " (",
                          absl::StrCat(divisor.second), " and ", absl::StrCat(size.second), ")"});
}

}  // namespace dtensor::internal
