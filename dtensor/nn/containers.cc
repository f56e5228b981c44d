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

TensorOr Sequential::Forward(const DistributedTensor& x) {
  TensorOr y = x;
  for (int i = 0; i < size(); ++i) y = (*this)[i](y);
  return y;
}

}  // namespace dtensor
