#include "dtensor/checkpoint/rank_content.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/core/wire.h"

namespace dtensor {
namespace {

using Texts = std::map<std::string, std::string>;

void Write(const Texts& texts, WireWriter& out) {
  out.U32(static_cast<uint32_t>(texts.size()));
  for (const auto& [name, text] : texts) {
    out.Text(name);
    out.Text(text);
  }
}

void Write(const DescribedTensor& described, WireWriter& out) {
  const PlannedTensor& tensor = described.tensor;
  out.Text(described.text);
  out.Text(tensor.layout.mesh().ToString());
  out.Text(tensor.layout.ToString());
  out.Text(ToString(tensor.dtype));
  out.U32(static_cast<uint32_t>(tensor.shape.size()));
  for (const int64_t size : tensor.shape) out.U64(static_cast<uint64_t>(size));
}

void Write(const NamedTensor& named, WireWriter& out) {
  out.U64(named.digest);
  out.U32(static_cast<uint32_t>(named.first));
  out.U8(named.described ? 1 : 0);
  if (named.described) Write(*named.described, out);
}

// One Read for each Write. If the input ends early, everything reads as 0 or "", so a count that is
// missing ends its loop at once.
Texts ReadTexts(WireReader& in) {
  Texts texts;
  const uint32_t count = in.U32();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string name = in.Text();
    texts[std::move(name)] = in.Text();
  }
  return texts;
}

absl::Status CheckTensor(const PlannedTensor& tensor, int ranks) {
  const DeviceMesh& mesh = tensor.layout.mesh();
  if (tensor.layout.is_partial()) return InvalidArgument({"it is Partial"});
  if (static_cast<size_t>(tensor.layout.ndim()) != tensor.shape.size()) {
    return InvalidArgument({"its layout has other dimensions"});
  }
  DT_RETURN_IF_ERROR(CheckedNumElements("it", tensor.shape).status());
  for (int position = 0; position < mesh.size(); ++position) {
    if (position >= ranks || mesh.RankOf(position) >= ranks) {
      return InvalidArgument({"its mesh has other ranks"});
    }
  }
  return CheckRegions(tensor.layout, tensor.shape);
}

absl::StatusOr<DescribedTensor> ReadDescribed(WireReader& in, int ranks) {
  DescribedTensor described;
  described.text = in.Text();
  const std::string mesh_text = in.Text(), layout = in.Text(), dtype = in.Text();
  const uint32_t ndim = in.U32();
  PlannedTensor& tensor = described.tensor;
  for (uint32_t d = 0; d < ndim && in.ok(); ++d) {
    tensor.shape.push_back(static_cast<int64_t>(in.U64()));
  }
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  DT_ASSIGN_OR_RETURN(tensor.layout, Layout::Parse(mesh, layout));
  DT_ASSIGN_OR_RETURN(tensor.dtype, ParseDType(dtype));
  DT_RETURN_IF_ERROR(CheckTensor(tensor, ranks));
  return described;
}

absl::StatusOr<NamedTensor> ReadNamed(WireReader& in, int ranks) {
  NamedTensor named;
  named.digest = in.U64();
  named.first = static_cast<int>(in.U32());
  if (named.first < 0 || named.first >= ranks) return InvalidArgument({"its rank is none"});
  if (!in.Bool()) return named;
  DT_ASSIGN_OR_RETURN(named.described, ReadDescribed(in, ranks));
  return named;
}

}  // namespace

std::string Encode(const RankContent& content) {
  WireWriter out;
  out.Text(content.folder);
  out.U64(static_cast<uint64_t>(content.step));
  Write(content.entries, out);
  Write(content.aliases, out);
  out.U32(static_cast<uint32_t>(content.tensors.size()));
  for (const auto& [name, named] : content.tensors) {
    out.Text(name);
    Write(named, out);
  }
  return out.bytes();
}

absl::StatusOr<RankContent> ReadRankContent(absl::string_view bytes, int ranks) {
  WireReader in(bytes);
  RankContent content;
  content.folder = in.Text();
  content.step = static_cast<int64_t>(in.U64());
  content.entries = ReadTexts(in);
  content.aliases = ReadTexts(in);
  const uint32_t count = in.U32();
  for (uint32_t i = 0; i < count && in.ok(); ++i) {
    std::string name = in.Text();
    DT_ASSIGN_OR_RETURN(content.tensors[std::move(name)], ReadNamed(in, ranks));
  }
  if (in.done()) return content;
  return InvalidArgument({"what a rank names of a checkpoint cannot be read in ",
                          absl::StrCat(bytes.size()), " bytes"});
}

}  // namespace dtensor
