// The numbers that the cases' parameters and operands are, as formula.py makes them; and how far
// results are from those that were stored.
#ifndef DTENSOR_TESTS_HUGGING_FACE_FORMULA_H_
#define DTENSOR_TESTS_HUGGING_FACE_FORMULA_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/layout/digest.h"

namespace dtensor {

// n numbers in [-1, 1), exact in f32, by the name.
inline std::vector<double> Formula(absl::string_view name, int64_t n) {
  const uint64_t hash = Fnv1a(name);
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    uint64_t z = hash + static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    values.push_back(static_cast<double>((z ^ z >> 31) >> 40) / (1 << 23) - 1);
  }
  return values;
}

// The largest error, relative to the larger of the RMS of what was stored and `floor`.
inline double ErrorOf(const std::vector<double>& values, const std::vector<double>& stored,
                      double floor) {
  if (values.size() != stored.size()) return HUGE_VAL;
  double squares = 0, worst = 0;
  for (size_t i = 0; i < stored.size(); ++i) {
    squares += stored[i] * stored[i];
    const double error = std::fabs(values[i] - stored[i]);
    worst = error <= worst ? worst : error;  // NaN stays
  }
  return worst / std::max(floor, std::sqrt(squares / static_cast<double>(stored.size())));
}

}  // namespace dtensor

#endif  // DTENSOR_TESTS_HUGGING_FACE_FORMULA_H_
