// CheckpointIndex::Parse. The checksum shows that the text is the one that was written. All other
// checks protect the reader from a text that was written by something else.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/runtime/core/index_set.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/crc32c.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "nlohmann/json.hpp"

namespace dtensor {
namespace {

using Json = nlohmann::json;

// The sum of a few such numbers still fits into int64.
constexpr int64_t kMaxBytes = int64_t{1} << 60;

absl::Status Wrong(absl::string_view what) {
  return InvalidArgument({"it has no ", what, " as a checkpoint's index has it"});
}

// The member of an object; null if there is none, or if `json` is not an object.
const Json* Member(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto at = json.find(name);
  return at == json.end() ? nullptr : &*at;
}

absl::StatusOr<int64_t> AsNumber(const Json* json, absl::string_view what, int64_t most) {
  if (json == nullptr || !json->is_number_integer()) return Wrong(what);
  if (json->is_number_unsigned() && json->get<uint64_t>() > static_cast<uint64_t>(most)) {
    return Wrong(what);
  }
  const int64_t value = json->get<int64_t>();
  if (value < 0 || value > most) return Wrong(what);
  return value;
}

absl::StatusOr<std::string> AsText(const Json* json, absl::string_view what) {
  if (json == nullptr || !json->is_string()) return Wrong(what);
  return json->get<std::string>();
}

absl::StatusOr<const Json*> AsList(const Json* json, absl::string_view what) {
  if (json == nullptr || !json->is_array()) return Wrong(what);
  return json;
}

// Eight digits in lower case: no flipped bit gives another spelling of the same number.
std::optional<uint32_t> ParseCrc(absl::string_view text) {
  if (text.size() != 8) return std::nullopt;
  uint32_t value = 0;
  for (const char c : text) {
    const bool digit = absl::ascii_isdigit(c), letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return std::nullopt;
    value = value << 4 | static_cast<uint32_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

absl::StatusOr<uint32_t> AsCrc(const Json* json, absl::string_view what) {
  DT_ASSIGN_OR_RETURN(const std::string text, AsText(json, what));
  const std::optional<uint32_t> crc = ParseCrc(text);
  if (!crc) return Wrong(what);
  return *crc;
}

// Reads the members of an object, which must all be texts.
template <typename Map>
absl::Status ReadTexts(const Json* json, absl::string_view what, Map& out) {
  if (json == nullptr || !json->is_object()) return Wrong(what);
  for (const auto& [name, value] : json->items()) {
    DT_ASSIGN_OR_RETURN(out[name], AsText(&value, what));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointFile> ReadFileMember(const Json& json) {
  CheckpointFile file;
  DT_ASSIGN_OR_RETURN(file.name, AsText(Member(json, "name"), "file's name"));
  const bool is_plain = !file.name.empty() && file.name[0] != '.' &&
                        file.name.find('/') == file.name.npos &&
                        file.name.find('\0') == file.name.npos;
  if (!is_plain) return Wrong("file's name");
  DT_ASSIGN_OR_RETURN(file.bytes, AsNumber(Member(json, "bytes"), "file's bytes", kMaxBytes));
  DT_ASSIGN_OR_RETURN(file.header_bytes,
                      AsNumber(Member(json, "header_bytes"), "file's header_bytes",
                               std::min(file.bytes, kMaxSafetensorsHeaderBytes + 8)));
  DT_ASSIGN_OR_RETURN(file.slice_bytes, AsNumber(Member(json, "slice_bytes"), "file's slice_bytes",
                                                 file.bytes - file.header_bytes));
  if ((file.bytes - file.header_bytes - file.slice_bytes) % 4 != 0) return Wrong("file's table");
  DT_ASSIGN_OR_RETURN(file.header_crc32c,
                      AsCrc(Member(json, "header_crc32c"), "file's header_crc32c"));
  DT_ASSIGN_OR_RETURN(file.table_crc32c,
                      AsCrc(Member(json, "table_crc32c"), "file's table_crc32c"));
  return file;
}

// Reads a run that begins at `from` or later, within a dimension of size n.
absl::StatusOr<IndexRun> ReadRun(const Json& json, int64_t from, int64_t n) {
  constexpr absl::string_view kWhat = "slice's region";
  if (!json.is_array() || (json.size() != 2 && json.size() != 4)) return Wrong(kWhat);
  IndexRun run;
  DT_ASSIGN_OR_RETURN(run.begin, AsNumber(&json[0], kWhat, n));
  DT_ASSIGN_OR_RETURN(run.length, AsNumber(&json[1], kWhat, n - run.begin));
  if (run.begin < from || run.length == 0) return Wrong(kWhat);
  if (json.size() == 2) return run;
  DT_ASSIGN_OR_RETURN(run.stride, AsNumber(&json[2], kWhat, n));
  DT_ASSIGN_OR_RETURN(run.count, AsNumber(&json[3], kWhat, n));
  const bool fits = run.count >= 2 && run.stride > run.length &&
                    run.count - 1 <= (n - run.begin - run.length) / run.stride;
  if (!fits) return Wrong(kWhat);
  return run;
}

absl::StatusOr<IndexSet> ReadSet(const Json& json, int64_t n) {
  DT_ASSIGN_OR_RETURN(const Json* list, AsList(&json, "slice's region"));
  std::vector<IndexRun> runs;
  for (const Json& item : *list) {
    DT_ASSIGN_OR_RETURN(runs.emplace_back(),
                        ReadRun(item, runs.empty() ? 0 : runs.back().end(), n));
  }
  return IndexSet::FromIntervals(runs);
}

class Reader {
 public:
  absl::StatusOr<CheckpointIndex> Read(const Json& json) {
    constexpr int64_t kMaxStep = std::numeric_limits<int64_t>::max();
    DT_ASSIGN_OR_RETURN(index_.step, AsNumber(Member(json, "step"), "step", kMaxStep));
    constexpr int64_t kMaxRanks = std::numeric_limits<int>::max();
    DT_ASSIGN_OR_RETURN(const int64_t ranks, AsNumber(Member(json, "ranks"), "ranks", kMaxRanks));
    index_.ranks = static_cast<int>(ranks);
    DT_RETURN_IF_ERROR(ReadTexts(Member(json, "entries"), "entries", index_.entries));
    DT_RETURN_IF_ERROR(ReadTexts(Member(json, "aliases"), "aliases", index_.aliases));
    DT_ASSIGN_OR_RETURN(const Json* files, AsList(Member(json, "files"), "files"));
    for (const Json& file : *files) {
      DT_ASSIGN_OR_RETURN(index_.files.emplace_back(), ReadFileMember(file));
    }
    const Json* tensors = Member(json, "tensors");
    if (tensors == nullptr || !tensors->is_object()) return Wrong("tensors");
    for (const auto& [name, tensor] : tensors->items()) {
      absl::StatusOr<CheckpointTensor> read = ReadTensor(tensor);
      if (!read.ok()) {
        return InvalidArgument(
            {"tensor '", absl::CHexEscape(Shortened(name)), "': ", read.status().message()});
      }
      index_.tensors[name] = *std::move(read);
    }
    for (const auto& [alias, name] : index_.aliases) {
      if (!index_.tensors.contains(name) || index_.tensors.contains(alias)) return Wrong("aliases");
    }
    return std::move(index_);
  }

 private:
  absl::StatusOr<CheckpointTensor> ReadTensor(const Json& json) {
    CheckpointTensor tensor;
    DT_ASSIGN_OR_RETURN(const std::string dtype, AsText(Member(json, "dtype"), "dtype"));
    DT_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(dtype));
    DT_ASSIGN_OR_RETURN(const Json* shape, AsList(Member(json, "shape"), "shape"));
    if (shape->size() > static_cast<size_t>(Layout::kMaxDims)) return Wrong("shape");
    for (const Json& size : *shape) {
      DT_ASSIGN_OR_RETURN(const int64_t n, AsNumber(&size, "shape", kMaxElements));
      tensor.shape.push_back(n);
    }
    DT_ASSIGN_OR_RETURN(const int64_t elements, CheckedNumElements("the shape", tensor.shape));
    DT_ASSIGN_OR_RETURN(const Json* slices, AsList(Member(json, "slices"), "slices"));
    int64_t sum = 0;
    for (const Json& slice : *slices) {
      DT_ASSIGN_OR_RETURN(tensor.slices.emplace_back(), ReadSlice(slice, tensor));
      const int64_t more = NumElements(tensor.slices.back().region);
      if (more == 0 || more > elements - sum) return Wrong("slices");
      sum += more;
    }
    if (sum != elements) return Wrong("slices");
    return tensor;
  }

  absl::StatusOr<CheckpointSlice> ReadSlice(const Json& json, const CheckpointTensor& tensor) {
    CheckpointSlice slice;
    const auto most_file = static_cast<int64_t>(index_.files.size()) - 1;
    DT_ASSIGN_OR_RETURN(const int64_t number,
                        AsNumber(Member(json, "file"), "slice's file", most_file));
    slice.file = static_cast<size_t>(number);
    DT_ASSIGN_OR_RETURN(const Json* region, AsList(Member(json, "region"), "slice's region"));
    if (region->size() != tensor.shape.size()) return Wrong("slice's region");
    for (size_t d = 0; d < region->size(); ++d) {
      DT_ASSIGN_OR_RETURN(IndexSet set, ReadSet((*region)[d], tensor.shape[d]));
      slice.region.push_back(std::move(set));
    }
    const CheckpointFile& file = index_.files[slice.file];
    const int64_t bytes = NumElements(slice.region) * SizeOf(tensor.dtype);
    if (bytes > file.slice_bytes) return Wrong("slice's region");
    DT_ASSIGN_OR_RETURN(slice.begin,
                        AsNumber(Member(json, "begin"), "slice's begin", file.slice_bytes - bytes));
    const int64_t blocks = (file.bytes - file.header_bytes - file.slice_bytes) / 4;
    if (ChecksumBlocks(bytes) > blocks) return Wrong("slice's block");
    DT_ASSIGN_OR_RETURN(slice.first_block, AsNumber(Member(json, "block"), "slice's block",
                                                    blocks - ChecksumBlocks(bytes)));
    return slice;
  }

  CheckpointIndex index_;
};

// Checks the first line, and that the rest of the text is what it says.
absl::Status CheckFirstLine(absl::string_view text, absl::string_view& body) {
  constexpr absl::string_view kBegin = "{\"dtensor_checkpoint\":";
  if (text.substr(0, kBegin.size()) != kBegin) {
    return InvalidArgument({"it does not begin as the index of a checkpoint"});
  }
  const size_t end = text.find('\n');
  if (end == text.npos) return InvalidArgument({"it is cut short"});
  body = text.substr(end + 1);
  absl::string_view version = text.substr(kBegin.size(), end - kBegin.size());
  version = version.substr(0, version.find(','));
  if (int64_t number; absl::SimpleAtoi(version, &number) && number > 1) {
    return InvalidArgument({"it is of version ", version,
                            " of the format, or a bit of it has changed; this library reads "
                            "version 1"});
  }
  // The line must be exactly as it would be written.
  const std::string expected = absl::StrFormat("%s1,\"bytes\":%d,\"crc32c\":\"%08x\",", kBegin,
                                               body.size(), Crc32c(0, body.data(), body.size()));
  if (text.substr(0, end) == expected) return absl::OkStatus();
  return InvalidArgument({"it is cut short, or was changed: its first line is '",
                          text.substr(0, end), "', and that of the rest would be '", expected,
                          "'"});
}

}  // namespace

absl::StatusOr<CheckpointIndex> CheckpointIndex::Parse(absl::string_view text) {
  absl::string_view body;
  DT_RETURN_IF_ERROR(CheckFirstLine(text, body));
  const Json json = Json::parse(absl::StrCat("{", body), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return InvalidArgument({"it is no JSON"});
  return Reader().Read(json);
}

}  // namespace dtensor
