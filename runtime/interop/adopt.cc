#include "dtensor/runtime/interop/adopt.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

// Calls a deleter once, on destruction.
class Owner {
 public:
  explicit Owner(std::function<void()> deleter) : deleter_(std::move(deleter)) {}
  ~Owner() {
    if (deleter_) deleter_();
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

 private:
  const std::function<void()> deleter_;
};

// Errors: elements at addresses that do not exist. `begin`: the first element's address; 0: none.
absl::Status CheckExtent(const ForeignMemory& memory, intptr_t begin) {
  int64_t last = 0;
  bool fits = true;
  for (size_t i = 0; i < memory.shape.size(); ++i) {
    int64_t reach;
    fits = fits && !__builtin_mul_overflow(memory.shape[i] - 1, (*memory.strides)[i], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  intptr_t end;
  fits = fits && begin >= 0 && last < std::numeric_limits<int64_t>::max() / SizeOf(memory.dtype) &&
         !__builtin_add_overflow(begin, (last + 1) * SizeOf(memory.dtype), &end);
  if (fits) return absl::OkStatus();
  return InvalidArgument({"strides ", DimsToString(*memory.strides), " of shape ",
                          DimsToString(memory.shape),
                          " reach beyond the last address a program has"});
}

// Whether each stride exceeds the extent of the dimensions with smaller strides. This holds for all
// slices and permutations of dense memory, and implies that no two elements overlap.
bool StepsOverSmaller(const Dims& shape, const Dims& strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, size)
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] > 1 && strides[i] != 0) dims.emplace_back(strides[i], shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    reach += (size - 1) * stride;
  }
  return true;
}

absl::Status CheckStrides(const ForeignMemory& memory, intptr_t begin) {
  const Dims& strides = *memory.strides;
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"strides ", DimsToString(strides), " of shape ",
                            DimsToString(memory.shape), why, "; copy the tensor first"});
  };
  if (std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; })) {
    return refuse(" go backwards, which tensors cannot");
  }
  DT_RETURN_IF_ERROR(CheckExtent(memory, begin));
  if (!StepsOverSmaller(memory.shape, strides)) {
    return refuse(" may give two elements one place in memory");
  }
  return absl::OkStatus();
}

absl::Status CheckData(const ForeignMemory& memory) {
  if (memory.data == nullptr) {
    return InvalidArgument(
        {"shape ", DimsToString(memory.shape), " has elements, but the pointer is null"});
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory.data);
  if (address % SizeOf(memory.dtype) != 0) {
    return InvalidArgument({"the data of shape ", DimsToString(memory.shape),
                            " is not aligned to its elements, of ",
                            absl::StrCat(SizeOf(memory.dtype)), " bytes; copy it first"});
  }
  return absl::OkStatus();
}

// Checks the memory. Sets strides that no element needs (those of empty tensors and of sizes of 1)
// to row-major ones.
absl::Status Normalize(const Device& device, ForeignMemory& memory) {
  DT_ASSIGN_OR_RETURN(const int64_t elements, CheckedNumElements("adopted memory", memory.shape));
  const Dims row_major = RowMajorStrides(memory.shape);
  if (!memory.strides.has_value()) memory.strides = row_major;
  if (memory.strides->size() != memory.shape.size()) {
    return InvalidArgument({"adopted memory has shape ", DimsToString(memory.shape),
                            " and strides ", DimsToString(*memory.strides),
                            "; it needs one for each size"});
  }
  for (size_t i = 0; i < memory.shape.size(); ++i) {
    if (elements == 0 || memory.shape[i] == 1) (*memory.strides)[i] = row_major[i];
  }
  if (elements == 0) return absl::OkStatus();
  if (!device.is_meta()) {
    DT_RETURN_IF_ERROR(CheckData(memory));
    DT_RETURN_IF_ERROR(device.CheckReach(memory.data));
  }
  return CheckStrides(memory, device.is_meta() ? 0 : reinterpret_cast<intptr_t>(memory.data));
}

}  // namespace

absl::StatusOr<Tensor> AdoptMemory(Device& device, ForeignMemory memory) {
  auto owner = std::make_shared<Owner>(std::exchange(memory.deleter, nullptr));
  DT_RETURN_IF_ERROR(Normalize(device, memory));
  Tensor tensor = Tensor::Adopt(device, memory.data, memory.dtype, memory.shape, *memory.strides,
                                [owner = std::move(owner)]() mutable { owner = nullptr; });
  return memory.read_only ? std::move(tensor).Borrow() : tensor;
}

namespace internal {

absl::StatusOr<Tensor> AdoptElements(Device& device, int64_t elements, ForeignMemory memory) {
  if (NumElements(memory.shape) != elements) {
    const Owner owner(std::move(memory.deleter));
    return InvalidArgument({"AdoptSpan: shape ", DimsToString(memory.shape), " does not have ",
                            absl::StrCat(elements), " elements"});
  }
  return AdoptMemory(device, std::move(memory));
}

}  // namespace internal

}  // namespace dtensor
