#include "dtensor/checkpoint/index.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "dtensor/runtime/core/shortened.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/crc32c.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"

namespace dtensor {
namespace {

std::string Quoted(const std::string& text) { return *JsonQuoted(text); }

std::string MembersText(const std::map<std::string, std::string>& members) {
  return absl::StrCat("{",
                      absl::StrJoin(members, ",\n",
                                    [](std::string* out, const auto& member) {
                                      absl::StrAppend(out, Quoted(member.first), ":",
                                                      Quoted(member.second));
                                    }),
                      "}");
}

std::string FileText(const CheckpointFile& file) {
  const auto crc = [](uint32_t value) { return absl::StrFormat("\"%08x\"", value); };
  return absl::StrCat(
      "{\"name\":", Quoted(file.name), ",\"bytes\":", file.bytes,
      ",\"header_bytes\":", file.header_bytes, ",\"header_crc32c\":", crc(file.header_crc32c),
      ",\"slice_bytes\":", file.slice_bytes, ",\"table_crc32c\":", crc(file.table_crc32c), "}");
}

// [begin, length] for an interval; [begin, length, stride, count] for a strided run.
std::string RunText(const IndexRun& run) {
  if (run.count == 1) return absl::StrCat("[", run.begin, ",", run.length, "]");
  return absl::StrCat("[", run.begin, ",", run.length, ",", run.stride, ",", run.count, "]");
}

std::string RegionText(const Region& region) {
  return absl::StrCat("[",
                      absl::StrJoin(region, ",",
                                    [](std::string* out, const IndexSet& set) {
                                      absl::StrAppend(
                                          out, "[",
                                          absl::StrJoin(set.runs(), ",",
                                                        [](std::string* o, const auto& r) {
                                                          o->append(RunText(r));
                                                        }),
                                          "]");
                                    }),
                      "]");
}

std::string SliceText(const CheckpointSlice& slice) {
  return absl::StrFormat(R"({"file":%d,"begin":%d,"block":%d,"region":%s})", slice.file,
                         slice.begin, slice.first_block, RegionText(slice.region));
}

std::string TensorText(const CheckpointTensor& tensor) {
  return absl::StrCat(R"({"dtype":")", ToString(tensor.dtype), R"(","shape":[)",
                      absl::StrJoin(tensor.shape, ","), R"(],"slices":[)",
                      absl::StrJoin(tensor.slices, ",",
                                    [](std::string* out, const CheckpointSlice& slice) {
                                      out->append(SliceText(slice));
                                    }),
                      "]}");
}

}  // namespace

const CheckpointTensor* CheckpointIndex::Find(absl::string_view name) const {
  if (const auto alias = aliases.find(name); alias != aliases.end()) name = alias->second;
  const auto at = tensors.find(name);
  return at == tensors.end() ? nullptr : &at->second;
}

int64_t CheckpointIndex::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    sum += NumElements(tensor.shape) * SizeOf(tensor.dtype);
  }
  return sum;
}

std::string CheckpointIndex::ToText() const {
  std::string body = absl::StrCat(
      "\"step\":", step, ",\n\"ranks\":", ranks, ",\n\"entries\":", MembersText(entries),
      ",\n\"aliases\":", MembersText({aliases.begin(), aliases.end()}), ",\n\"files\":[");
  absl::StrAppend(
      &body,
      absl::StrJoin(
          files, ",\n",
          [](std::string* out, const CheckpointFile& file) { out->append(FileText(file)); }),
      "],\n\"tensors\":{\n",
      absl::StrJoin(tensors, ",\n",
                    [](std::string* out, const auto& tensor) {
                      absl::StrAppend(out, Quoted(tensor.first), ":", TensorText(tensor.second));
                    }),
      "\n}}\n");
  return absl::StrFormat("{\"dtensor_checkpoint\":1,\"bytes\":%d,\"crc32c\":\"%08x\",\n%s",
                         body.size(), Crc32c(0, body.data(), body.size()), body);
}

absl::Status CheckIndexText(absl::string_view what, const std::string& text) {
  if (JsonQuoted(text).has_value()) return absl::OkStatus();
  return InvalidArgument({what, " '", absl::CHexEscape(Shortened(text)), "' is no UTF-8"});
}

}  // namespace dtensor
