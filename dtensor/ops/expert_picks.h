// What a rank's experts do with the tokens that picked them, a row for each pick. For the sources
// of this folder.
#ifndef DTENSOR_OPS_EXPERT_PICKS_H_
#define DTENSOR_OPS_EXPERT_PICKS_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/ops/expert_routing.h"
#include "dtensor/runtime/device/tensor.h"

namespace dtensor::internal {

// Below, "a row for each pick" is a row-major tensor [picks, n]; `matrices` are row-major
// [this rank's experts, rows, columns]. All are of one float type. Errors: failures.
class Picks {
 public:
  Picks(Device& device, ExpertRouting routing) : device_(device), routing_(std::move(routing)) {}

  // Memory for a row for each pick, of the type of `like`.
  absl::StatusOr<Tensor> Rows(const Tensor& like, int64_t n) const;
  // The row of x [tokens, n] of each pick's token.
  absl::StatusOr<Tensor> OfTokens(const Tensor& x) const { return Gather(x, routing_.tokens); }
  // The element of x [tokens * choices, 1] of each pick.
  absl::StatusOr<Tensor> OfChoices(const Tensor& x) const { return Gather(x, routing_.choices); }
  // The reverse: x gets, for each token, the sum of its picks' rows, by ascending expert; for each
  // choice the row of its pick, or 0.
  absl::Status AddToTokens(const Tensor& rows, const Tensor& x) const {
    return Scatter(rows, routing_.tokens, x);
  }
  absl::Status AddToChoices(const Tensor& rows, const Tensor& x) const {
    return Scatter(rows, routing_.choices, x);
  }

  // out = rows matrices[expert]^T, or rows matrices[expert]; added to `out` if `adds`. rows, out:
  // a row for each pick.
  absl::Status Multiply(const Tensor& rows, const Tensor& matrices, bool transposed,
                        const Tensor& out, bool adds = false) const;
  // matrices[expert] = a^T b, a sum over the expert's picks: 0 if it has none. a, b: a row for each
  // pick.
  absl::Status Contract(const Tensor& a, const Tensor& b, const Tensor& matrices) const;
  // For row-major biases [this rank's experts, n]: rows += biases[expert]; and biases[expert] = the
  // sum of the expert's rows, 0 if it has none.
  absl::Status AddBias(const Tensor& biases, const Tensor& rows) const;
  absl::Status SumRows(const Tensor& rows, const Tensor& biases) const;

 private:
  absl::StatusOr<Tensor> Gather(const Tensor& x, const Tensor& at) const;
  absl::Status Scatter(const Tensor& rows, const Tensor& at, const Tensor& x) const;
  Tensor RowsOf(const Tensor& rows, int64_t expert) const;

  Device& device_;
  ExpertRouting routing_;
};

}  // namespace dtensor::internal

#endif  // DTENSOR_OPS_EXPERT_PICKS_H_
