#include "dtensor/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

struct NamedLayer {
  std::string path;
  LinearLayer* layer;
};

std::vector<NamedLayer> LinearLayersOf(Module& model) {
  std::vector<NamedLayer> layers;
  model.VisitModulePaths([&](const std::string& path, Module& module) {
    if (LinearLayer* const layer = module.linear()) layers.push_back({path, layer});
  });
  return layers;
}

bool IsNamed(absl::string_view path, absl::string_view name) {
  return path == name || (!name.empty() && absl::EndsWith(path, absl::StrCat(".", name)));
}

absl::Status CheckOptions(const LoraOptions& options) {
  if (options.rank < 1 || options.rank > kMaxElements) {
    return InvalidArgument({"AddLora: rank ", absl::StrCat(options.rank), "; give 1 or more"});
  }
  if (!(options.alpha >= 0 && std::isfinite(options.alpha))) {
    return InvalidArgument(
        {"AddLora: alpha ", absl::StrCat(options.alpha), "; give 0 or more, for example the rank"});
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return InvalidArgument(
        {"AddLora: dropout ", absl::StrCat(options.dropout), "; give 0 or more, and less than 1"});
  }
  return absl::OkStatus();
}

// How many modules have each parameter.
HashMap<const Parameter*, int> UsesOf(Module& model) {
  HashMap<const Parameter*, int> uses;
  model.VisitModules([&](const std::string&, Module& module) {
    for (const OwnParameter& own : module.own_parameters()) ++uses[own.parameter.get()];
  });
  return uses;
}

absl::Status CheckLayer(const NamedLayer& named, int uses) {
  if (named.layer->adapter()) {
    return InvalidArgument(
        {"AddLora: ", named.path, " has an adapter already; MergeLora adds it to the weight"});
  }
  if (uses == 1) return absl::OkStatus();
  return InvalidArgument({"AddLora: ", named.path,
                          " shares its weight with other modules, which an adapter would not "
                          "change; name other layers"});
}

absl::Status CheckNoMemory(Module& model) {
  std::string materialized;
  model.VisitParameters([&](const std::string& path, Parameter& parameter) {
    if (parameter.tensor.defined()) materialized = path;
  });
  if (materialized.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("AddLora: parameter ", materialized,
                   " has memory; add adapters before the model is materialized, or a plan is "
                   "applied to it"));
}

// The layers that a name stands for.
absl::StatusOr<std::vector<NamedLayer>> Matches(const std::vector<NamedLayer>& layers,
                                                absl::string_view name) {
  std::vector<NamedLayer> matches;
  std::vector<std::string> names;
  for (const NamedLayer& named : layers) {
    if (IsNamed(named.path, name)) matches.push_back(named);
    const std::string last = named.path.substr(named.path.rfind('.') + 1);
    if (!absl::c_linear_search(names, last)) names.push_back(last);
  }
  if (!matches.empty()) return matches;
  return InvalidArgument(
      {"AddLora: there is no linear layer '", name, "'; there are ", absl::StrJoin(names, ", ")});
}

absl::StatusOr<std::vector<NamedLayer>> Chosen(Module& model, const LoraOptions& options) {
  const std::vector<NamedLayer> layers = LinearLayersOf(model);
  const HashMap<const Parameter*, int> uses = UsesOf(model);
  HashSet<const LinearLayer*> seen;
  std::vector<NamedLayer> chosen;
  for (const std::string& name : options.layers) {
    DT_ASSIGN_OR_RETURN(const std::vector<NamedLayer> matches, Matches(layers, name));
    for (const NamedLayer& named : matches) {
      if (!seen.insert(named.layer).second) continue;
      DT_RETURN_IF_ERROR(CheckLayer(named, uses.at(named.layer->weight().get())));
      chosen.push_back(named);
    }
  }
  if (chosen.empty()) return InvalidArgument({"AddLora: no layers are named; name at least one"});
  return chosen;
}

ParameterPtr NewAdapter(Dims shape, ParameterInit init, const Parameter& weight) {
  ParameterPtr parameter = Parameter::New(std::move(shape), std::move(init));
  parameter->dtype = weight.dtype;
  parameter->keeps_precision = weight.keeps_precision;
  parameter->is_adapter = true;
  return parameter;
}

// Copies what holds for dimension `from` of the weight to dimension `to` of an adapter's matrix.
void CutAs(const Parameter& weight, int from, Parameter& matrix, int to) {
  const auto copy = [&](Dims Parameter::*dims) {
    if ((weight.*dims).empty()) return;
    (matrix.*dims) = {1, 1};
    (matrix.*dims)[to] = (weight.*dims)[from];
  };
  copy(&Parameter::units);
  copy(&Parameter::unit_parts);
  copy(&Parameter::pieces);
}

void Adapt(LinearLayer& layer, const LoraOptions& options) {
  const Parameter& weight = *layer.weight();
  const int out = layer.out_dim(), in = 1 - out;
  const double rank = static_cast<double>(options.rank);
  const double stddev =
      1 / std::sqrt(3.0 * static_cast<double>(std::max<int64_t>(1, weight.shape[in])));
  LinearLayer::Adapter adapter;
  adapter.a = NewAdapter({options.rank, weight.shape[in]}, ParameterInit::Normal(stddev), weight);
  adapter.b = NewAdapter({weight.shape[out], options.rank}, ParameterInit::Constant(0), weight);
  CutAs(weight, in, *adapter.a, 1);
  CutAs(weight, out, *adapter.b, 0);
  adapter.scale = options.alpha / (options.rank_stabilized ? std::sqrt(rank) : rank);
  adapter.dropout = options.dropout;
  layer.SetAdapter(std::move(adapter));
}

// scale B A in the layout of the weight, `like`, from the adapter's matrices in its type.
TensorOr Delta(const LinearLayer& layer, const DistributedTensor& like) {
  const LinearLayer::Adapter& adapter = *layer.adapter();
  const int out = layer.out_dim();
  const auto split = [&](const DimLayout& first, const DimLayout& second) {
    return Layout::Create(like.mesh(), {first, second});
  };
  DT_ASSIGN_OR_RETURN(const Layout of_a, split({}, like.layout().dim(1 - out)));
  DT_ASSIGN_OR_RETURN(const Layout of_b, split(like.layout().dim(out), {}));
  const auto placed = [&](const ParameterPtr& matrix, const Layout& layout) {
    return Cast(matrix->tensor.Detach().Redistribute(layout), like.dtype());
  };
  const TensorOr a = placed(adapter.a, of_a), b = placed(adapter.b, of_b);
  return Scale(out == 0 ? MatMul(b, a) : MatMul(Transpose(a, 0, 1), Transpose(b, 0, 1)),
               adapter.scale);
}

// Whether Merge will do it.
absl::Status CheckMerge(const NamedLayer& named) {
  const Parameter& weight = *named.layer->weight();
  const LinearLayer::Adapter& adapter = *named.layer->adapter();
  const Parameter* const all[] = {&weight, adapter.a.get(), adapter.b.get()};
  for (const Parameter* parameter : all) {
    if (parameter->tensor.defined()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("MergeLora: ", named.path, " has no memory; apply a plan first"));
  }
  return BeforeWrite(weight.tensor);
}

absl::Status Merge(const NamedLayer& named) {
  const Parameter& weight = *named.layer->weight();
  const NoGrad no_grad(weight.tensor.context());
  const TensorOr wide = Cast(weight.tensor.Detach(), AccumulatorOf(weight.dtype));
  DT_RETURN_IF_ERROR(wide.status());
  DT_ASSIGN_OR_RETURN(const DistributedTensor merged, Add(wide, Delta(*named.layer, *wide)));
  return weight.Write(merged);
}

}  // namespace

absl::Status AddLora(Module& model, const LoraOptions& options) {
  DT_RETURN_IF_ERROR(CheckOptions(options));
  DT_RETURN_IF_ERROR(CheckNoMemory(model));
  DT_ASSIGN_OR_RETURN(const std::vector<NamedLayer> layers, Chosen(model, options));
  model.VisitParameters([](const std::string&, Parameter& parameter) {
    if (!parameter.is_adapter) parameter.trained = false;
  });
  for (const NamedLayer& named : layers) Adapt(*named.layer, options);
  return absl::OkStatus();
}

absl::Status MergeLora(Module& model) {
  std::vector<NamedLayer> layers;
  HashSet<const LinearLayer*> seen;
  for (const NamedLayer& named : LinearLayersOf(model)) {
    if (named.layer->adapter() && seen.insert(named.layer).second) layers.push_back(named);
  }
  if (layers.empty()) {
    return InvalidArgument({"MergeLora: no layer has an adapter; AddLora gives them"});
  }
  for (const NamedLayer& named : layers) DT_RETURN_IF_ERROR(CheckMerge(named));
  for (const NamedLayer& named : layers) {
    DT_RETURN_IF_ERROR(Merge(named));
    named.layer->RemoveAdapter();
  }
  return absl::OkStatus();
}

}  // namespace dtensor
