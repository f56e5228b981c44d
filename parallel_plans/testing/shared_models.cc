#include "dtensor/parallel_plans/testing/shared_models.h"

#include "dtensor/ops/ops.h"

namespace dtensor {

TiedModel::TiedModel(int64_t vocab, int64_t dim, bool tied)
    : embed_(vocab, dim, 0.5),
      mid_(dim, dim, 0.5),
      head_(tied ? embed_.weight() : Parameter::New({vocab, dim}, ParameterInit::Normal(0.5))) {
  AddChild("embed", &embed_);
  AddChild("mid", &mid_);
  AddChild("head", &head_);
}

TensorOr TiedModel::Forward(const DistributedTensor& ids) { return head_(Silu(mid_(embed_(ids)))); }

TwoTowers::Tower::Tower(int64_t dim, Module* proj)
    : gain_(Parameter::New({dim}, ParameterInit::Normal(1), {1})), proj_(*proj) {
  AddParameter("gain", gain_);
  AddChild("proj", proj);
}

TensorOr TwoTowers::Tower::Forward(const DistributedTensor& x) {
  return proj_(Silu(Mul(x, gain_->Value())));
}

TwoTowers::TwoTowers(int64_t dim) : proj_(dim, dim, 0.5), a_(dim, &proj_), b_(dim, &proj_) {
  AddChild("a", &a_);
  AddChild("b", &b_);
}

TensorOr TwoTowers::Forward(const DistributedTensor& x) { return b_(a_(x)); }

}  // namespace dtensor
