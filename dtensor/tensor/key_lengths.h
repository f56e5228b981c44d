// KeyLengths: how many tokens of each text of a padded batch are real. While it lives, the
// attentions of modules do not see the keys behind them.
//
//   // ids [batch, sequence], padded on the right; lengths [batch] i64
//   const KeyLengths padded(lengths);
//   DT_ASSIGN_OR_RETURN(const auto results, bert.Call({ids, token_types}));
//
// It is for modules with an attention (attention_module.h), those of the library and others that
// take their options from CallOptions; a call of Attention has AttentionOptions::key_lengths. What
// Recompute() runs again finds the lengths that it found before. Not for KvCache, whose `counts`
// say which tokens are real.
#ifndef DTENSOR_TENSOR_KEY_LENGTHS_H_
#define DTENSOR_TENSOR_KEY_LENGTHS_H_

#include <memory>

#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

class KeyLengths {
 public:
  // As AttentionOptions::key_lengths, for all attentions that run meanwhile, on the thread of the
  // tensor's Context. In a pipeline: on the mesh of all stages, and not sharded over their axis. An
  // inner KeyLengths takes the place of an outer one while it lives. Requires: a defined tensor.
  explicit KeyLengths(const DistributedTensor& lengths);
  // What was found at another time; null: no lengths.
  KeyLengths(Context& context, std::shared_ptr<const DistributedTensor> lengths);
  ~KeyLengths();
  KeyLengths(const KeyLengths&) = delete;
  KeyLengths& operator=(const KeyLengths&) = delete;

 private:
  Context& context_;
  const std::shared_ptr<const DistributedTensor> before_;
};

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_KEY_LENGTHS_H_
