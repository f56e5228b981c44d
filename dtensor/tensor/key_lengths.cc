#include "dtensor/tensor/key_lengths.h"

#include <utility>

namespace dtensor {

KeyLengths::KeyLengths(const DistributedTensor& lengths)
    : KeyLengths(lengths.context(), std::make_shared<const DistributedTensor>(lengths)) {}

KeyLengths::KeyLengths(Context& context, std::shared_ptr<const DistributedTensor> lengths)
    : context_(context), before_(context.key_lengths()) {
  context_.set_key_lengths(std::move(lengths));
}

KeyLengths::~KeyLengths() { context_.set_key_lengths(before_); }

}  // namespace dtensor
