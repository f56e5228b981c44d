// A program that plans a redistribution over 64 ranks and runs none of them: the algebra needs
// Abseil alone.
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/layout/layout.h"
#include "dtensor/redistribution/redistribution_plan.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/version.h"

static_assert(DTENSOR_VERSION_NUMBER >= 100, "dtensor 0.1.0 or newer");

namespace {

using dtensor::DeviceMesh;
using dtensor::Layout;
using dtensor::RedistributionPlan;

absl::StatusOr<RedistributionPlan> Plan() {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=8,tp=8"));
  DT_ASSIGN_OR_RETURN(const Layout from, Layout::Parse(mesh, "[] [tp] P(sum: dp)"));
  DT_ASSIGN_OR_RETURN(const Layout to, Layout::Parse(mesh, "[dp] []"));
  return RedistributionPlan::Create(from, to, {64, 64}, dtensor::DType::kF32);
}

}  // namespace

int main() {
  const absl::StatusOr<RedistributionPlan> plan = Plan();
  const std::string text = plan.ok() ? plan->ToString() : plan.status().ToString();
  std::printf("%s\n", text.c_str());
  return plan.ok() ? 0 : 1;
}
