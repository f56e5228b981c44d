// Modules that own other modules: a list, and a chain.
//
//   auto blocks = std::make_unique<Sequential>();
//   for (int i = 0; i < 12; ++i) blocks->Append(std::make_unique<Block>(config));
//
// Children are named "0", "1", ...: paths read blocks.0, as in "model.layers.*".
#ifndef DTENSOR_NN_CONTAINERS_H_
#define DTENSOR_NN_CONTAINERS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/nn/module.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Holds modules; calling it is an error. For models that call the modules in their own way.
class ModuleList : public Module {
 public:
  ModuleList() = default;
  // Requires: not null. Returns it.
  template <typename M>
  M* Append(std::unique_ptr<M> module) {
    M* const appended = module.get();
    Adopt(std::move(module));
    return appended;
  }
  int size() const { return static_cast<int>(modules_.size()); }
  Module& operator[](int i) const { return *modules_[i]; }  // Requires: 0 <= i < size().

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  void Adopt(std::unique_ptr<Module> module);
  std::vector<std::unique_ptr<Module>> modules_;
};

// Calls its modules one after the other, each on the previous one's results. Without modules it
// returns its operands. A class derived from it may name several operands or results, and override
// ForwardAll.
class Sequential : public ModuleList {
 protected:
  TensorOr Forward(const DistributedTensor& x) final { return ModuleList::Forward(x); }
  TensorsOr ForwardAll(absl::Span<const DistributedTensor> operands) override;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_CONTAINERS_H_
