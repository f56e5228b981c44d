// The numbers that the cases' parameters and operands are, as formula.py makes them.
#ifndef DTENSOR_TESTS_HUGGING_FACE_FORMULA_H_
#define DTENSOR_TESTS_HUGGING_FACE_FORMULA_H_

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

}  // namespace dtensor

#endif  // DTENSOR_TESTS_HUGGING_FACE_FORMULA_H_
