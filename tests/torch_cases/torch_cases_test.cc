// Each operator's values and gradients equal PyTorch's, in f64: on one rank, and on four ranks from
// operands in other layouts. make_cases.py generated the expected values.
#include "dtensor/tests/torch_cases/torch_cases.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "dtensor/layout/placement.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/testing/all_ops.h"
#include "dtensor/tests/torch_cases/stored_case.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

absl::StatusOr<SafetensorsReader> OpenCases() {
  return SafetensorsReader::Open("tests/torch_cases/cases.safetensors");
}

// A tensor as it is, and its first and last dimensions split over one axis or both.
constexpr int kWays = 5;
absl::StatusOr<Layout> SplitBy(int way, const DeviceMesh& mesh, const Dims& shape) {
  const int last = std::max(0, static_cast<int>(shape.size()) - 1);
  const Placements ways[kWays] = {{Replicate(), Replicate()},
                                  {Shard(0), Replicate()},
                                  {Replicate(), Shard(last)},
                                  {Shard(0), Shard(last)},
                                  {Shard(0), Shard(0)}};
  return Layout::FromPlacements(mesh, ways[shape.empty() ? 0 : way], shape);
}

// Tensor i is split by way `first + i * step`.
absl::StatusOr<std::vector<Layout>> SplitAll(int first, int step, const DeviceMesh& mesh,
                                             absl::Span<const StoredTensor> tensors) {
  std::vector<Layout> layouts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int way = (first + static_cast<int>(i) * step) % kWays;
    DT_ASSIGN_OR_RETURN(layouts.emplace_back(), SplitBy(way, mesh, tensors[i].shape));
  }
  return layouts;
}

std::string Text(absl::Span<const Layout> layouts) {
  return absl::StrJoin(layouts, ", ",
                       [](std::string* out, const Layout& l) { out->append(l.ToString()); });
}

absl::Status ExpectNoDifferences(Context& context, const TorchCall& call, const StoredCase& stored,
                                 const CaseLayouts& layouts) {
  DT_ASSIGN_OR_RETURN(const auto differences, Differences(context, call, stored, layouts));
  EXPECT_THAT(differences, IsEmpty()) << "operands " << Text(layouts.operands);
  return absl::OkStatus();
}

TEST(TorchCasesTest, OneRankComputesWhatPyTorchDoes) {
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, OpenCases());
  for (const TorchCases& cases : AllTorchCases()) {
    for (const std::string& name : cases.names) {
      SCOPED_TRACE(name);
      DT_ASSERT_OK_AND_ASSIGN(const StoredCase stored, ReadStoredCase(file, name));
      DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=1,b=1"));
        CaseLayouts layouts;
        DT_ASSIGN_OR_RETURN(layouts.operands, SplitAll(0, 0, mesh, stored.operands));
        DT_ASSIGN_OR_RETURN(layouts.results, SplitAll(0, 0, mesh, stored.results));
        return ExpectNoDifferences(context, cases.call, stored, layouts);
      })) << name;
    }
  }
}

TEST(TorchCasesTest, FourRanksComputeWhatPyTorchDoes) {
  DT_ASSERT_OK_AND_ASSIGN(const DeviceMesh mesh, DeviceMesh::Parse("a=2,b=2"));
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, OpenCases());
  for (const TorchCases& cases : AllTorchCases()) {
    for (const std::string& name : cases.names) {
      DT_ASSERT_OK_AND_ASSIGN(const StoredCase stored, ReadStoredCase(file, name));
      DT_EXPECT_OK(RunRanks(4, [&](Context& context) -> absl::Status {
        for (int run = 0; run < 3 * kWays; ++run) {
          SCOPED_TRACE(name);
          CaseLayouts layouts;
          DT_ASSIGN_OR_RETURN(layouts.operands, SplitAll(run, run / kWays, mesh, stored.operands));
          DT_ASSIGN_OR_RETURN(layouts.results, SplitAll(run + 1, 1, mesh, stored.results));
          DT_RETURN_IF_ERROR(ExpectNoDifferences(context, cases.call, stored, layouts));
        }
        return absl::OkStatus();
      })) << name;
    }
  }
}

TEST(TorchCasesTest, EveryOperatorHasACase) {
  const std::map<std::string, std::string> kWithout = {
      {"Dropout", "its random numbers are the library's own"}};
  std::set<const OpDef*> covered;
  for (const TorchCases& cases : AllTorchCases()) covered.insert(cases.op);
  for (const OpDef* op : internal::AllOps()) {
    EXPECT_NE(covered.contains(op), kWithout.contains(op->name))
        << op->name << ": give it a case in make_cases.py and torch_cases.cc, or a reason here";
  }
}

TEST(TorchCasesTest, EveryStoredCaseIsCalledOnce) {
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, OpenCases());
  EXPECT_TRUE(file.metadata().contains("torch"));
  std::set<std::string> stored;
  for (const auto& [name, info] : file.tensors()) stored.insert(name.substr(0, name.find('/')));
  std::multiset<std::string> called;
  for (const TorchCases& cases : AllTorchCases()) {
    called.insert(cases.names.begin(), cases.names.end());
  }
  EXPECT_THAT(called, UnorderedElementsAreArray(stored));
}

// The two forms of gelu are less than 1e-3 apart.
TEST(TorchCasesTest, AnotherFunctionIsFoundOut) {
  const TorchCall call =
      [](absl::Span<const TensorOr> x) -> absl::StatusOr<std::vector<DistributedTensor>> {
    DT_ASSIGN_OR_RETURN(const DistributedTensor y, Gelu(x[0], GeluForm::kTanh));
    return std::vector<DistributedTensor>{y};
  };
  DT_ASSERT_OK_AND_ASSIGN(const SafetensorsReader file, OpenCases());
  DT_ASSERT_OK_AND_ASSIGN(const StoredCase stored, ReadStoredCase(file, "gelu_erf"));
  DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("a=1"));
    const Layout whole = Layout::Replicated(mesh, 2);
    DT_ASSIGN_OR_RETURN(const auto differences,
                        Differences(context, call, stored, {{whole}, {whole}}));
    EXPECT_EQ(differences.size(), 2);  // its result and its gradient
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
