// Lineage: which tensor of the program a tensor is, as a number that all ranks of its mesh have
// alike. Collectives compare it, so that ranks which mix up two tensors of one shape get an error.
//
// Tensors that are made (Full, Distribute, ...) are counted for each mesh, so that work on the mesh
// of one rank alone shifts no other count; with the count goes what they are: layout, shape, type.
// A result's lineage follows from the operator, its arguments and its operands' lineages; a
// redistribution and an alias have their source's. Of memory, data and caches nothing enters.
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
  uint64_t number = 0;          // of a tensor that was made: among those of its mesh, from 1

  // "tensor 3 of its mesh, made by Full", "a result of Add"; empty if unknown.
  std::string ToString() const {
    if (maker == nullptr) return "";
    if (number == 0) return absl::StrCat("a result of ", maker);
    return absl::StrCat("tensor ", number, " of its mesh, made by ", maker);
  }
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_LINEAGE_H_
