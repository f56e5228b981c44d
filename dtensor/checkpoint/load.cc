#include "dtensor/checkpoint/load.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/device.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/io/safetensors/safetensors_format.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/tensor/gather_values.h"

namespace dtensor {
namespace {

absl::Status Check(const Context& context, const CheckpointReader& reader, const std::string& name,
                   const DistributedTensor& into) {
  if (!into.defined()) return InvalidArgument({"it is undefined"});
  if (&into.context() != &context) return InvalidArgument({"it belongs to another Context"});
  if (into.layout().is_partial()) {
    return InvalidArgument({into.ToString(), " is Partial; load into another layout"});
  }
  return internal::CheckLoad(reader, name, into.shape(), into.dtype(), into.ToString());
}

// Reads the elements of this rank, in the type in which they were saved, to the device.
absl::StatusOr<Tensor> ReadLocal(Device& device, CheckpointReader& reader, const std::string& name,
                                 const Region& region, const Dims& shape) {
  const DType dtype = reader.index().Find(name)->dtype;
  DT_ASSIGN_OR_RETURN(Tensor local, Tensor::Empty(device, dtype, shape));
  if (device.kind() == Device::Kind::kCpu) {  // is host memory
    DT_RETURN_IF_ERROR(reader.Read(name, region, local.raw()));
    return local;
  }
  std::vector<char> bytes(local.bytes());
  DT_RETURN_IF_ERROR(reader.Read(name, region, bytes.data()));
  DT_RETURN_IF_ERROR(device.CopyFromHost(local.raw(), bytes.data(), local.bytes()));
  DT_RETURN_IF_ERROR(device.Synchronize());
  return local;
}

// Converts floats in the same way as Cast.
absl::StatusOr<Tensor> Converted(Device& device, Tensor from, DType dtype) {
  if (from.dtype() == dtype) return from;
  DT_ASSIGN_OR_RETURN(Tensor to, Tensor::Empty(device, dtype, from.shape()));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, from, to));
  return to;
}

// The error names a rank that sees another checkpoint than rank 0.
absl::Status CheckSame(Context& context, const CheckpointReader& reader) {
  DT_ASSIGN_OR_RETURN(const int other, FirstUnlikeRank0(context, reader.index_crc32c()));
  if (other == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("LoadCheckpoint: rank ", other, " has another checkpoint in '", reader.path(),
                   "' than rank 0; all ranks need the same folder"));
}

}  // namespace

absl::Status internal::CheckLoad(const CheckpointReader& reader, const std::string& name,
                                 absl::Span<const int64_t> shape, DType dtype,
                                 absl::string_view into) {
  const CheckpointTensor* const saved = reader.index().Find(name);
  if (saved == nullptr) {
    return InvalidArgument({"checkpoint '", reader.path(), "' has no tensor of this name; it has ",
                            absl::StrCat(reader.index().tensors.size()),
                            ", which `dtensor checkpoint show` lists"});
  }
  if (absl::MakeConstSpan(saved->shape) != shape) {
    return InvalidArgument({"checkpoint '", reader.path(), "' has it with the shape ",
                            DimsToString(saved->shape), ", and it is loaded into ", into});
  }
  if (saved->dtype == dtype || (IsFloat(saved->dtype) && IsFloat(dtype))) return absl::OkStatus();
  return InvalidArgument({"checkpoint '", reader.path(), "' has it in ", ToString(saved->dtype),
                          ", and it is loaded into ", into,
                          "; only floats become floats of another type"});
}

absl::Status internal::LoadLocal(CheckpointReader& reader, const std::string& name,
                                 const DistributedTensor& into) {
  const Spec& spec = into.spec();
  if (!spec.on_mesh || spec.local_numel == 0) return absl::OkStatus();
  Device& device = into.context().device();
  const Region region =
      Regions(spec.layout, spec.shape, spec.mesh().Coordinate(into.context().rank()));
  const Tensor& local = into.local();
  const bool in_place = device.kind() == Device::Kind::kCpu && local.is_contiguous() &&
                        reader.index().Find(name)->dtype == spec.dtype;
  if (in_place) return reader.Read(name, region, local.raw());
  DT_ASSIGN_OR_RETURN(Tensor read, ReadLocal(device, reader, name, region, spec.local_shape));
  DT_ASSIGN_OR_RETURN(read, Converted(device, std::move(read), spec.dtype));
  return kernels::Copy(device, read, local);
}

absl::StatusOr<CheckpointReader> OpenCheckpoint(Context& context, const std::string& path,
                                                FileSystem& files) {
  // Rank 0 chooses for all, because another world may be saving meanwhile.
  absl::StatusOr<CheckpointReader> mine = absl::UnknownError("");
  if (context.rank() == 0) mine = CheckpointReader::Open(path, files);
  const absl::Status first = context.rank() == 0 ? mine.status() : absl::OkStatus();
  DT_RETURN_IF_ERROR(AgreeOn(context, first));
  DT_ASSIGN_OR_RETURN(
      const auto paths,
      GatherBytes(context, context.rank() == 0 ? mine->path() : "", "OpenCheckpoint"));
  if (context.rank() != 0) mine = CheckpointReader::Open(paths[0], files);
  DT_RETURN_IF_ERROR(AgreeOn(context, mine.status()));
  DT_RETURN_IF_ERROR(CheckSame(context, *mine));
  return mine;
}

absl::Status LoadTensors(Context& context, CheckpointReader& reader,
                         const std::vector<LoadTarget>& targets) {
  absl::Status status;
  for (const auto& [name, tensor] : targets) {
    status = Check(context, reader, name, tensor);
    if (!status.ok()) status = OfSafetensor(name, status);
    if (!status.ok()) break;
  }
  DT_RETURN_IF_ERROR(AgreeOn(context, status));
  for (const auto& [name, tensor] : targets) {
    if (status.ok()) status = BeforeWrite(tensor);
  }
  DT_RETURN_IF_ERROR(AgreeOn(context, status));
  for (const auto& [name, tensor] : targets) {
    if (status.ok()) status = internal::LoadLocal(reader, name, tensor);
  }
  if (status.ok()) status = context.device().Synchronize();
  return AgreeOn(context, status);
}

}  // namespace dtensor
