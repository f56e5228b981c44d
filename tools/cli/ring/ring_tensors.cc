#include "dtensor/tools/cli/ring/ring_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"
#include "dtensor/runtime/kernels/arguments/numeric.h"
#include "dtensor/runtime/kernels/elementwise.h"
#include "dtensor/runtime/testing/doubles.h"

namespace dtensor::cli {
namespace {

Dims QueryShape(const RingProblem& p) { return {p.batch, p.heads, p.q_length, p.head_dim}; }
Dims KeyShape(const RingProblem& p) { return {p.batch, p.kv_heads, p.kv_length, p.head_dim}; }

absl::StatusOr<Tensor> RandomTensor(Device& device, DType dtype, const Dims& shape, int seed) {
  return FromDoubles(device, dtype, RandomNormal(NumElements(shape), dtype, seed), shape);
}

bool IsFinite(const Tensor& tensor) {
  return kernels::VisitFloat(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* values = tensor.data<T>();
    return std::all_of(values, values + tensor.numel(),
                       [](T x) { return std::isfinite(kernels::Cast<double>(x)); });
  });
}

absl::Status InFile(const SafetensorsReader& file, absl::string_view message) {
  return InvalidArgument({"--in: '", file.path(), "': ", message});
}

absl::StatusOr<SafetensorsInfo> FindFloats(const SafetensorsReader& file, absl::string_view name) {
  const absl::StatusOr<SafetensorsInfo> info = file.Find(name);
  if (!info.ok()) {
    return absl::NotFoundError(
        absl::StrCat("--in: ", info.status().message(), "; a ring reads q, k, v and do"));
  }
  if (info->shape.size() == 4 && info->dtype && IsFloat(*info->dtype)) return info;
  return InFile(file,
                absl::StrCat("tensor '", name, "' is ", DimsToString(info->shape), " ", info->type,
                             "; give [batch, heads, seq, head_dim] in F64, F32, BF16 or F16"));
}

// All sizes come from q, except the number of heads of k.
absl::Status CheckShapes(const SafetensorsReader& file, const Dims& q, const Dims& k) {
  const Dims keys = {q[0], k[1], q[2], q[3]};
  for (const auto& [name, shape] :
       {std::pair("k", keys), std::pair("v", keys), std::pair("do", q)}) {
    DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, FindFloats(file, name));
    if (info.shape == shape) continue;
    return InFile(file, absl::StrCat("tensor '", name, "' is ", DimsToString(info.shape),
                                     ", and beside q, ", DimsToString(q), ", it must be ",
                                     DimsToString(shape), "; keys are as many as queries"));
  }
  return absl::OkStatus();
}

// Sets a flag that is not given from the file.
absl::Status Follow(absl::string_view name, int64_t size, const SafetensorsReader& file,
                    std::optional<int64_t>& flag) {
  if (flag.value_or(size) != size) {
    return InvalidArgument({"--", name, ": ", absl::StrCat(*flag), ", and the tensors of '",
                            file.path(), "' have ", absl::StrCat(size),
                            "; leave the flag out, or give another file"});
  }
  flag = size;
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ReadTensor(Device& device, const SafetensorsReader& file,
                                  absl::string_view name, DType dtype) {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, file.Find(name));
  DT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(name));
  DT_ASSIGN_OR_RETURN(const Tensor stored, Tensor::Empty(device, *info.dtype, info.shape));
  DT_RETURN_IF_ERROR(device.CopyFromHost(stored.raw(), bytes.data(), stored.bytes()));
  DT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Empty(device, dtype, info.shape));
  DT_RETURN_IF_ERROR(kernels::Unary(device, kernels::UnaryOp::kCopy, stored, tensor));
  DT_RETURN_IF_ERROR(device.Synchronize());
  if (IsFinite(tensor)) return tensor;
  return InFile(file, absl::StrCat("tensor '", name, "' has values that are not finite in ",
                                   ToString(dtype), "; mend them, or give a wider --dtype"));
}

}  // namespace

std::array<std::pair<const char*, Tensor>, 5> RingOutputs::Named() const {
  return {{{"o", o}, {"lse", lse}, {"dq", dq}, {"dk", dk}, {"dv", dv}}};
}

absl::StatusOr<RingOutputs> EmptyOutputs(Device& device, const RingProblem& problem) {
  const Dims q = QueryShape(problem), k = KeyShape(problem);
  const DType dtype = problem.dtype;
  RingOutputs outputs;
  DT_ASSIGN_OR_RETURN(outputs.o, Tensor::Empty(device, dtype, q));
  DT_ASSIGN_OR_RETURN(outputs.lse, Tensor::Empty(device, AccumulatorOf(dtype), {q[0], q[1], q[2]}));
  DT_ASSIGN_OR_RETURN(outputs.dq, Tensor::Empty(device, dtype, q));
  DT_ASSIGN_OR_RETURN(outputs.dk, Tensor::Empty(device, dtype, k));
  DT_ASSIGN_OR_RETURN(outputs.dv, Tensor::Empty(device, dtype, k));
  return outputs;
}

absl::StatusOr<RingInputs> RandomInputs(Device& device, const RingProblem& problem) {
  const Dims q = QueryShape(problem), k = KeyShape(problem);
  RingInputs inputs;
  DT_ASSIGN_OR_RETURN(inputs.q, RandomTensor(device, problem.dtype, q, 1));
  DT_ASSIGN_OR_RETURN(inputs.k, RandomTensor(device, problem.dtype, k, 2));
  DT_ASSIGN_OR_RETURN(inputs.v, RandomTensor(device, problem.dtype, k, 3));
  DT_ASSIGN_OR_RETURN(inputs.dout, RandomTensor(device, problem.dtype, q, 4));
  return inputs;
}

absl::StatusOr<RingFlags> WithSizesOf(const SafetensorsReader& file, const RingFlags& flags) {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo q, FindFloats(file, "q"));
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo k, FindFloats(file, "k"));
  DT_RETURN_IF_ERROR(CheckShapes(file, q.shape, k.shape));
  RingFlags followed = flags;
  DT_RETURN_IF_ERROR(Follow("batch", q.shape[0], file, followed.batch));
  DT_RETURN_IF_ERROR(Follow("heads", q.shape[1], file, followed.heads));
  DT_RETURN_IF_ERROR(Follow("kv-heads", k.shape[1], file, followed.kv_heads));
  DT_RETURN_IF_ERROR(Follow("seq", q.shape[2], file, followed.seq));
  DT_RETURN_IF_ERROR(Follow("head-dim", q.shape[3], file, followed.head_dim));
  if (!followed.dtype) followed.dtype = std::string(ToString(*q.dtype));
  return followed;
}

absl::StatusOr<RingInputs> ReadInputs(Device& device, const SafetensorsReader& file,
                                      const RingProblem& problem) {
  RingInputs inputs;
  DT_ASSIGN_OR_RETURN(inputs.q, ReadTensor(device, file, "q", problem.dtype));
  DT_ASSIGN_OR_RETURN(inputs.k, ReadTensor(device, file, "k", problem.dtype));
  DT_ASSIGN_OR_RETURN(inputs.v, ReadTensor(device, file, "v", problem.dtype));
  DT_ASSIGN_OR_RETURN(inputs.dout, ReadTensor(device, file, "do", problem.dtype));
  return inputs;
}

absl::Status WriteOutputs(const std::string& path, const RingOutputs& outputs) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : outputs.Named()) {
    entries.push_back({name, tensor.dtype(), tensor.shape(), tensor.raw()});
  }
  return WriteSafetensors(path, entries, {});
}

}  // namespace dtensor::cli
