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

// Each rank's bytes, by rank. Counts as two all-gathers of the axis "world". `op` names the call in
// errors; ranks whose calls have other names fail the world. Errors: kFailedPrecondition on meta;
// failures, as where a rank has no memory for all that the ranks say.
absl::StatusOr<std::vector<std::string>> GatherBytes(Context& context, absl::string_view bytes,
                                                     absl::string_view op = "GatherBytes");

// The error of a rank that expects values of `size` bytes, where rank `rank` sent `sent`.
absl::Status UnlikeValues(int rank, size_t sent, size_t size);

// Each rank's value, by rank; its bytes are what is sent. Requires: no pointers in T. Errors: also
// kInvalidArgument, on all ranks, where their types have other sizes.
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

// The first rank that has another value than rank 0: for who can go on only where all ranks see the
// same. 0: none has. The same on all ranks. Errors: those of GatherBytes.
absl::StatusOr<int> FirstUnlikeRank0(Context& context, uint64_t value);

// OK where `mine` is OK on all ranks; else an error that is the same on all: rank 0's where every
// rank has one, and otherwise that of the lowest rank which has one, behind the ranks that have:
// "ranks 1, 3: ". The Context stays usable. Errors: also those of GatherBytes.
absl::Status AgreeOn(Context& context, const absl::Status& mine);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_GATHER_VALUES_H_
