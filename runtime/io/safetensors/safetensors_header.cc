#include "dtensor/runtime/io/safetensors/safetensors_header.h"

#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using nlohmann::json;

// A tensor or the metadata, as far as it has been read.
struct Entry {
  std::string name;
  std::set<std::string> members;
  std::optional<SafetensorsType> type;
  std::optional<std::vector<int64_t>> shape, offsets;

  bool is_metadata() const { return name == kSafetensorsMetadata; }
};

absl::StatusOr<SafetensorsInfo> InfoOf(const Entry& entry) {
  for (const auto& [key, is_there] :
       {std::pair("dtype", entry.type.has_value()), std::pair("shape", entry.shape.has_value()),
        std::pair("data_offsets", entry.offsets.has_value())}) {
    if (!is_there) return InvalidArgument({"there is no ", key});
  }
  if (entry.offsets->size() != 2) return InvalidArgument({"data_offsets are not two"});
  const Dims shape(entry.shape->begin(), entry.shape->end());
  const int64_t begin = entry.offsets->front(), end = entry.offsets->back();
  DT_ASSIGN_OR_RETURN(const int64_t needed, SafetensorsBytes(shape, entry.type->bytes));
  if (begin <= end && end - begin == needed) {
    return SafetensorsInfo{std::string(entry.type->name), entry.type->dtype, shape, begin, end};
  }
  return InvalidArgument({"shape ", DimsToString(shape), " of ", entry.type->name, " needs ",
                          absl::StrCat(needed), " B, and data_offsets are ", absl::StrCat(begin),
                          " to ", absl::StrCat(end)});
}

// nlohmann's parser calls these functions for each part of the text. They return false to stop it.
// The text is an object of objects of lists: the header is at depth 1, a tensor at 2, a list at 3.
// Anything deeper may be nested without limit.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  absl::StatusOr<SafetensorsHeader> Result() {
    if (!wrong_.ok()) return wrong_;
    return std::move(header_);
  }

  bool null() override { return Other("null"); }
  bool boolean(bool value) override { return Other(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return Other(absl::StrCat(value)); }
  bool number_float(double, const std::string& text) override { return Other(text); }
  bool binary(json::binary_t&) override { return Other("bytes"); }

  bool number_unsigned(uint64_t value) override {
    if (list_ == nullptr || value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return Other(absl::StrCat(value));
    }
    list_->push_back(static_cast<int64_t>(value));
    if (list_->size() <= most_) return true;
    return FailEntry(member_ == "shape" ? absl::StrCat("shape has more than ", most_, " dimensions")
                                        : "data_offsets are not two");
  }

  bool string(std::string& text) override {
    if (depth_ == 2 && entry_.is_metadata()) {
      header_.metadata[member_] = std::move(text);
      return true;
    }
    if (depth_ != 2 || member_ != "dtype") return Other(absl::StrCat("\"", text, "\""));
    absl::StatusOr<SafetensorsType> type = FindSafetensorsType(text);
    if (!type.ok()) return FailEntry(type.status().message());
    entry_.type = *std::move(type);
    return true;
  }

  bool key(std::string& name) override {
    if (depth_ == 1) {
      const bool twice =
          name == kSafetensorsMetadata ? has_metadata_ : header_.tensors.contains(name);
      entry_ = Entry{.name = name};
      has_metadata_ |= entry_.is_metadata();
      return !twice || FailTwice(name);
    }
    if (depth_ == 3) return true;
    member_ = name;
    return entry_.members.insert(name).second || FailTwice(name);
  }

  bool start_object(size_t) override {
    if (depth_ > 2) return FailDepth();
    if (depth_ == 2 && IsKnown()) return Other("{");
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ != 1 || entry_.is_metadata()) return true;
    absl::StatusOr<SafetensorsInfo> info = InfoOf(entry_);
    if (!info.ok()) return FailEntry(info.status().message());
    header_.tensors.emplace(std::move(entry_.name), *std::move(info));
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ > 2) return FailDepth();
    if (depth_ < 2 || entry_.is_metadata() ||
        (IsKnown() && member_ != "shape" && member_ != "data_offsets")) {
      return Other("[");
    }
    ++depth_;
    if (!IsKnown()) return true;
    const bool is_shape = member_ == "shape";
    most_ = is_shape ? kMaxSafetensorsDimensions : 2;
    list_ = &(is_shape ? entry_.shape : entry_.offsets).emplace();
    return true;
  }
  bool end_array() override {
    --depth_;
    list_ = nullptr;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    return Fail(absl::StrCat("the header is no JSON object: it goes wrong at byte ", position));
  }

 private:
  // Whether the current member has a meaning.
  bool IsKnown() const {
    return entry_.is_metadata() || member_ == "dtype" || member_ == "shape" ||
           member_ == "data_offsets";
  }

  // Handles a value of the wrong kind: an error, unless its place is ignored.
  bool Other(absl::string_view value) {
    if (depth_ == 0) return Fail("the header is no JSON object");
    if (depth_ == 1) return FailEntry("is no JSON object");
    if (depth_ == 2 && entry_.is_metadata()) {
      return Fail(absl::StrCat(kSafetensorsMetadata, " has '", member_, "', no text"));
    }
    if (list_ != nullptr) {
      return FailEntry(
          absl::StrCat(member_, " has ", value, ", which is no whole number from 0 to 2^63 - 1"));
    }
    if (depth_ == 3 || !IsKnown()) return true;
    return FailEntry(absl::StrCat(member_, member_ == "dtype" ? " is no text" : " is no list"));
  }

  bool Fail(absl::string_view why) {
    if (wrong_.ok()) wrong_ = InvalidArgument({why});
    return false;
  }
  bool FailEntry(absl::string_view why) {
    if (entry_.is_metadata()) return Fail(absl::StrCat(kSafetensorsMetadata, " ", why));
    return Fail(OfSafetensor(entry_.name, InvalidArgument({why})).message());
  }
  bool FailTwice(absl::string_view name) {
    return Fail(absl::StrCat("the header has '", name, "' twice"));
  }
  bool FailDepth() { return Fail("the header is nested more deeply than tensors are"); }

  SafetensorsHeader header_;
  absl::Status wrong_;
  bool has_metadata_ = false;
  int depth_ = 0;
  Entry entry_;                           // at depth 2 and 3
  std::string member_;                    // of the entry
  std::vector<int64_t>* list_ = nullptr;  // where numbers go at depth 3; null: ignored
  size_t most_ = 0;                       // numbers in list_
};

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(const std::string& text) {
  HeaderReader reader;
  json::sax_parse(text, &reader);
  return reader.Result();
}

}  // namespace dtensor
