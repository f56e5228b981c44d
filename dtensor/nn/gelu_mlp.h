// GeluMlp: an MLP with GELU between its products, as those of GPT-2, BERT and ViT.
#ifndef DTENSOR_NN_GELU_MLP_H_
#define DTENSOR_NN_GELU_MLP_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "dtensor/nn/layers.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// The form with this name in Hugging Face: "gelu", "gelu_new", "gelu_pytorch_tanh"; nullopt for
// other names.
std::optional<GeluForm> GeluNamed(absl::string_view name);

struct GeluMlpOptions {
  GeluForm form = GeluForm::kErf;
  bool bias = true;
  double up_stddev = 0.02, down_stddev = 0.02;
  std::string up = "up_proj", down = "down_proj";  // the children's names
};

// down(gelu(up(x))): x [..., dim] -> [..., hidden] -> [..., dim]. Colwise for `up` and Rowwise for
// `down` shard the hidden features.
class GeluMlp : public Module {
 public:
  GeluMlp(int64_t dim, int64_t hidden, const GeluMlpOptions& options = {});

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  const GeluForm form_;
  LinearLayer up_, down_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_GELU_MLP_H_
