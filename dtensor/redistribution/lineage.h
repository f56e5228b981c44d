// Lineage: identifies a tensor of the program by a number that is the same on all ranks of its
// mesh. Collectives compare it, so ranks that mix up two tensors of the same shape get an error.
//
// Tensors that are made (Full, Distribute, ...) are counted per mesh, so tensors on a mesh of one
// rank alone do not shift other counts. Their lineage follows from the count and from their layout,
// shape and type. A result's lineage follows from the operator, its arguments and its operands'
// lineages; a redistribution or an alias has its source's, but a redistribution to another mesh is
// counted there, as a tensor that is made. It does not depend on memory, data or caches.
#ifndef DTENSOR_REDISTRIBUTION_LINEAGE_H_
#define DTENSOR_REDISTRIBUTION_LINEAGE_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

inline uint64_t MixLineage(uint64_t lineage, uint64_t more) {
  lineage = (lineage ^ more) * 0x9E3779B97F4A7C15ull;
  return lineage ^ (lineage >> 29);
}

struct Lineage {
  uint64_t id = 0;              // 0: unknown, on every rank
  const char* maker = nullptr;  // "Full", "Add"
  // For a tensor that was made: its number on its mesh, from 1; 0 if a function of Recompute() made
  // it again.
  uint64_t number = 0;

  // "tensor 3 of its mesh, made by Full" or, without a number, "a result of Add"; empty if unknown.
  std::string ToString() const {
    if (maker == nullptr) return "";
    if (number == 0) return absl::StrCat("a result of ", maker);
    return absl::StrCat("tensor ", number, " of its mesh, made by ", maker);
  }
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_LINEAGE_H_
