// A case as make_cases.py stored it, and what the library makes of it.
#ifndef DTENSOR_TESTS_TORCH_CASES_STORED_CASE_H_
#define DTENSOR_TESTS_TORCH_CASES_STORED_CASE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tests/torch_cases/torch_cases.h"

namespace dtensor {

struct StoredTensor {
  Dims shape;
  DType dtype = DType::kF64;
  std::vector<double> values;  // row-major
};

// Errors: kNotFound where the file has no tensor of that name; of the reader.
absl::StatusOr<StoredTensor> ReadStoredTensor(const SafetensorsReader& file,
                                              const std::string& name);
// "name0", "name1", ... up to the first that is not there: one at least.
absl::StatusOr<std::vector<StoredTensor>> ReadStoredTensors(const SafetensorsReader& file,
                                                            const std::string& name);

struct StoredCase {
  std::vector<StoredTensor> operands, results;
  // By the result or operand, where there is one.
  std::map<int, StoredTensor> result_gradients, gradients;
};

// Errors: kNotFound where the file has no operand or no result of that name; of the reader.
absl::StatusOr<StoredCase> ReadStoredCase(const SafetensorsReader& file, const std::string& name);

struct CaseLayouts {
  std::vector<Layout> operands;
  std::vector<Layout> results;  // in which the results' gradients come
};

// Calls it, and goes backward. Says each result and gradient that is not what was stored: in shape,
// in type, or by more than 1e-12 of the tensor's RMS in an element. Infinities and NaN must stand
// where they are stored. Collective. Errors: the library's.
absl::StatusOr<std::vector<std::string>> Differences(Context& context, const TorchCall& call,
                                                     const StoredCase& stored,
                                                     const CaseLayouts& layouts);

}  // namespace dtensor

#endif  // DTENSOR_TESTS_TORCH_CASES_STORED_CASE_H_
