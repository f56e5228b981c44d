// What the tests of Hugging Face's folders share: a folder of a test's own, models out of it and
// into it, and their values.
#ifndef DTENSOR_TESTS_HUGGING_FACE_MODEL_FOLDER_H_
#define DTENSOR_TESTS_HUGGING_FACE_MODEL_FOLDER_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/hugging_face/load.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/gather_values.h"
#include "gtest/gtest.h"

namespace dtensor {

class HuggingFaceFolder : public ::testing::Test {
 protected:
  HuggingFaceFolder() {
    static int count = 0;
    folder_ = absl::StrCat(testing::TempDir(), "/folder", getpid(), "_", count++);
    std::filesystem::create_directories(folder_);
  }
  ~HuggingFaceFolder() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

inline absl::StatusOr<std::map<std::string, std::vector<float>>> ValuesOf(Module& model) {
  std::map<std::string, std::vector<float>> values;
  DT_ASSIGN_OR_RETURN(const StateDict state, StateDictOf(model));
  for (const auto& [name, tensor] : state) {
    DT_ASSIGN_OR_RETURN(values[name], ToGlobal<float>(tensor));
  }
  return values;
}

inline absl::Status Place(Transformer& model, Context& context, absl::string_view mesh,
                          uint64_t seed) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh parsed, DeviceMesh::Parse(mesh));
  TensorParallelOptions options;
  options.seed = seed;
  options.allow_uneven = true;
  return ApplyTensorParallel(model, context, parsed, options).status();
}

// Saves a model with random weights and returns them.
inline std::map<std::string, std::vector<float>> Save(const TransformerConfig& config,
                                                      const std::string& folder,
                                                      absl::string_view mesh,
                                                      const SaveHuggingFaceOptions& options) {
  std::map<std::string, std::vector<float>> values;
  const int ranks = DeviceMesh::Parse(mesh)->size();
  DT_EXPECT_OK(RunRanks(ranks, [&](Context& context) -> absl::Status {
    Transformer model(config);
    DT_RETURN_IF_ERROR(Place(model, context, mesh, 7));
    DT_RETURN_IF_ERROR(SaveHuggingFace(model, folder, options));
    DT_ASSIGN_OR_RETURN(auto mine, ValuesOf(model));
    if (context.rank() == 0) values = std::move(mine);
    return absl::OkStatus();
  }));
  return values;
}

// What loading gives on two ranks, which must be the same on both.
inline absl::Status LoadStatus(const TransformerConfig& config, const std::string& folder,
                               const LoadHuggingFaceOptions& options = {}) {
  std::vector<absl::Status> statuses(2);
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) {
    Transformer model(config);
    DT_RETURN_IF_ERROR(Place(model, context, "tp=2", 0));
    statuses[context.rank()] = LoadHuggingFace(model, folder, options).status();
    return GatherValues(context, context.rank()).status();  // the world still works
  }));
  EXPECT_EQ(statuses[0], statuses[1]);
  return statuses[0];
}

}  // namespace dtensor

#endif  // DTENSOR_TESTS_HUGGING_FACE_MODEL_FOLDER_H_
