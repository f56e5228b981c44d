// Includes what most programs need of the library. README.md says in which order to read the
// headers. Not included here, so include them yourself: nn/module.h and the others of its folder,
// parallel_plans/parallel_plan.h; tensor/join_world.h, local_world.h, gather_values.h, recompute.h,
// key_lengths.h, check_replicas.h, local_map.h, gather_group.h, op.h, dispatch.h.
#ifndef DTENSOR_DTENSOR_H_
#define DTENSOR_DTENSOR_H_

#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/layout/placement.h"
#include "dtensor/layout/regions.h"
#include "dtensor/ops/ops.h"
#include "dtensor/ops/windows.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/rules/op_rule.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"
#include "dtensor/version.h"

#endif  // DTENSOR_DTENSOR_H_
