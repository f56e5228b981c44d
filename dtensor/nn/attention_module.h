// AttentionModule: a module with one attention in it, whose options others may set: the mask, and
// how it runs.
#ifndef DTENSOR_NN_ATTENTION_MODULE_H_
#define DTENSOR_NN_ATTENTION_MODULE_H_

#include "dtensor/nn/module.h"
#include "dtensor/ops/ops.h"

namespace dtensor {

// Forward: [b, s, dim] -> [b, s, dim], with Attention(q, k, v, attention_options()) somewhere.
class AttentionModule : public Module {
 public:
  AttentionOptions& attention_options() { return options_; }
  AttentionOptions* attention() final { return &options_; }

 private:
  AttentionOptions options_;
};

}  // namespace dtensor

#endif  // DTENSOR_NN_ATTENTION_MODULE_H_
