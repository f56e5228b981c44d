// CostModel: how fast ranks talk along each mesh axis, and how fast one rank copies, reduces and
// multiplies.
// Plans are priced with it. A plain value with a text form, one fact a line:
//
//   # two nodes of eight
//   link dp 12 25      ranks that differ on "dp": 12 us for a message, then 25 GB/s (1e9 bytes/s)
//   link * 0.5 150     every other axis
//   copy 1500          GB/s of local copies, bytes read plus bytes written
//   reduce 1200        GB/s of terms read
//   multiply 600000    GF/s (1e9 operations/s) of attention's products
//
// All ranks must use equal tables: plans follow from them.
#ifndef DTENSOR_REDISTRIBUTION_COST_MODEL_H_
#define DTENSOR_REDISTRIBUTION_COST_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtensor {

struct LinkSpeed {
  double latency_us = 0.3;   // of one message, however small
  double gb_per_second = 8;  // 1e9 bytes; of all that one rank receives over such links
  friend bool operator==(const LinkSpeed&, const LinkSpeed&) = default;
};

class CostModel {
 public:
  // Two ranks that are threads of one process, on a desktop CPU: one link for every axis.
  CostModel() = default;
  // Reads the text above. What it leaves out keeps its default. Errors: kInvalidArgument, with the
  // number of the line, for an unknown word, an axis given twice, a rate that is not above 0, a
  // negative latency.
  static absl::StatusOr<CostModel> Parse(absl::string_view text);
  std::string ToString() const;  // parses back

  const LinkSpeed& Of(absl::string_view axis) const;
  void Set(std::string axis, LinkSpeed link) { axes_[std::move(axis)] = link; }
  void SetDefault(LinkSpeed link) { every_other_ = link; }
  double copy_gb_per_second() const { return copy_; }
  double reduce_gb_per_second() const { return reduce_; }
  double multiply_gf_per_second() const { return multiply_; }
  void set_copy_gb_per_second(double rate) { copy_ = rate; }
  void set_reduce_gb_per_second(double rate) { reduce_ = rate; }
  void set_multiply_gf_per_second(double rate) { multiply_ = rate; }

  // No axis has a link of its own: then only numbers of messages and bytes tell plans apart.
  bool uniform() const { return axes_.empty(); }
  friend bool operator==(const CostModel&, const CostModel&) = default;

 private:
  std::map<std::string, LinkSpeed, std::less<>> axes_;
  LinkSpeed every_other_;
  double copy_ = 16, reduce_ = 12, multiply_ = 100;
};

}  // namespace dtensor

#endif  // DTENSOR_REDISTRIBUTION_COST_MODEL_H_
