// CostModel: how fast ranks communicate along each mesh axis, and how fast one rank copies, reduces
// and computes. It prices plans and simulated runs (Simulate, context.h). A plain value with a text
// form, one fact per line:
//
//   # two nodes of eight
//   link dp 12 25      ranks that differ on "dp": 12 us for a message, then 25 GB/s (1e9 bytes/s);
//                      the name of a group applies to those of its axes that have no line
//   link * 0.5 150     every other axis
//   copy 1500          GB/s of local copies, bytes read plus bytes written
//   reduce 1200        GB/s of terms read
//   multiply 600000    GF/s (1e9 operations/s) of attention's products
//   gemm bf16 800000   GF/s of matrix products of that type; without such a line, as multiply
//   memory 2500        GB/s of all other kernels, read plus written; without such a line, as copy
//   call 4             us that each kernel takes in addition to its work; without such a line, 0
//
// All ranks must use equal tables: plans follow from them.
#ifndef DTENSOR_REDISTRIBUTION_COST_MODEL_H_
#define DTENSOR_REDISTRIBUTION_COST_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/device_mesh.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/core/machine_rates.h"

namespace DTENSOR_EXPORT dtensor {

class CostModel {
 public:
  // The default is two ranks that are threads of one process, on a desktop CPU: one link for every
  // axis.
  CostModel() = default;
  // Reads the text above. What it leaves out keeps its default. Errors: kInvalidArgument, with the
  // number of the line, for an unknown word, a line that repeats an earlier one's subject, a rate
  // that is not above 0, a negative latency.
  static absl::StatusOr<CostModel> Parse(absl::string_view text);
  std::string ToString() const;  // parses back

  const LinkSpeed& Of(absl::string_view axis) const { return rates_.LinkOf(axis); }
  void Set(std::string axis, LinkSpeed link) { rates_.links[std::move(axis)] = link; }
  void SetDefault(LinkSpeed link) { rates_.every_other_link = link; }
  double copy_gb_per_second() const { return rates_.copy_gb_per_second; }
  double reduce_gb_per_second() const { return rates_.reduce_gb_per_second; }
  double multiply_gf_per_second() const { return rates_.multiply_gf_per_second; }
  void set_copy_gb_per_second(double rate) { rates_.copy_gb_per_second = rate; }
  void set_reduce_gb_per_second(double rate) { rates_.reduce_gb_per_second = rate; }
  void set_multiply_gf_per_second(double rate) { rates_.multiply_gf_per_second = rate; }
  void set_gemm_gf_per_second(DType dtype, double rate) {
    rates_.gemm_gf_per_second[static_cast<size_t>(dtype)] = rate;
  }
  void set_memory_gb_per_second(double rate) { rates_.memory_gb_per_second = rate; }
  void set_call_us(double call_us) { rates_.call_us = call_us; }

  // Everything, as plain numbers.
  const MachineRates& rates() const { return rates_; }

  // A copy in which each axis of this mesh that has no line gets that of a group that contains it.
  // If several such groups have a line, the group with the fewest axes counts, then the first by
  // name. Plans and ExplainStep use this. A run simulated directly (Simulate) looks only at lines
  // with the names of axes.
  CostModel On(const DeviceMesh& mesh) const;
  // Checks the numbers: Parse() makes only valid models, but setters take any number. Errors:
  // kInvalidArgument, with the line that would be invalid, for a rate that is not above 0, a
  // negative latency, or either if it is infinite or NaN.
  absl::Status Check() const;
  // Whether no axis has a link of its own: then plans differ only in their numbers of messages and
  // bytes.
  bool uniform() const { return rates_.links.empty(); }
  friend bool operator==(const CostModel&, const CostModel&) = default;

 private:
  MachineRates rates_;
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_COST_MODEL_H_
