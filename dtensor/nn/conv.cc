#include "dtensor/nn/conv.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

ParameterPtr NewWeight(const ConvLayer::Sizes& sizes, double stddev, const ConvOptions& options) {
  const int64_t groups = options.groups;
  const auto is_size = [](int64_t size) { return size >= 1; };
  DT_REQUIRE(!sizes.kernel.empty() && absl::c_all_of(sizes.kernel, is_size) && sizes.in >= 1 &&
                 sizes.out >= 1,
             "ConvLayer: a kernel without dimensions, or a size below 1; give the kernel's sizes, "
             "as {3, 3}");
  DT_REQUIRE(groups >= 1 && sizes.in % groups == 0 && sizes.out % groups == 0,
             "ConvLayer: groups must divide the input and the output features");
  for (const auto* numbers :
       {&options.stride, &options.before, &options.after, &options.dilation}) {
    DT_REQUIRE(numbers->size() <= 1 || numbers->size() == sizes.kernel.size(),
               "ConvLayer: an option has another number of entries than the kernel; give one for "
               "each of the kernel's, or one for all");
  }
  Dims shape = {sizes.out, sizes.in / groups};
  shape.insert(shape.end(), sizes.kernel.begin(), sizes.kernel.end());
  return Parameter::New(std::move(shape), ParameterInit::Normal(stddev));
}

std::vector<DimRole> RolesOf(const Dims& weight, int64_t groups) {
  std::vector<DimRole> roles(weight.size(), DimRole::kOther);
  roles[0] = DimRole::kOutput;
  if (groups == 1) roles[1] = DimRole::kInput;
  return roles;
}

}  // namespace

ConvLayer::ConvLayer(Sizes sizes, double stddev, ConvOptions options, bool has_bias)
    : options_(std::move(options)),
      weight_(NewWeight(sizes, stddev, options_)),
      bias_(has_bias ? Parameter::New({sizes.out}, ParameterInit::Constant(0)) : nullptr) {
  AddParameter("weight", weight_, RolesOf(weight_->shape, options_.groups));
  if (bias_ != nullptr) AddParameter("bias", bias_, {DimRole::kOutput});
}

TensorOr ConvLayer::Forward(const DistributedTensor& x) {
  DT_ASSIGN_OR_RETURN(const DistributedTensor y, Conv(x, weight_->ValueOn(x.mesh()), options_));
  return bias_ == nullptr || y.layout().is_partial() ? y : Add(y, bias_->ValueOn(x.mesh()));
}

TensorOr ConvLayer::Finish(const DistributedTensor& y, const Spec& computed) {
  const bool adds = bias_ != nullptr && computed.layout.is_partial();
  return adds ? Add(y, bias_->ValueOn(y.mesh())) : y;
}

}  // namespace dtensor
