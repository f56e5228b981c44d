// Another library's tensor, as DLPack hands it over: memory and description on the heap, which its
// deleter frees, so that AddressSanitizer sees who reads later and who deletes twice.
#ifndef DTENSOR_RUNTIME_TESTING_FOREIGN_TENSOR_H_
#define DTENSOR_RUNTIME_TESTING_FOREIGN_TENSOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtensor/runtime/interop/dlpack.h"
#include "dtensor/runtime/interop/dlpack_abi.h"

namespace dtensor {

// Of floats or doubles. No strides: a null pointer, which means row-major. Managed is
// DLManagedTensorVersioned or DLManagedTensor; `change` may make of it what it likes, and
// `on_delete` is told when it goes.
template <typename Managed, typename T>
std::unique_ptr<Managed, CallDlpackDeleter> MakeForeign(
    std::vector<T> values, std::vector<int64_t> shape, std::vector<int64_t> strides,
    std::function<void()> on_delete, const std::function<void(Managed&)>& change = nullptr) {
  struct Foreign {
    Managed managed;
    std::vector<T> values;
    std::vector<int64_t> shape, strides;
    std::function<void()> on_delete;
  };
  auto* foreign = new Foreign{
      {}, std::move(values), std::move(shape), std::move(strides), std::move(on_delete)};
  Managed& managed = foreign->managed;
  managed.dl_tensor = {.data = foreign->values.data(),
                       .device = {kDLCPU, 0},
                       .ndim = static_cast<int32_t>(foreign->shape.size()),
                       .dtype = {kDLFloat, 8 * sizeof(T), 1},
                       .shape = foreign->shape.data(),
                       .strides = foreign->strides.empty() ? nullptr : foreign->strides.data(),
                       .byte_offset = 0};
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 1};
  managed.manager_ctx = foreign;
  managed.deleter = [](Managed* self) {
    auto* gone = static_cast<Foreign*>(self->manager_ctx);
    gone->on_delete();
    delete gone;
  };
  if (change) change(managed);
  return std::unique_ptr<Managed, CallDlpackDeleter>(&managed);
}

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_TESTING_FOREIGN_TENSOR_H_
