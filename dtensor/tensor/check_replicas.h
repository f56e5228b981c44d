// CheckReplicas: whether ranks that have the same elements of a tensor have the same bits of them.
//
//   if (step % 100 == 0) DT_RETURN_IF_ERROR(CheckReplicas(context, *StateDictOf(model)));
//
// Each rank computes its replicas itself, and they stay alike because all ranks do the same with
// the same bits. Ranks that do other things are told at their next collective (lineage.h). Ranks
// whose numbers are others are not: values that a program wrote to local(), another setting of
// denormals, another library of products, a bit that flipped. This finds these.
#ifndef DTENSOR_TENSOR_CHECK_REPLICAS_H_
#define DTENSOR_TENSOR_CHECK_REPLICAS_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// Compares the bits of each tensor between the ranks that differ on replicated axes of its mesh
// alone. (-0 differs from 0, and NaNs by their bits; the terms of a Partial sum may differ.) The
// tensors go by any names; StateDictOf and OptimizerState have such maps. They may be on several
// meshes. Each rank's elements are read once, on the host. Collective over the world, and blocks
// until all of its ranks have called: also ranks that have no elements give all tensors. They
// exchange a hash of 8 bytes for each set of axes and mesh, and more only where these differ.
//
// Errors, the same on all ranks, after which the Context stays usable, but for failures: kDataLoss
// where bits differ, with the first such tensor by name, which ranks have other bits than which,
// and of how many tensors that holds; kInvalidArgument for a tensor that is undefined or of another
// Context, and where ranks give other names, shapes, types or layouts; kFailedPrecondition on meta;
// failures.
absl::Status CheckReplicas(Context& context,
                           const std::map<std::string, DistributedTensor>& tensors);

}  // namespace dtensor

#endif  // DTENSOR_TENSOR_CHECK_REPLICAS_H_
