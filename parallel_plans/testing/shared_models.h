// Models that share modules or parameters, written as a user would write them.
#ifndef DTENSOR_PARALLEL_PLANS_TESTING_SHARED_MODELS_H_
#define DTENSOR_PARALLEL_PLANS_TESTING_SHARED_MODELS_H_

#include <cstdint>

#include "dtensor/nn/layers.h"
#include "dtensor/nn/module.h"

namespace dtensor {

// ids [b, s] -> logits [b, s, vocab]: "embed", "mid" and "head". Tied: the head's weight is the
// embedding's.
class TiedModel : public Module {
 public:
  TiedModel(int64_t vocab, int64_t dim, bool tied);

 protected:
  TensorOr Forward(const DistributedTensor& ids) override;

 private:
  EmbeddingLayer embed_;
  LinearLayer mid_, head_;
};

// [b, s, dim] -> [b, s, dim]: towers "a" and "b", both with the one module "proj" [dim, dim] and a
// gain [dim] of their own.
class TwoTowers : public Module {
 public:
  explicit TwoTowers(int64_t dim);

 protected:
  TensorOr Forward(const DistributedTensor& x) override;

 private:
  class Tower : public Module {
   public:
    Tower(int64_t dim, Module* proj);

   protected:
    TensorOr Forward(const DistributedTensor& x) override;

   private:
    const ParameterPtr gain_;
    Module& proj_;
  };
  LinearLayer proj_;
  Tower a_, b_;
};

}  // namespace dtensor

#endif  // DTENSOR_PARALLEL_PLANS_TESTING_SHARED_MODELS_H_
