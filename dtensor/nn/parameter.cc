#include "dtensor/nn/parameter.h"

#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/layout/digest.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/gather_again.h"
#include "dtensor/tensor/local_cast.h"
#include "dtensor/tensor/uninitialized.h"

namespace dtensor {

Parameter::Parameter(Dims shape_in, ParameterInit init_in, Dims units_in, Dims unit_parts_in)
    : shape(std::move(shape_in)),
      init(std::move(init_in)),
      units(std::move(units_in)),
      unit_parts(std::move(unit_parts_in)) {}

ParameterPtr Parameter::New(Dims shape, ParameterInit init, Dims units, Dims unit_parts) {
  return ParameterPtr(
      new Parameter(std::move(shape), std::move(init), std::move(units), std::move(unit_parts)));
}

int64_t Parameter::unit(int dim, int64_t shards) const {
  if (units.empty()) return 1;
  const bool enough = unit_parts.empty() || piece_size(dim) / units[dim] >= shards;
  return enough ? units[dim] : unit_parts[dim];
}

namespace {

bool ArePieces(const Dims& pieces, const Dims& shape) {
  if (pieces.empty()) return true;
  if (pieces.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (pieces[d] < 1 || shape[d] % pieces[d] != 0) return false;
  }
  return true;
}

bool AreParts(const std::vector<ParameterPart>& parts, const Dims& shape) {
  int64_t rows = 0, slices = 0;
  for (const ParameterPart& part : parts) {
    if (part.rows < 1 || shape.empty() || part.rows > shape[0]) return false;
    rows += part.rows;
    if (!part.slice.empty()) ++slices;
  }
  const int64_t size = parts.empty() ? 0 : shape[0];
  return slices == 0 ? parts.empty() || size % rows == 0 : slices == size && rows == size;
}

bool AreUnits(const Dims& units, const Dims& shape) {
  if (units.empty()) return true;
  return units.size() == shape.size() &&
         absl::c_all_of(units, [](int64_t unit) { return unit >= 1; });
}

absl::Status CheckMadeOf(absl::string_view path, const Parameter& parameter) {
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument(
        {"parameter ", path, " of shape ", DimsToString(parameter.shape), " ", why});
  };
  for (const auto& [what, units] :
       {std::pair("units", &parameter.units), {"unit_parts", &parameter.unit_parts}}) {
    if (AreUnits(*units, parameter.shape)) continue;
    return refuse(absl::StrCat("has ", what, " ", DimsToString(*units),
                               "; give one of at least 1 for each dimension, or none"));
  }
  if (parameter.units.empty() && !parameter.unit_parts.empty()) {
    return refuse(absl::StrCat("has unit_parts ", DimsToString(parameter.unit_parts),
                               " without units; give it units of which these are parts"));
  }
  if (!ArePieces(parameter.pieces, parameter.shape)) {
    return refuse(absl::StrCat("is not made of ", DimsToString(parameter.pieces),
                               " equal pieces; give a divisor of each dimension"));
  }
  if (AreParts(parameter.parts, parameter.shape)) return absl::OkStatus();
  if (absl::c_any_of(parameter.parts, [](const auto& part) { return !part.slice.empty(); })) {
    return refuse(absl::StrCat("is not made of ", parameter.parts.size(),
                               " slices; give one of one row for each index of dimension 0"));
  }
  const auto text = [](std::string* out, const ParameterPart& part) {
    absl::StrAppend(out, part.rows, " rows of ", part.module);
  };
  return refuse(absl::StrCat("is not made of groups of ",
                             absl::StrJoin(parameter.parts, " and ", text),
                             "; give rows that together divide dimension 0"));
}

absl::Status CheckInit(absl::string_view path, const Parameter& parameter) {
  const auto* const random = std::get_if<ParameterInit::Random>(&parameter.init.elements);
  if (random != nullptr && !(random->stddev >= 0 && std::isfinite(random->stddev))) {
    return InvalidArgument({"parameter ", path, " starts with a standard deviation of ",
                            absl::StrCat(random->stddev), "; give a number that is not negative"});
  }
  if ((random != nullptr || parameter.trained) && !IsFloat(parameter.dtype)) {
    return InvalidArgument({"parameter ", path, " is of ", ToString(parameter.dtype), ", and ",
                            parameter.trained ? "trained" : "starts at random",
                            "; choose a float, or make it a buffer that starts with values"});
  }
  const auto* const given = std::get_if<ParameterInit::Given>(&parameter.init.elements);
  if (given == nullptr) return absl::OkStatus();
  const int64_t size = NumElements(parameter.shape);
  if (static_cast<int64_t>(given->values->size()) == size) return absl::OkStatus();
  return InvalidArgument({"parameter ", path, " of shape ", DimsToString(parameter.shape), " has ",
                          absl::StrCat(size), " elements, and ",
                          absl::StrCat(given->values->size()), " first values; give it as many"});
}

// Makes the tensor of a parameter, by how it is initialized.
struct Initializer {
  Context& context;
  const Layout& layout;
  const Parameter& parameter;
  absl::string_view path;
  uint64_t seed;

  TensorOr operator()(const ParameterInit::Equal& equal) const {
    return Full(context, layout, parameter.shape, parameter.dtype, equal.value);
  }
  TensorOr operator()(const ParameterInit::Random& random) const {
    RandomOptions options;
    options.seed = seed;
    options.stream = Fnv1a(path);
    options.stddev = random.stddev;
    options.dtype = parameter.dtype;
    return RandomNormal(context, layout, parameter.shape, options);
  }
  TensorOr operator()(const ParameterInit::Given& given) const {
    return LocalCast(Distribute<double>(context, layout, parameter.shape, *given.values),
                     parameter.dtype);
  }
  TensorOr operator()(const ParameterInit::Nothing&) const {
    return Uninitialized(context, layout, parameter.shape, parameter.dtype);
  }
};

}  // namespace

absl::Status Parameter::Check(absl::string_view path) const {
  DT_RETURN_IF_ERROR(CheckMadeOf(path, *this));
  return CheckInit(path, *this);
}

absl::Status Parameter::Materialize(Context& context, const Layout& layout, absl::string_view path,
                                    uint64_t seed) {
  DT_RETURN_IF_ERROR(Check(path));
  DT_ASSIGN_OR_RETURN(tensor,
                      std::visit(Initializer{context, layout, *this, path, seed}, init.elements));
  if (std::holds_alternative<ParameterInit::Given>(init.elements)) {
    init = ParameterInit::Constant(0);  // drops the values
  }
  tensor.set_pinned(true);
  return trained ? tensor.set_requires_grad(true) : absl::OkStatus();
}

TensorOr Parameter::ValueOn(const DeviceMesh& mesh) const {
  for (const Layout& layout : copies) {
    if (layout.mesh() == mesh) return RedistributeKept(tensor, layout);
  }
  return Value();
}

absl::Status Parameter::Write(const DistributedTensor& value) const {
  if (!value.defined()) {
    return InvalidArgument(
        {"a parameter ", tensor.ToString(), " cannot have the value of an ", "undefined tensor"});
  }
  if (&value.context() != &tensor.context()) {
    return InvalidArgument({"a parameter ", tensor.ToString(), " cannot have the value ",
                            value.ToString(), ", which belongs to another Context"});
  }
  if (value.shape() != tensor.shape()) {
    return InvalidArgument({"a parameter ", tensor.ToString(), " cannot have the value ",
                            value.ToString(), "; give one of its shape"});
  }
  const NoGrad no_grad(tensor.context());
  DT_ASSIGN_OR_RETURN(DistributedTensor from, value.Redistribute(tensor.layout()));
  if (!tensor.spec().on_mesh) return BeforeWrite(tensor);  // other ranks write
  DT_ASSIGN_OR_RETURN(from, LocalCast(from, tensor.dtype()));
  DT_RETURN_IF_ERROR(BeforeWrite(tensor));
  Context& context = tensor.context();
  const absl::Status status = kernels::Copy(context.device(), from.local(), tensor.local());
  return status.ok() ? status : context.communicator().Fail(status);
}

}  // namespace dtensor
