#include "dtensor/runtime/io/safetensors/safetensors.h"

#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/atomic_file.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using nlohmann::json;

// Returns the size of its data in bytes.
absl::StatusOr<int64_t> CheckEntry(const SafetensorsEntry& entry) {
  if (entry.name == kSafetensorsMetadata) {
    return InvalidArgument({"this name is the metadata's; take another"});
  }
  DT_ASSIGN_OR_RETURN(const int64_t bytes,
                      SafetensorsBytes(entry.shape, SafetensorsTypeOf(entry.dtype).bytes));
  return bytes;
}

absl::StatusOr<std::string> MetadataText(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) {
    const std::optional<std::string> quoted_key = JsonQuoted(key), quoted_value = JsonQuoted(value);
    if (!quoted_key || !quoted_value) {
      return InvalidArgument({"metadata '", absl::CHexEscape(Shortened(key)), "' are no UTF-8"});
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", *quoted_key, ":", *quoted_value);
  }
  return text;
}

// Members of the header, in the order of the entries.
class HeaderText {
 public:
  absl::Status Add(const SafetensorsEntry& entry) {
    DT_RETURN_IF_ERROR(CheckLength(entry.name.size()));
    DT_ASSIGN_OR_RETURN(const int64_t bytes, CheckEntry(entry));
    const std::optional<std::string> name = JsonQuoted(entry.name);
    if (!name) return InvalidArgument({"the name is no UTF-8"});
    if (!names_.insert(entry.name).second) return InvalidArgument({"the name occurs twice"});
    const int64_t begin = end_;
    if (__builtin_add_overflow(begin, bytes, &end_)) {
      return InvalidArgument({"shape ", DimsToString(entry.shape),
                              " makes the file larger than can be counted (2^63 bytes)"});
    }
    return AddMember(*name, absl::StrCat("{\"dtype\":\"", SafetensorsTypeOf(entry.dtype).name,
                                         "\",\"shape\":[", absl::StrJoin(entry.shape, ","),
                                         "],\"data_offsets\":[", begin, ",", end_, "]}"));
  }

  absl::Status AddMember(absl::string_view name, absl::string_view value) {
    DT_RETURN_IF_ERROR(CheckLength(name.size() + value.size()));
    absl::StrAppend(&text_, text_.empty() ? "" : ",", name, ":", value);
    return absl::OkStatus();
  }

  int64_t data_bytes() const { return end_; }
  // The header, preceded by its length and padded so that tensors are aligned.
  std::string WithLength() const {
    const uint64_t length = (text_.size() + 2 + 7) / 8 * 8;
    std::string text(reinterpret_cast<const char*>(&length), sizeof(length));
    absl::StrAppend(&text, "{", text_, "}");
    text.resize(sizeof(length) + length, ' ');
    return text;
  }

 private:
  // Checks that `more` bytes still fit. Braces, separators and padding count, too.
  absl::Status CheckLength(size_t more) const {
    if (text_.size() + more + 12 <= kMaxSafetensorsHeaderBytes) return absl::OkStatus();
    return InvalidArgument({"the header becomes too long; it has ",
                            absl::StrCat(kMaxSafetensorsHeaderBytes), " B or less"});
  }

  std::string text_;
  std::set<absl::string_view> names_;
  int64_t end_ = 0;
};

absl::Status OfWriting(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("safetensors: ", status.message()));
}

absl::Status FillHeader(absl::Span<const SafetensorsEntry> entries,
                        const std::map<std::string, std::string>& metadata, HeaderText& header) {
  DT_ASSIGN_OR_RETURN(const std::string members, MetadataText(metadata));
  if (!members.empty()) {
    DT_RETURN_IF_ERROR(header.AddMember(absl::StrCat("\"", kSafetensorsMetadata, "\""),
                                        absl::StrCat("{", members, "}")));
  }
  for (const SafetensorsEntry& entry : entries) {
    const absl::Status status = header.Add(entry);
    if (!status.ok()) return OfSafetensor(entry.name, status);
  }
  return absl::OkStatus();
}

absl::StatusOr<HeaderText> Header(absl::Span<const SafetensorsEntry> entries,
                                  const std::map<std::string, std::string>& metadata) {
  HeaderText header;
  const absl::Status status = FillHeader(entries, metadata, header);
  if (!status.ok()) return OfWriting(status);
  return header;
}

}  // namespace

std::optional<std::string> JsonQuoted(const std::string& text) {
  std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  if (json::parse(quoted).get_ref<const std::string&>() != text) return std::nullopt;
  return quoted;
}

absl::StatusOr<std::string> SafetensorsBegin(absl::Span<const SafetensorsEntry> entries,
                                             const std::map<std::string, std::string>& metadata) {
  DT_ASSIGN_OR_RETURN(const HeaderText header, Header(entries, metadata));
  return header.WithLength();
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    const std::string& path, absl::Span<const SafetensorsEntry> entries,
    const std::map<std::string, std::string>& metadata) {
  DT_ASSIGN_OR_RETURN(const HeaderText header, Header(entries, metadata));
  DT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  const std::string begin = header.WithLength();
  DT_RETURN_IF_ERROR(file.Write(begin.data(), begin.size()));
  return SafetensorsWriter(std::move(file), header.data_bytes());
}

absl::Status SafetensorsWriter::Append(const void* bytes, int64_t size) {
  missing_ -= size;
  return file_.Write(bytes, size);
}

absl::Status SafetensorsWriter::Commit() {
  if (missing_ == 0) return file_.Commit();
  return absl::FailedPreconditionError(
      absl::StrCat("safetensors: the tensors have ", missing_, " B more than were appended"));
}

absl::Status WriteSafetensors(const std::string& path, absl::Span<const SafetensorsEntry> entries,
                              const std::map<std::string, std::string>& metadata) {
  DT_RETURN_IF_ERROR(Header(entries, metadata).status());
  for (const SafetensorsEntry& entry : entries) {
    if (entry.data != nullptr || NumElements(entry.shape) == 0) continue;
    return OfWriting(OfSafetensor(entry.name, InvalidArgument({"there is no data"})));
  }
  DT_ASSIGN_OR_RETURN(SafetensorsWriter file, SafetensorsWriter::Create(path, entries, metadata));
  for (const SafetensorsEntry& entry : entries) {
    DT_RETURN_IF_ERROR(file.Append(entry.data, NumElements(entry.shape) * SizeOf(entry.dtype)));
  }
  return file.Commit();
}

}  // namespace dtensor
