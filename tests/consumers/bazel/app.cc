// A program that uses dtensor, for every build system: a mesh, a tensor that is redistributed, a
// model of its own and a plan for it. Its two ranks are threads, or processes under a launcher.
#include <cstdio>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/tensor/join_world.h"

namespace {

using dtensor::Replicate;
using dtensor::Shard;

class Mlp : public dtensor::Module {
 public:
  Mlp() : up_(8, 16, 0.1), down_(16, 8, 0.1) {
    AddChild("up", &up_);
    AddChild("down", &down_);
  }

 protected:
  dtensor::TensorOr Forward(const dtensor::DistributedTensor& x) override {
    return down_(Silu(up_(x)));
  }

 private:
  dtensor::LinearLayer up_, down_;
};

absl::Status Run(dtensor::Context& context) {
  DT_ASSIGN_OR_RETURN(const dtensor::DeviceMesh mesh, dtensor::DeviceMesh::Parse("tp=2"));
  DT_ASSIGN_OR_RETURN(const dtensor::DistributedTensor split,
                      RandomNormal(context, mesh, {Shard(0)}, {4, 8}, {.seed = 1}));
  DT_ASSIGN_OR_RETURN(const dtensor::DistributedTensor x, split.Redistribute({Replicate()}));

  Mlp model;
  const dtensor::ParallelPlan plan(
      {{"up", dtensor::Colwise("tp")}, {"down", dtensor::Rowwise("tp")}});
  // Equal to what the library makes of its text: the program and a shared library agree on types.
  DT_ASSIGN_OR_RETURN(const dtensor::ParallelPlan read,
                      dtensor::ParallelPlan::Parse(plan.ToString()));
  if (!(read == plan)) return absl::InternalError("the plan is not what its text says");
  DT_RETURN_IF_ERROR(plan.Apply(model, context, mesh, {.seed = 2}));

  DT_ASSIGN_OR_RETURN(const dtensor::DistributedTensor y, model(x));
  DT_ASSIGN_OR_RETURN(const std::vector<float> values, ToGlobal<float>(y));
  if (context.rank() == 0) {
    std::printf("dtensor %s\n%s\n%s\n%d values\n", DTENSOR_VERSION, split.ToString().c_str(),
                y.ToString().c_str(), static_cast<int>(values.size()));
  }
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = dtensor::RunWorld(2, Run);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
