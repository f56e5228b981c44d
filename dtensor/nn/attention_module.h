// AttentionModule: a module with one attention in it. Other code may set the attention's options:
// its mask, and how it runs.
#ifndef DTENSOR_NN_ATTENTION_MODULE_H_
#define DTENSOR_NN_ATTENTION_MODULE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/context.h"

namespace DTENSOR_EXPORT dtensor {

// Forward: [b, s, dim] -> [b, s, dim], with Attention(q, k, v, CallOptions(context)) somewhere.
class AttentionModule : public Module {
 public:
  AttentionOptions& attention_options() { return options_; }
  AttentionOptions* attention() final { return &options_; }

 protected:
  // The options of one call: those above, with the lengths that hold now (KeyLengths). While the
  // module trains, they have this dropout and the Context's next seed.
  AttentionOptions CallOptions(Context& context, double dropout = 0) const {
    AttentionOptions options = options_;
    if (context.key_lengths() != nullptr) options.key_lengths = *context.key_lengths();
    if (!training() || dropout == 0) return options;
    options.dropout = dropout;
    options.dropout_seed = context.NextSeed();
    return options;
  }
  // Errors: kInvalidArgument if x is not [b, s, dim].
  static absl::Status CheckHidden(absl::string_view module, const DistributedTensor& x) {
    if (x.ndim() == 3) return absl::OkStatus();
    return InvalidArgument({module, ": x is ", x.ToString(),
                            "; give it as [batch, sequence, features], a text alone as ",
                            "[1, sequence, features]"});
  }

 private:
  AttentionOptions options_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_ATTENTION_MODULE_H_
