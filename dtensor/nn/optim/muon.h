// Muon: momentum, orthogonalized (Jordan et al. 2024, "Muon: An optimizer for hidden layers in
// neural networks"), as torch.optim.Muon with other defaults; and AdamW for what is not a matrix.
// Step of a matrix p [m, n] with gradient g:
//
//   momentum_buffer = momentum momentum_buffer + g
//   u  = nesterov ? g + momentum momentum_buffer : momentum_buffer
//   p -= lr (weight_decay p + scale O),   O = NewtonSchulz(u), near the closest orthogonal matrix
//
// with scale = 0.2 sqrt(max(m, n)), so that a step is about as large as AdamW's, and both go well
// with one learning rate (Liu et al. 2025, "Muon is scalable for LLM training", 2.2); or
// sqrt(max(1, m / n)), which is the first authors'.
//
//   // Hidden layers' matrices; embedding, head, norms and biases are AdamW's.
//   DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({MuonGroup{matrices}}, {AdamWGroup{others}}));
//
// Where they are computed. Newton-Schulz needs whole matrices, and plans shard them. So each step
// brings whole matrices to ranks, a different one to each rank of a parameter's mesh, computes, and
// brings the results back: every matrix is orthogonalized once, on one rank, also one that is
// replicated. Ranks do as many at a time as the mesh has ranks, alike in shape as far as possible,
// so a rank has one whole matrix at a time, and, until the step is made, the shards of all O in
// f32. Of a parameter [e, m, n], a stack of matrices such as experts', each rank gets some. A
// matrix is received once by its rank and sent back once: about as many bytes as a reduce-scatter
// and an all-gather of the gradients. If gradients have the same bits, so has the step of a matrix,
// on every mesh.
#ifndef DTENSOR_NN_OPTIM_MUON_H_
#define DTENSOR_NN_OPTIM_MUON_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/optimizer.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

struct MuonOptions {
  double momentum = 0.95, weight_decay = 0.1;
  bool nesterov = true;
  bool matches_adamw = true;  // scale = 0.2 sqrt(max(m, n)); else sqrt(max(1, m / n))
  int64_t iterations = 5;     // of Newton-Schulz
  // The type in which u is orthogonalized: f32, or bf16, which GPUs multiply faster. f64 parameters
  // take f64.
  DType dtype = DType::kF32;
  bool master_weights = false;  // as AdamWOptions
};
using MuonGroup = ParameterGroup<MuonOptions>;

// Newton-Schulz iteration on matrices x [..., m, n], of f32, f64 or bf16, which are whole on the
// ranks that have them: x is divided by its Frobenius norm (at least 1e-7), and then replaced
// `iterations` times by a x + (b x x^T + c (x x^T)^2) x, (a, b, c) = (3.4445, -4.775, 2.0315): its
// singular values go to between about 0.7 and 1.2, its singular vectors stay. Errors:
// kInvalidArgument for fewer than 2 dimensions; those of its operators.
TensorOr NewtonSchulz(const TensorOr& x, int64_t iterations = 5);

// States: "momentum_buffer" of matrices, and AdamW's of others (optimizer.h). Step is collective
// over the ranks of the matrices' meshes. Its errors are also those of Redistribute, such as a cap
// on memory, after which some momenta have moved.
class Muon : public Optimizer {
 public:
  // Errors: optimizer.h; kInvalidArgument also for a matrix that has not two or three dimensions.
  // momentum is in [0, 1), weight_decay finite and >= 0, iterations from 1 to 100.
  static absl::StatusOr<Muon> Create(std::vector<MuonGroup> matrices,
                                     std::vector<AdamWGroup> others = {});

 protected:
  absl::Status Prepare(absl::Span<const size_t> indices,
                       const DistributedTensor& grad_scale) override;
  absl::Status Apply(const Update& update) override;

 private:
  Muon() : Optimizer("Muon") {}
  const MuonOptions* matrix(size_t index) const {
    return std::get_if<MuonOptions>(&options_[index]);
  }
  // u, in the parameter's layout; moves the momentum.
  TensorOr Momentum(size_t index, const DistributedTensor& grad_scale);
  // Sets matrices_: those of one mesh after the other, and of each those of one shape.
  void OrderMatrices();
  // Orthogonalizes parameters of one mesh, one for each of its ranks.
  absl::Status OrthogonalizeAtOnce(absl::Span<const size_t> indices,
                                   const DistributedTensor& grad_scale);

  // One of the matrices; `mesh` numbers the meshes.
  struct Matrix {
    size_t index, mesh;
  };

  std::vector<std::variant<MuonOptions, AdamWOptions>> options_;  // of each parameter
  std::vector<Matrix> matrices_;                    // in the order in which they are orthogonalized
  std::map<size_t, DistributedTensor> orthogonal_;  // O of parameters whose step is to be made
};

}  // namespace dtensor

#endif  // DTENSOR_NN_OPTIM_MUON_H_
