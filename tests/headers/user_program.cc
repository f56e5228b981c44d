// A user's own module, plan and training step, compiled as strictly as a user may (USER_COPTS) and
// optimized: code that is inlined into it must not cause warnings either.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/parallel_plans/parallel_plan.h"

namespace user {

using dtensor::DistributedTensor;
using dtensor::TensorOr;

// A layer with parameters of its own, one of them in units; they say what their dimensions are.
class ScaledLayer : public dtensor::Module {
 public:
  explicit ScaledLayer(int64_t dim)
      : linear_(dim, dim, 0.1),
        scale_(dtensor::Parameter::New({dim}, dtensor::ParameterInit::Constant(1))),
        shift_(dtensor::Parameter::New({dim}, {}, {2})) {
    AddChild("linear", &linear_);
    AddParameter("scale", scale_, {dtensor::DimRole::kOutput});
    AddParameter("shift", shift_, {dtensor::DimRole::kOutput});
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    return Add(Mul(linear_(x), scale_->Value()), shift_->Value());
  }

 private:
  dtensor::LinearLayer linear_;
  dtensor::ParameterPtr scale_, shift_;
};

// A style of one's own: splits whatever is output features. Nothing comes or leaves split.
struct SplitOutputs {
  std::string axis;
  absl::StatusOr<dtensor::StyleWishes> WishesAt(const dtensor::StyleSite& site) const {
    dtensor::StyleWishes wishes;
    DT_ASSIGN_OR_RETURN(wishes.parameters, SplitAlong(site.module, {dtensor::DimRole::kOutput}));
    wishes.edges = {site.Edge(dtensor::Replicate(), dtensor::Replicate())};
    return wishes;
  }
  std::string ToString() const { return "SplitOutputs(\"" + axis + "\")"; }
  friend bool operator==(const SplitOutputs&, const SplitOutputs&) = default;
};

absl::Status Train(dtensor::Context& context) {
  DT_ASSIGN_OR_RETURN(const dtensor::DeviceMesh mesh, dtensor::DeviceMesh::Parse("dp=2,tp=2"));
  ScaledLayer model(4);
  const dtensor::ParallelPlan plan({{"", dtensor::DataParallel("dp")},
                                    {"", SplitOutputs{"tp"}},
                                    {"linear", dtensor::Colwise("tp")}});
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 1}));
  DT_ASSIGN_OR_RETURN(dtensor::AdamW optimizer,
                      dtensor::AdamW::Create(model.Parameters(), {.weight_decay = 0}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor x,
                      RandomNormal(context, mesh, {dtensor::Shard(0), dtensor::Replicate()},
                                   {2, 3, 4}, {.seed = 2}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, model(x));
  DT_ASSIGN_OR_RETURN(const DistributedTensor loss, Sum(Mul(y, y), {0, 1, 2}));
  DT_RETURN_IF_ERROR(Backward(loss));
  DT_RETURN_IF_ERROR(dtensor::ReduceGradients(model.Parameters()));
  return optimizer.Step(0.1);
}

}  // namespace user

int main() {
  const absl::Status status = dtensor::RunRanks(4, user::Train, {.timeout_seconds = 10});
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
