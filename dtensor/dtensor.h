// All of dtensor: `#include "dtensor/dtensor.h"`. To learn it, read in this order: placement.h,
// device_mesh.h, layout.h, regions.h, redistribution_plan.h, op_rule.h, context.h,
// distributed_tensor.h, ops.h, autograd.h; then parallel_plans/module.h and parallel_plan.h, which
// are included by themselves.
#ifndef DTENSOR_DTENSOR_H_
#define DTENSOR_DTENSOR_H_

#include "dtensor/autograd.h"
#include "dtensor/context.h"
#include "dtensor/device_mesh.h"
#include "dtensor/distributed_tensor.h"
#include "dtensor/layout.h"
#include "dtensor/op_rule.h"
#include "dtensor/ops.h"
#include "dtensor/placement.h"
#include "dtensor/redistribution_plan.h"
#include "dtensor/regions.h"
#include "dtensor/runtime/core/status.h"

#endif  // DTENSOR_DTENSOR_H_
