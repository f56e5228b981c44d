#include "dtensor/nn/containers.h"

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {

void ModuleList::Adopt(std::unique_ptr<Module> module) {
  AddChild(absl::StrCat(modules_.size()), module.get());
  modules_.push_back(std::move(module));
}

TensorOr ModuleList::Forward(const DistributedTensor&) {
  return InvalidArgument(
      {"a ModuleList only holds modules; call these, or use Sequential, which chains them"});
}

TensorsOr Sequential::ForwardAll(absl::Span<const DistributedTensor> operands) {
  std::vector<DistributedTensor> values(operands.begin(), operands.end());
  for (int i = 0; i < size(); ++i) {
    const std::vector<TensorOr> given(values.begin(), values.end());
    DT_ASSIGN_OR_RETURN(values, (*this)[i].Call(given));
  }
  return values;
}

}  // namespace dtensor
