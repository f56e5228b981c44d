#include "dtensor/tools/cli/links_command.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/tools/cli/json_text.h"
#include "dtensor/tools/cli/measure_links.h"
#include "dtensor/tools/program/speaker.h"

namespace dtensor::cli {
namespace {

std::string LinksJson(const CostModel& table, int64_t ranks) {
  const MachineRates& rates = table.rates();
  const auto gemm = [&](DType dtype) {
    return rates.gemm_gf_per_second[static_cast<size_t>(dtype)];
  };
  return JsonText({{"ranks", ranks},
                   {"latency_us", table.Of("*").latency_us},
                   {"gb_per_second", table.Of("*").gb_per_second},
                   {"copy_gb_per_second", table.copy_gb_per_second()},
                   {"reduce_gb_per_second", table.reduce_gb_per_second()},
                   {"multiply_gf_per_second", table.multiply_gf_per_second()},
                   {"gemm_f32_gf_per_second", gemm(DType::kF32)},
                   {"gemm_f64_gf_per_second", gemm(DType::kF64)},
                   {"gemm_bf16_gf_per_second", gemm(DType::kBF16)},
                   {"gemm_f16_gf_per_second", gemm(DType::kF16)},
                   {"memory_gb_per_second", rates.memory_gb_per_second},
                   {"call_us", rates.call_us}});
}

}  // namespace

absl::StatusOr<Outcome> RunLinks(std::optional<int64_t> given, bool json) {
  const int launched = LaunchedRanks();
  const int64_t ranks = given.value_or(launched > 0 ? launched : 2);
  if (launched > 0 && ranks != launched) {
    return InvalidArgument({"--ranks: ", absl::StrCat(ranks), ", and ", absl::StrCat(launched),
                            " processes were started; leave the flag out"});
  }
  const absl::StatusOr<CostModel> table = MeasureLinks(ranks, /*as_launched=*/true);
  if (!table.ok()) {
    const bool refused = absl::IsInvalidArgument(table.status());
    return absl::Status(table.status().code(),
                        absl::StrCat(refused ? "--ranks: " : "", table.status().message()));
  }
  if (json) return Outcome{LinksJson(*table, ranks)};
  return Outcome{absl::StrCat("# measured between ", ranks, " ranks, ",
                              launched > 0 ? "processes" : "threads of one process", "\n",
                              table->ToString())};
}

}  // namespace dtensor::cli
