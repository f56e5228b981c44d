#include "dtensor/tests/torch_cases/stored_case.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/doubles.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/testing/op_cases.h"

namespace dtensor {
namespace {

constexpr double kTolerance = 1e-12;

std::vector<double> ToDoubles(DType dtype, absl::Span<const std::byte> bytes) {
  return VisitDType(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<double> values;
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      if constexpr (sizeof(T) == 2)
        values.push_back(static_cast<float>(value));
      else
        values.push_back(static_cast<double>(value));
    }
    return values;
  });
}

// Those of "name0" to "name<count - 1>" that are there.
absl::StatusOr<std::map<int, StoredTensor>> ReadSome(const SafetensorsReader& file,
                                                     const std::string& name, size_t count) {
  std::map<int, StoredTensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    const std::string one = absl::StrCat(name, i);
    if (!file.tensors().contains(one)) continue;
    DT_ASSIGN_OR_RETURN(tensors[static_cast<int>(i)], ReadStoredTensor(file, one));
  }
  return tensors;
}

TensorOr PlaceStored(Context& context, const Layout& layout, const StoredTensor& tensor) {
  return Place(context, layout, tensor.shape, tensor.dtype, tensor.values, /*seed=*/0);
}

bool IsClose(double got, double want, double tolerance) {
  if (std::isfinite(want)) return std::abs(got - want) <= tolerance;
  return std::isnan(want) ? std::isnan(got) : got == want;
}

// What is wrong with `got`, if anything is.
absl::StatusOr<std::optional<std::string>> Difference(const DistributedTensor& got,
                                                      const StoredTensor& want) {
  if (!got.defined()) return "there is none";
  if (got.shape() != want.shape || got.dtype() != want.dtype) {
    return absl::StrCat("it is ", got.ToString(), ", not ", DimsToString(want.shape), " ",
                        ToString(want.dtype));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<double> values, GlobalValues(got));
  const double rms = static_cast<double>(Rms(want.values));
  for (size_t i = 0; i < want.values.size(); ++i) {
    if (IsClose(values[i], want.values[i], kTolerance * rms)) continue;
    return absl::StrFormat("element %d is %.17g, PyTorch's %.17g, their RMS %.3g", i, values[i],
                           want.values[i], rms);
  }
  return std::nullopt;
}

absl::Status Compare(const std::string& what, const DistributedTensor& got,
                     const StoredTensor& want, std::vector<std::string>& differences) {
  DT_ASSIGN_OR_RETURN(const auto difference, Difference(got, want));
  if (difference.has_value()) differences.push_back(absl::StrCat(what, ": ", *difference));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorOr>> MakeOperands(Context& context, const StoredCase& stored,
                                                   absl::Span<const Layout> layouts) {
  std::vector<TensorOr> operands;
  for (size_t i = 0; i < stored.operands.size(); ++i) {
    DT_ASSIGN_OR_RETURN(DistributedTensor operand,
                        PlaceStored(context, layouts[i], stored.operands[i]));
    if (stored.gradients.contains(static_cast<int>(i))) {
      DT_RETURN_IF_ERROR(operand.set_requires_grad(true));
    }
    operands.push_back(std::move(operand));
  }
  return operands;
}

}  // namespace

absl::StatusOr<StoredTensor> ReadStoredTensor(const SafetensorsReader& file,
                                              const std::string& name) {
  DT_ASSIGN_OR_RETURN(const SafetensorsInfo info, file.Find(name));
  if (!info.dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has the type ", info.type));
  }
  DT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(name));
  return StoredTensor{info.shape, *info.dtype, ToDoubles(*info.dtype, bytes)};
}

absl::StatusOr<std::vector<StoredTensor>> ReadStoredTensors(const SafetensorsReader& file,
                                                            const std::string& name) {
  std::vector<StoredTensor> tensors;
  do {
    DT_ASSIGN_OR_RETURN(tensors.emplace_back(),
                        ReadStoredTensor(file, absl::StrCat(name, tensors.size())));
  } while (file.tensors().contains(absl::StrCat(name, tensors.size())));
  return tensors;
}

absl::StatusOr<StoredCase> ReadStoredCase(const SafetensorsReader& file, const std::string& name) {
  StoredCase stored;
  DT_ASSIGN_OR_RETURN(stored.operands, ReadStoredTensors(file, name + "/operand"));
  DT_ASSIGN_OR_RETURN(stored.results, ReadStoredTensors(file, name + "/result"));
  DT_ASSIGN_OR_RETURN(stored.result_gradients,
                      ReadSome(file, name + "/dresult", stored.results.size()));
  DT_ASSIGN_OR_RETURN(stored.gradients, ReadSome(file, name + "/gradient", stored.operands.size()));
  return stored;
}

absl::StatusOr<std::vector<std::string>> Differences(Context& context, const TorchCall& call,
                                                     const StoredCase& stored,
                                                     const CaseLayouts& layouts) {
  DT_ASSIGN_OR_RETURN(const std::vector<TensorOr> operands,
                      MakeOperands(context, stored, layouts.operands));
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> results, call(operands));
  if (results.size() != stored.results.size()) {
    return std::vector<std::string>{absl::StrCat("there are ", results.size(), " results")};
  }
  std::vector<std::string> differences;
  for (size_t r = 0; r < results.size(); ++r) {
    DT_RETURN_IF_ERROR(
        Compare(absl::StrCat("result ", r), results[r], stored.results[r], differences));
  }
  for (const auto& [r, gradient] : stored.result_gradients) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor placed,
                        PlaceStored(context, layouts.results[r], gradient));
    DT_RETURN_IF_ERROR(Backward(results[r], {.gradient = placed, .retain_graph = true}));
  }
  for (const auto& [i, gradient] : stored.gradients) {
    DT_RETURN_IF_ERROR(
        Compare(absl::StrCat("gradient ", i), operands[i]->grad(), gradient, differences));
  }
  return differences;
}

}  // namespace dtensor
