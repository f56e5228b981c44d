#include "dtensor/nn/state_dict.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// The path of one part: the parameter's path, with the names replaced that the part gives.
std::string PartPath(absl::string_view path, const ParameterPart& part) {
  const size_t parameter = path.rfind('.');
  const absl::string_view module = path.substr(0, parameter == path.npos ? 0 : parameter);
  if (!part.slice.empty()) return JoinPath(module, part.slice);
  const size_t last = module.rfind('.');
  const absl::string_view before = module.substr(0, last == module.npos ? 0 : last + 1);
  return absl::StrCat(before, part.module, path.substr(module.size()));
}

// A layout of the parameter in which dimension 0 is whole, so that each rank has elements of every
// slice: the axes that split it split dimension 1 instead.
absl::StatusOr<Layout> WithWholeSlices(const Layout& layout) {
  const AxisList axes = AxesOf(layout.dim(0));
  DT_ASSIGN_OR_RETURN(const Layout whole, layout.WithDim(0, DimLayout()));
  if (axes.empty() || layout.ndim() == 1) return whole;
  return whole.WithAxes(axes, Shard(1));
}

int64_t RowsOf(const Parameter& parameter) {
  int64_t rows = 0;
  for (const ParameterPart& part : parameter.parts) rows += part.rows;
  return rows;
}

// The shape [groups * group, ...] as [groups, rows, ...], of so many rows of each group.
Dims Grouped(const Dims& shape, int64_t group, int64_t rows) {
  Dims grouped = {shape[0] / group, rows};
  grouped.insert(grouped.end(), shape.begin() + 1, shape.end());
  return grouped;
}

// Concat, of any number of tensors.
TensorOr ConcatAll(std::vector<TensorOr> tensors, int dim) {
  while (tensors.size() > 1) {
    std::vector<TensorOr> joined;
    const absl::Span<const TensorOr> all = tensors;
    for (size_t i = 0; i < all.size(); i += kMostJoined) {
      joined.push_back(Concat(all.subspan(i, kMostJoined), dim));
    }
    tensors = std::move(joined);
  }
  return tensors[0];
}

absl::Status CheckMemory(absl::string_view path, const Parameter& parameter) {
  if (parameter.tensor.defined()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("StateDict: parameter ", path,
                   " has no memory; Materialize the model, or apply a plan to it, before its "
                   "tensors are named"));
}

TensorOr Join(const Parameter& parameter, absl::Span<const DistributedTensor> parts) {
  if (parameter.parts.empty()) return parts[0];
  std::vector<TensorOr> grouped;
  for (size_t i = 0; i < parts.size(); ++i) {
    grouped.push_back(
        Reshape(parts[i], Grouped(parameter.shape, RowsOf(parameter), parameter.parts[i].rows)));
  }
  return Reshape(ConcatAll(std::move(grouped), 1), parameter.shape);
}

// Redistributes the tensors of all parts to the parameter's ranks, which then join them.
absl::Status WriteOne(const Parameter& parameter, std::vector<DistributedTensor> tensors) {
  const DistributedTensor& to = parameter.tensor;
  const NoGrad no_grad(to.context());
  Layout layout = to.layout();
  if (HasSlices(parameter)) {
    DT_ASSIGN_OR_RETURN(layout, LayoutOfSlices(layout));
  } else if (!parameter.parts.empty()) {
    // A part has a different number of rows, which may not shard like those of the whole parameter.
    DT_ASSIGN_OR_RETURN(layout, layout.WithDim(0, DimLayout()));
  }
  for (DistributedTensor& tensor : tensors) {
    if (!parameter.parts.empty() && tensor.mesh() == to.mesh()) continue;
    DT_ASSIGN_OR_RETURN(tensor, tensor.Redistribute(layout));
  }
  if (!to.spec().on_mesh) return BeforeWrite(to);  // other ranks write
  DT_ASSIGN_OR_RETURN(const DistributedTensor joined, Join(parameter, tensors));
  return parameter.Write(joined);
}

// Reads a state for one model. Writes it once all of it was found.
class Loader {
 public:
  explicit Loader(const StateDict& state) : state_(state) {}

  absl::Status Take(const std::string& path, Parameter& parameter) {
    DT_RETURN_IF_ERROR(CheckMemory(path, parameter));
    std::vector<DistributedTensor> found;
    std::string missing;
    const auto take = [&](const std::string& name, const Dims& shape) {
      const auto at = state_.find(name);
      used_.insert(name);
      if (at == state_.end()) missing = name;
      if (at == state_.end() || found_.contains(&parameter)) return absl::OkStatus();
      if (!at->second.defined() || at->second.shape() != shape) {
        return InvalidArgument({"LoadStateDict: ", name, " is ",
                                at->second.defined() ? at->second.ToString() : "undefined",
                                ", and the model's is ", DimsToString(shape)});
      }
      if (&at->second.context() != &parameter.tensor.context()) {
        return InvalidArgument({"LoadStateDict: ", name, " belongs to another Context than the ",
                                "model; Distribute its values in that one"});
      }
      found.push_back(at->second);
      return absl::OkStatus();
    };
    for (const StoredPart& part : StoredPartsOf(path, parameter)) {
      DT_RETURN_IF_ERROR(take(part.name, part.shape));
    }
    if (found_.contains(&parameter)) return absl::OkStatus();
    if (!missing.empty()) {
      missing_.emplace_back(&parameter, missing);
      return absl::OkStatus();
    }
    found_.insert(&parameter);
    writes_.emplace_back(&parameter, std::move(found));
    return absl::OkStatus();
  }

  absl::Status CheckNames() const {
    for (const auto& [parameter, name] : missing_) {
      if (found_.contains(parameter)) continue;
      return InvalidArgument({"LoadStateDict: there is no ", name, ", which the model has"});
    }
    for (const auto& [name, tensor] : state_) {
      if (!used_.contains(name)) {
        return InvalidArgument({"LoadStateDict: the model has no ", name, "; leave it out"});
      }
    }
    return absl::OkStatus();
  }

  absl::Status Write() {
    // If the tensors are the model's own, take values, so that they are not changed by earlier
    // writes.
    for (auto& [parameter, tensors] : writes_) {
      for (DistributedTensor& tensor : tensors) {
        DT_ASSIGN_OR_RETURN(tensor, tensor.Detach().Redistribute(tensor.layout()));
      }
    }
    for (auto& [parameter, tensors] : writes_) {
      DT_RETURN_IF_ERROR(WriteOne(*parameter, std::move(tensors)));
    }
    return absl::OkStatus();
  }

 private:
  const StateDict& state_;
  std::set<std::string, std::less<>> used_;  // names that some path has
  HashSet<const Parameter*> found_;
  // The parameters that were not found by some path, each with one of the missing names.
  std::vector<std::pair<const Parameter*, std::string>> missing_;
  std::vector<std::pair<Parameter*, std::vector<DistributedTensor>>> writes_;
};

// Visits all paths until the first error.
absl::Status VisitPaths(Module& model,
                        absl::FunctionRef<absl::Status(const std::string&, Parameter&)> visit) {
  absl::Status status;
  model.VisitParameterPaths([&](const std::string& path, Parameter& parameter) {
    if (status.ok()) status = visit(path, parameter);
  });
  return status;
}

}  // namespace

bool HasSlices(const Parameter& parameter) {
  return !parameter.parts.empty() && !parameter.parts[0].slice.empty();
}

absl::StatusOr<Layout> LayoutOfSlices(const Layout& layout) {
  DT_ASSIGN_OR_RETURN(const Layout whole, WithWholeSlices(layout));
  return Layout::Create(whole.mesh(), whole.dims().subspan(1));
}

std::vector<StoredPart> StoredPartsOf(absl::string_view path, const Parameter& parameter) {
  const int64_t rows = parameter.shape.empty() ? 1 : parameter.shape[0];
  if (parameter.parts.empty()) {
    return {{std::string(path), parameter.shape, 0, rows, rows, false}};
  }
  std::vector<StoredPart> stored;
  const int64_t group = RowsOf(parameter);
  int64_t first = 0;
  for (const ParameterPart& part : parameter.parts) {
    Dims shape = parameter.shape;
    const bool is_slice = !part.slice.empty();
    if (is_slice) {
      shape.erase(shape.begin());
    } else {
      shape[0] = shape[0] / group * part.rows;
    }
    stored.push_back({PartPath(path, part), std::move(shape), first, part.rows, group, is_slice});
    first += part.rows;
  }
  return stored;
}

TensorOr JoinParts(absl::string_view path, const Parameter& parameter, const StateDict& parts) {
  std::vector<DistributedTensor> found;
  for (const StoredPart& part : StoredPartsOf(path, parameter)) {
    const auto at = parts.find(part.name);
    const bool is_there = at != parts.end() && at->second.defined();
    if (!is_there || at->second.shape() != part.shape) {
      return InvalidArgument({"JoinParts: ", part.name, " is ",
                              is_there ? at->second.ToString() : "missing", ", and ", path,
                              " needs it as ", DimsToString(part.shape)});
    }
    found.push_back(at->second);
  }
  const NoGrad no_grad(found[0].context());
  return Join(parameter, found);
}

absl::StatusOr<StateDict> PartsOf(absl::string_view path, const Parameter& parameter,
                                  const DistributedTensor& tensor) {
  if (!tensor.defined() || tensor.shape() != parameter.shape) {
    return InvalidArgument({"PartsOf: ", path, " has the shape ", DimsToString(parameter.shape),
                            ", and the tensor is ",
                            tensor.defined() ? tensor.ToString() : "undefined"});
  }
  if (parameter.parts.empty()) return StateDict{{std::string(path), tensor}};
  const NoGrad no_grad(tensor.context());
  std::vector<int64_t> sizes;
  for (const ParameterPart& part : parameter.parts) sizes.push_back(part.rows);
  TensorOr from = tensor;
  if (HasSlices(parameter)) {
    DT_ASSIGN_OR_RETURN(const Layout whole, WithWholeSlices(tensor.layout()));
    from = tensor.Redistribute(whole);
  }
  const int64_t group = RowsOf(parameter);
  DT_ASSIGN_OR_RETURN(const std::vector<DistributedTensor> grouped,
                      SplitTensor(Reshape(from, Grouped(parameter.shape, group, group)), 1, sizes));
  StateDict parts;
  const std::vector<StoredPart> stored = StoredPartsOf(path, parameter);
  for (size_t i = 0; i < grouped.size(); ++i) {
    DT_ASSIGN_OR_RETURN(parts[stored[i].name], Reshape(grouped[i], stored[i].shape));
  }
  return parts;
}

absl::StatusOr<StateDict> StateDictOf(Module& model) {
  StateDict state;
  DT_RETURN_IF_ERROR(VisitPaths(model, [&](const std::string& path, Parameter& parameter) {
    DT_RETURN_IF_ERROR(CheckMemory(path, parameter));
    DT_ASSIGN_OR_RETURN(StateDict parts, PartsOf(path, parameter, parameter.tensor.Detach()));
    state.merge(parts);
    return absl::OkStatus();
  }));
  return state;
}

absl::Status LoadStateDict(Module& model, const StateDict& state) {
  Loader loader(state);
  DT_RETURN_IF_ERROR(VisitPaths(model, [&](const std::string& path, Parameter& parameter) {
    return loader.Take(path, parameter);
  }));
  DT_RETURN_IF_ERROR(loader.CheckNames());
  return loader.Write();
}

}  // namespace dtensor
