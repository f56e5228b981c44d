// The index of a checkpoint. An index that can be read is written as the same text. The checksum in
// the first line would reject nearly every input, so each is also tried with the right checksum.
#include <string>

#include "absl/strings/str_format.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/runtime/io/crc32c.h"
#include "dtensor/tests/fuzz/fuzz.h"

namespace dtensor::fuzz {
namespace {

void TryText(absl::string_view text) {
  const absl::StatusOr<CheckpointIndex> index = CheckpointIndex::Parse(text);
  if (!IsRead(index)) return;
  const std::string again = index->ToText();
  const absl::StatusOr<CheckpointIndex> reread = CheckpointIndex::Parse(again);
  Require(reread.ok(), "what was read can be written, and read again");
  Require(reread->ToText() == again, "as the same text");
  for (const auto& [name, tensor] : index->tensors) {
    Require(index->Find(name) == &tensor, "each tensor is found");
    int64_t elements = 0;
    for (const CheckpointSlice& slice : tensor.slices) {
      elements += NumElements(slice.region);
      const CheckpointFile& file = index->files.at(slice.file);
      const int64_t bytes = NumElements(slice.region) * SizeOf(tensor.dtype);
      Require(slice.begin >= 0 && slice.begin + bytes <= file.slice_bytes, "slices are in files");
      Require(
          file.header_bytes + file.slice_bytes + 4 * (slice.first_block + ChecksumBlocks(bytes)) <=
              file.bytes,
          "and so are their checksums");
    }
    Require(elements == NumElements(tensor.shape), "slices are all of it");
  }
}

}  // namespace

void Try(absl::string_view input) {
  TryText(input);
  const absl::string_view body =
      input.substr(0, input.find('\n')) == input ? input : input.substr(input.find('\n') + 1);
  TryText(absl::StrFormat("{\"dtensor_checkpoint\":1,\"bytes\":%d,\"crc32c\":\"%08x\",\n%s",
                          body.size(), Crc32c(0, body.data(), body.size()), body));
}

}  // namespace dtensor::fuzz
