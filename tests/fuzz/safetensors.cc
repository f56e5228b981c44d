// The bytes of a safetensors file. What can be read can be written, and read again.
#include "dtensor/runtime/io/safetensors/safetensors.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

// A file of this process alone.
std::string PathOf(absl::string_view name) {
  const char* folder = std::getenv("TEST_TMPDIR");
  return absl::StrCat(folder == nullptr ? "." : folder, "/", name, ".safetensors");
}

// The tensors whose types the library has.
std::vector<SafetensorsEntry> EntriesOf(const SafetensorsReader& file,
                                        std::vector<std::vector<std::byte>>& bytes) {
  std::vector<SafetensorsEntry> entries;
  bytes.reserve(file.tensors().size());
  for (const auto& [name, info] : file.tensors()) {
    absl::StatusOr<std::vector<std::byte>> data = file.Read(name);
    Require(data.ok(), "what the header promises can be read");
    Require(static_cast<int64_t>(data->size()) == info.end - info.begin, "all of it");
    if (!info.dtype) continue;
    bytes.push_back(*std::move(data));
    entries.push_back({name, *info.dtype, info.shape, bytes.back().data()});
  }
  return entries;
}

void TryAgain(const SafetensorsReader& file) {
  std::vector<std::vector<std::byte>> bytes;
  const std::vector<SafetensorsEntry> entries = EntriesOf(file, bytes);
  const std::string path = PathOf("again");
  Require(WriteSafetensors(path, entries, file.metadata()).ok(), "what was read can be written");
  const absl::StatusOr<SafetensorsReader> again = SafetensorsReader::Open(path);
  Require(again.ok(), "what was written can be read");
  Require(again->metadata() == file.metadata(), "metadata stay");
  Require(again->tensors().size() == entries.size(), "and so do tensors");
  for (size_t i = 0; i < entries.size(); ++i) {
    const absl::StatusOr<SafetensorsInfo> info = again->Find(entries[i].name);
    Require(info.ok() && info->dtype == entries[i].dtype && info->shape == entries[i].shape,
            "with their types and shapes");
    const absl::StatusOr<std::vector<std::byte>> data = again->Read(entries[i].name);
    Require(data.ok() && *data == bytes[i], "and values");
  }
}

}  // namespace

void Try(absl::string_view input) {
  const std::string path = PathOf("input");
  std::ofstream(path, std::ios::binary) << input;
  const absl::StatusOr<SafetensorsReader> file = SafetensorsReader::Open(path);
  if (!IsRead(file)) return;
  IsRead(file->Find("a name that it lacks"));
  TryAgain(*file);
}

}  // namespace dtensor::fuzz
