#include "dtensor/nn/optim/parameter_checks.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

struct Place {
  size_t group, index;
};

// "parameter 3", "parameter 3 of group 1".
std::string Name(const Place& place, bool grouped) {
  const std::string group = grouped ? absl::StrCat(" of group ", place.group) : "";
  return absl::StrCat("parameter ", place.index, group);
}

// "parameters 1 and 3", "parameter 1 of group 0 and parameter 3 of group 2".
std::string Names(const Place& a, const Place& b, bool grouped) {
  if (!grouped) return absl::StrCat("parameters ", a.index, " and ", b.index);
  return absl::StrCat(Name(a, true), " and ", Name(b, true));
}

}  // namespace

absl::Status CheckDistinct(absl::string_view who,
                           absl::Span<const absl::Span<const DistributedTensor>> groups) {
  const bool grouped = groups.size() > 1;
  HashMap<const TensorImpl*, Place> places;
  const DistributedTensor* first = nullptr;
  Place first_place{};
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].size(); ++i) {
      const DistributedTensor& parameter = groups[g][i];
      const Place place{g, i};
      if (!parameter.defined()) {
        return InvalidArgument({who, ": ", Name(place, grouped), " is undefined"});
      }
      if (first == nullptr) {
        first = &parameter;
        first_place = place;
      }
      if (&parameter.context() != &first->context()) {
        return InvalidArgument({who, ": ", Names(first_place, place, grouped),
                                " belong to two Contexts; give each Context its own call"});
      }
      const auto [it, fresh] = places.try_emplace(parameter.impl().get(), place);
      if (fresh) continue;
      return InvalidArgument({who, ": ", Names(it->second, place, grouped), " are one tensor ",
                              parameter.ToString(), "; list it once, as Module::Parameters does"});
    }
  }
  return absl::OkStatus();
}

absl::Status CheckReduced(absl::string_view who, const DistributedTensor& parameter) {
  const DistributedTensor grad = parameter.grad();
  if (!grad.defined() || &grad.spec() == &parameter.spec() || grad.layout() == parameter.layout()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(who, ": the gradient of a parameter ", parameter.ToString(), " lies as ",
                   grad.layout().ToString(), "; call ReduceGradients before the step"));
}

}  // namespace dtensor
