#include "dtensor/generation/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/philox.h"
#include "dtensor/runtime/core/status.h"

namespace dtensor {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

float Ordered(float logit) { return std::isnan(logit) ? kNever : logit; }

// The k-th largest logit; smaller ones are left out.
float FloorOfTopK(absl::Span<const float> logits, int64_t k) {
  if (k == 0 || k >= static_cast<int64_t>(logits.size())) return kNever;
  std::vector<float> sorted;
  for (const float logit : logits) sorted.push_back(Ordered(logit));
  std::nth_element(sorted.begin(), sorted.begin() + (k - 1), sorted.end(), std::greater<float>());
  return sorted[k - 1];
}

// The smallest of the largest logits whose probabilities add up to p; smaller ones are left out.
float FloorOfTopP(absl::Span<const float> logits, float floor, double temperature, double p) {
  if (p >= 1) return floor;
  std::vector<float> sorted;
  for (const float logit : logits) {
    if (Ordered(logit) >= floor && Ordered(logit) > kNever) sorted.push_back(logit);
  }
  if (sorted.empty()) return floor;
  std::sort(sorted.begin(), sorted.end(), std::greater<float>());
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - sorted[0]) / temperature);
  };
  double sum = 0, reached = 0;
  for (const float logit : sorted) sum += weight(logit);
  for (const float logit : sorted) {
    reached += weight(logit);
    if (reached >= p * sum) return logit;
  }
  return sorted.back();
}

// Gumbel noise: -log(-log(u)). Four neighbouring tokens share one draw.
class Noise {
 public:
  Noise(const SamplingOptions& options, uint32_t row, uint32_t position)
      : seed_(options.seed), row_(row), position_(position) {}
  double operator()(uint32_t token) {
    if (token / 4 != drawn_) {
      drawn_ = token / 4;
      words_ = Philox({drawn_, 0, position_, row_},
                      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    }
    const double u = (static_cast<double>(words_[token % 4] >> 8) + 0.5) / (1 << 24);
    return -std::log(-std::log(u));
  }

 private:
  const uint64_t seed_;
  const uint32_t row_, position_;
  uint32_t drawn_ = std::numeric_limits<uint32_t>::max();  // the group drawn last; none yet
  std::array<uint32_t, 4> words_ = {};
};

absl::Status CheckSample(const DistributedTensor& logits, absl::Span<const int64_t> positions) {
  if (!logits.defined()) return InvalidArgument({"SampleTokens: the logits are undefined"});
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({"SampleTokens: ", why, " (", logits.ToString(), ")"});
  };
  const Dims& shape = logits.shape();
  if (shape.size() != 3 || shape[1] != 1 || shape[2] < 1 || !IsFloat(logits.dtype())) {
    return refuse("logits are [batch, 1, vocab], of floats, with a word at least");
  }
  if (static_cast<int64_t>(positions.size()) != shape[0]) {
    return refuse(
        absl::StrCat("there are ", positions.size(), " positions; give one for each row"));
  }
  for (const int64_t position : positions) {
    if (position >= 0 && position < int64_t{1} << 32) continue;
    return refuse(absl::StrCat("no position is ", position));
  }
  return absl::OkStatus();
}

TensorOr WithoutNan(const DistributedTensor& x) {
  const Layout scalar = Layout::Replicated(x.layout().mesh(), 0);
  return Where(Equal(x, x), x, Full(x.context(), scalar, {}, x.dtype(), kNever));
}

// ArgMax prefers a NaN to all other values; here a NaN is never taken.
absl::StatusOr<std::vector<int64_t>> Likeliest(const DistributedTensor& logits) {
  const int64_t vocab = logits.shape()[2];
  DT_ASSIGN_OR_RETURN(const DistributedTensor rows, Reshape(logits, {logits.shape()[0], vocab}));
  DT_ASSIGN_OR_RETURN(const DistributedTensor best, ArgMax(WithoutNan(rows), 1));
  return ToGlobal<int64_t>(best);
}

}  // namespace

absl::Status SamplingOptions::Validate() const {
  const auto refuse = [](absl::string_view name, double value, absl::string_view remedy) {
    return InvalidArgument({"SamplingOptions: ", name, " is ", absl::StrCat(value), "; ", remedy});
  };
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return refuse("temperature", temperature, "give a finite number, or 0 for the likeliest");
  }
  if (top_k < 0) return refuse("top_k", static_cast<double>(top_k), "give 0 for all, or more");
  if (!(top_p > 0 && top_p <= 1))
    return refuse("top_p", top_p, "give a probability above 0, of at most 1");
  return absl::OkStatus();
}

int64_t SampleToken(absl::Span<const float> logits, const SamplingOptions& options, uint32_t row,
                    uint32_t position) {
  const bool draws = options.temperature > 0;
  float floor = kNever;
  if (draws) {
    floor = FloorOfTopK(logits, options.top_k);
    floor = FloorOfTopP(logits, floor, options.temperature, options.top_p);
  }
  float largest = kNever;
  for (const float logit : logits) largest = std::max(largest, Ordered(logit));
  int64_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  Noise noise(options, row, position);
  for (size_t i = 0; i < logits.size(); ++i) {
    const float logit = Ordered(logits[i]);
    if (logit < floor || logit == kNever) continue;
    // Relative to the largest logit, so that a small temperature does not make it infinite.
    const double behind = logit == largest ? 0 : static_cast<double>(logit) - largest;
    const double score =
        draws ? behind / options.temperature + noise(static_cast<uint32_t>(i)) : behind;
    if (!(score > most)) continue;
    best = static_cast<int64_t>(i);
    most = score;
  }
  return best;
}

absl::StatusOr<std::vector<int64_t>> SampleTokens(const DistributedTensor& logits,
                                                  const SamplingOptions& options,
                                                  absl::Span<const int64_t> positions) {
  DT_RETURN_IF_ERROR(options.Validate());
  DT_RETURN_IF_ERROR(CheckSample(logits, positions));
  const NoGrad no_grad(logits.context());
  if (options.temperature == 0) return Likeliest(logits);
  DT_ASSIGN_OR_RETURN(const DistributedTensor as_f32, Cast(logits, DType::kF32));
  DT_ASSIGN_OR_RETURN(const std::vector<float> all, ToGlobal<float>(as_f32));
  const int64_t vocab = logits.shape()[2];
  std::vector<int64_t> tokens;
  for (size_t r = 0; r < positions.size(); ++r) {
    tokens.push_back(SampleToken(absl::MakeConstSpan(all).subspan(r * vocab, vocab), options,
                                 static_cast<uint32_t>(r), static_cast<uint32_t>(positions[r])));
  }
  return tokens;
}

}  // namespace dtensor
