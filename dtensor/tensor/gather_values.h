// All-gathers of plain host data, beside the tensors of a program (as PyTorch's all_gather_object):
// measurements, results, an error that only some ranks have. Ranks may contribute different sizes.
//
//   DT_ASSIGN_OR_RETURN(std::vector<double> seconds, GatherValues(context, mine));
//   DT_RETURN_IF_ERROR(AgreeOn(context, Load(path)));  // all ranks go on, or none does
//
// All are collective over the world: each rank makes the call at the same place of its program.
#ifndef DTENSOR_TENSOR_GATHER_VALUES_H_
#define DTENSOR_TENSOR_GATHER_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// Returns each rank's bytes, by rank. Counts as two all-gathers over the axis "world". `op` names
// the call in errors and must be the same on all ranks, else the world fails. Errors:
// kFailedPrecondition on meta; failures, for example if a rank lacks memory for the bytes of all
// ranks.
absl::StatusOr<std::vector<std::string>> GatherBytes(Context& context, absl::string_view bytes,
                                                     absl::string_view op = "GatherBytes");

// The error of a rank that expects values of `size` bytes, but got `sent` bytes from rank `rank`.
absl::Status UnlikeValues(int rank, size_t sent, size_t size);

// Returns each rank's value, by rank. The bytes of the values are sent as they are. Requires: no
// pointers in T. Errors: also kInvalidArgument, on all ranks, if their types have different sizes.
template <typename T>
absl::StatusOr<std::vector<T>> GatherValues(Context& context, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto all =
      GatherBytes(context, {reinterpret_cast<const char*>(&value), sizeof(value)}, "GatherValues");
  if (!all.ok()) return all.status();
  std::vector<T> values(all->size());
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const size_t sent = (*all)[rank].size();
    if (sent != sizeof(T)) return UnlikeValues(static_cast<int>(rank), sent, sizeof(T));
    std::memcpy(static_cast<void*>(&values[rank]), (*all)[rank].data(), sizeof(T));
  }
  return values;
}

// Returns the first rank whose value differs from rank 0's, or 0 if none does: for code that can
// only go on if all ranks see the same. The result is the same on all ranks. Errors: those of
// GatherBytes.
absl::StatusOr<int> FirstUnlikeRank0(Context& context, uint64_t value);

// Returns OK if `mine` is OK on all ranks. Else all ranks return the same error: rank 0's if every
// rank has one; otherwise that of the lowest rank that has one, prefixed by the ranks that have
// one, "ranks 1, 3: ". The Context stays usable. Errors: also those of GatherBytes.
absl::Status AgreeOn(Context& context, const absl::Status& mine);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_VALUES_H_
