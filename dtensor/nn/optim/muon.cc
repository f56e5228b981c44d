#include "dtensor/nn/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/nn/optim/adamw_step.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/optimizer.h"

namespace dtensor {
namespace {

absl::Status CheckOptions(const MuonOptions& options) {
  const auto refuse = [](absl::string_view what, double number, absl::string_view wanted) {
    return InvalidArgument({"Muon: ", what, " is ", absl::StrCat(number), "; take ", wanted});
  };
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    return refuse("momentum", options.momentum, "a number from 0, and less than 1");
  }
  if (!(options.weight_decay >= 0 && std::isfinite(options.weight_decay))) {
    return refuse("weight_decay", options.weight_decay, "a finite number >= 0");
  }
  if (options.iterations < 1 || options.iterations > 100) {
    return refuse("iterations", static_cast<double>(options.iterations), "1 to 100");
  }
  if (options.dtype == DType::kF32 || options.dtype == DType::kBF16) return absl::OkStatus();
  return InvalidArgument({"Muon: dtype is ", ToString(options.dtype), "; take f32 or bf16"});
}

absl::Status CheckMatrix(const DistributedTensor& parameter) {
  if (!parameter.defined() || parameter.ndim() == 2 || parameter.ndim() == 3) {
    return absl::OkStatus();  // Init refuses what is undefined
  }
  return InvalidArgument({"Muon: ", parameter.ToString(),
                          " is no matrix, and no stack of matrices; give it to AdamW's groups"});
}

// The layout in which a parameter of `layout` is orthogonalized: a matrix whole on one rank, the
// mesh's rank number `turn`; of a stack each rank has some matrices.
absl::StatusOr<Layout> WholeMatrices(const Layout& layout, int turn) {
  const DeviceMesh& mesh = layout.mesh();
  if (layout.ndim() == 2) {
    DT_ASSIGN_OR_RETURN(const DeviceMesh there, DeviceMesh().OnRanks({mesh.RankOf(turn)}));
    return Layout::Replicated(there, 2);
  }
  AxisList axes;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) axes.push_back(axis);
  return Layout::Replicated(mesh, 3).WithAxes(axes, Shard(0));
}

double ScaleOf(const MuonOptions& options, const Dims& shape) {
  const auto rows = static_cast<double>(shape[shape.size() - 2]);
  const auto columns = static_cast<double>(shape[shape.size() - 1]);
  if (options.matches_adamw) return 0.2 * std::sqrt(std::max({1.0, rows, columns}));
  return std::sqrt(std::max(1.0, rows / std::max(1.0, columns)));
}

// With at most as many rows as columns.
TensorOr Iterate(TensorOr x, int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
    DT_RETURN_IF_ERROR(x.status());
    const TensorOr gram = MatMul(x, Transpose(x, -2, -1));
    const TensorOr mixed = Add(Scale(gram, -4.775), Scale(MatMul(gram, gram), 2.0315));
    x = Add(Scale(x, 3.4445), MatMul(mixed, x));
  }
  return x;
}

}  // namespace

TensorOr NewtonSchulz(const TensorOr& x, int64_t iterations) {
  DT_RETURN_IF_ERROR(x.status());
  if (!x->defined() || x->ndim() < 2) {
    return InvalidArgument({"NewtonSchulz: ", x->defined() ? x->ToString() : "an undefined tensor",
                            " is no matrix; Reshape it to [..., m, n]"});
  }
  const Dims& shape = x->shape();
  Dims ones = shape;
  ones[x->ndim() - 2] = ones[x->ndim() - 1] = 1;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const TensorOr norm = Clamp(Sqrt(Sum(Mul(x, x), {-2, -1})), 1e-7, kInfinity);
  const TensorOr unit = Div(x, Reshape(norm, ones));
  if (shape[x->ndim() - 2] <= shape[x->ndim() - 1]) return Iterate(unit, iterations);
  return Transpose(Iterate(Transpose(unit, -2, -1), iterations), -2, -1);
}

absl::StatusOr<Muon> Muon::Create(std::vector<MuonGroup> matrices, std::vector<AdamWGroup> others) {
  Muon muon;
  std::vector<Group> all;
  for (const MuonGroup& group : matrices) {
    const MuonOptions& options = group.options;
    DT_RETURN_IF_ERROR(CheckOptions(options));
    for (const DistributedTensor& parameter : group.parameters) {
      DT_RETURN_IF_ERROR(CheckMatrix(parameter));
    }
    all.push_back({group.parameters,
                   group.lr_scale,
                   options.master_weights,
                   {"momentum_buffer"},
                   {options.momentum, options.weight_decay, options.nesterov ? 1. : 0.,
                    options.matches_adamw ? 1. : 0., static_cast<double>(options.iterations),
                    static_cast<double>(options.dtype)}});
    muon.options_.insert(muon.options_.end(), group.parameters.size(), options);
  }
  for (const AdamWGroup& group : others) {
    DT_RETURN_IF_ERROR(internal::CheckAdamW("Muon", group.options));
    all.push_back({group.parameters,
                   group.lr_scale,
                   group.options.master_weights,
                   {"exp_avg", "exp_avg_sq"},
                   internal::NumbersOf(group.options)});
    muon.options_.insert(muon.options_.end(), group.parameters.size(), group.options);
  }
  DT_RETURN_IF_ERROR(muon.Init(all));
  muon.OrderMatrices();
  return muon;
}

// The kernel of Sgd subtracts -1 times its step from zeros.
TensorOr Muon::Momentum(size_t index, const DistributedTensor& grad_scale) {
  const DistributedTensor& parameter = parameters()[index];
  const MuonOptions& options = *matrix(index);
  const DistributedTensor& buffer = state(index, 0);
  DT_RETURN_IF_ERROR(BeforeWrite(buffer));
  DT_ASSIGN_OR_RETURN(const DistributedTensor gradient, Cast(parameter.grad(), buffer.dtype()));
  DT_ASSIGN_OR_RETURN(DistributedTensor u, Full(parameter.context(), parameter.layout(),
                                                parameter.shape(), buffer.dtype(), 0));
  if (!u.spec().on_mesh) return u;
  const auto step = [&]() -> absl::Status {
    Device& device = parameter.context().device();
    DT_ASSIGN_OR_RETURN(const Tensor local, kernels::Contiguous(device, gradient.local()));
    return kernels::Sgd(device,
                        {.lr = -1, .momentum = options.momentum, .nesterov = options.nesterov},
                        u.local(), local, options.momentum == 0 ? Tensor() : buffer.local(),
                        grad_scale.defined() ? grad_scale.local() : Tensor());
  };
  const absl::Status status = step();
  if (!status.ok()) return parameter.context().communicator().Fail(status);
  return u;
}

absl::Status Muon::OrthogonalizeAtOnce(absl::Span<const size_t> indices,
                                       const DistributedTensor& grad_scale) {
  std::vector<DistributedTensor> whole;
  for (size_t i = 0; i < indices.size(); ++i) {
    const DistributedTensor& parameter = parameters()[indices[i]];
    DT_ASSIGN_OR_RETURN(const DistributedTensor u, Momentum(indices[i], grad_scale));
    DT_ASSIGN_OR_RETURN(const Layout there, WholeMatrices(parameter.layout(), static_cast<int>(i)));
    DT_ASSIGN_OR_RETURN(whole.emplace_back(), u.Redistribute(there));
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    const MuonOptions& options = *matrix(indices[i]);
    const DType dtype = whole[i].dtype();
    const DType narrow = dtype == DType::kF64 ? dtype : options.dtype;
    DT_ASSIGN_OR_RETURN(whole[i],
                        Cast(NewtonSchulz(Cast(whole[i], narrow), options.iterations), dtype));
  }
  for (size_t i = 0; i < indices.size(); ++i) {
    DT_ASSIGN_OR_RETURN(orthogonal_[indices[i]],
                        whole[i].Redistribute(parameters()[indices[i]].layout()));
    whole[i] = DistributedTensor();
  }
  return absl::OkStatus();
}

void Muon::OrderMatrices() {
  std::vector<DeviceMesh> meshes;
  for (size_t i = 0; i < parameters().size(); ++i) {
    if (matrix(i) == nullptr) continue;
    const DeviceMesh& mesh = parameters()[i].mesh();
    const auto found = std::find(meshes.begin(), meshes.end(), mesh);
    matrices_.push_back({i, static_cast<size_t>(found - meshes.begin())});
    if (found == meshes.end()) meshes.push_back(mesh);
  }
  const auto key = [this](const Matrix& m) {
    return std::make_pair(m.mesh, parameters()[m.index].shape());
  };
  std::stable_sort(matrices_.begin(), matrices_.end(),
                   [&](const Matrix& a, const Matrix& b) { return key(a) < key(b); });
}

absl::Status Muon::Prepare(absl::Span<const size_t> indices, const DistributedTensor& grad_scale) {
  orthogonal_.clear();
  std::vector<Matrix> matrices;
  for (const Matrix& m : matrices_) {
    if (std::binary_search(indices.begin(), indices.end(), m.index)) matrices.push_back(m);
  }
  if (matrices.empty()) return absl::OkStatus();
  const NoGrad no_grad(parameters()[matrices[0].index].context());
  for (size_t i = 0; i < matrices.size();) {
    const auto ranks = static_cast<size_t>(parameters()[matrices[i].index].mesh().size());
    std::vector<size_t> at_once;
    for (const size_t mesh = matrices[i].mesh;
         i < matrices.size() && matrices[i].mesh == mesh && at_once.size() < ranks; ++i) {
      at_once.push_back(matrices[i].index);
    }
    DT_RETURN_IF_ERROR(OrthogonalizeAtOnce(at_once, grad_scale));
  }
  return absl::OkStatus();
}

// p -= scale lr ((weight_decay / scale) p + O).
absl::Status Muon::Apply(const Update& update) {
  Device& device = update.parameter.device();
  const MuonOptions* const options = matrix(update.index);
  if (options == nullptr) {
    const auto& adamw = std::get<AdamWOptions>(options_[update.index]);
    return kernels::AdamW(device, internal::AdamWStepOf(adamw, update.lr, update.step),
                          update.parameter, update.gradient, update.states[0], update.states[1],
                          update.grad_scale, update.master);
  }
  const DistributedTensor orthogonal = std::move(orthogonal_.extract(update.index).mapped());
  DT_ASSIGN_OR_RETURN(const Tensor o, kernels::Contiguous(device, orthogonal.local()));
  const double scale = ScaleOf(*options, orthogonal.shape());
  return kernels::Sgd(device,
                      {.lr = update.lr * scale, .weight_decay = options->weight_decay / scale},
                      update.parameter, o, {}, {}, update.master);
}

}  // namespace dtensor
