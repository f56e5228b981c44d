#include "dtensor/nn/gelu_mlp.h"

namespace dtensor {
std::optional<GeluForm> GeluNamed(absl::string_view name) {
  if (name == "gelu") return GeluForm::kErf;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return GeluForm::kTanh;
  return std::nullopt;
}

GeluMlp::GeluMlp(int64_t dim, int64_t hidden, const GeluMlpOptions& options)
    : form_(options.form),
      up_(dim, hidden, options.up_stddev, {}, LinearLayer::BiasIf(options.bias)),
      down_(hidden, dim, options.down_stddev, {}, LinearLayer::BiasIf(options.bias)) {
  AddChild(options.up, &up_);
  AddChild(options.down, &down_);
}

TensorOr GeluMlp::Forward(const DistributedTensor& x) { return down_(Gelu(up_(x), form_)); }

}  // namespace dtensor
