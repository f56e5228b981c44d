// What the fake cuDNN does not let pass: each case is a program's mistake, planted.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <utility>
#include <vector>

#include "dtensor/tools/cuda/fake/cudnn_testing.h"
#include "gtest/gtest.h"

namespace dtensor::kernels::cuda {
namespace {

constexpr int kRefused = 67;  // fake.h

using Pointers = std::vector<std::pair<int64_t, void*>>;

// One forward run, with what is changed just before it is launched.
template <typename Change>
void Launch(const Change& change) {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudnnHandle_t handle = nullptr;
  cudnnCreate(&handle);
  cudnnSetStream(handle, stream);
  TestRun run(stream);
  for (const int64_t id : {kIdQ, kIdK, kIdV}) run.Fill(id, 1);
  const auto plan = AttentionForwardGraph(TestKey(false)).MakePlan(handle);
  void* workspace = run.Allocate(plan->workspace_bytes);
  Pointers pointers = run.Pointers(false);
  change(pointers, workspace, handle);
  (void)plan->Run(handle, pointers, workspace);
  cudaStreamSynchronize(stream);
}

void* Shifted(void* data, int64_t bytes) { return static_cast<char*>(data) + bytes; }

struct Mistake {
  const char* name;
  void (*program)();
  const char* refusal;
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

const Mistake kMistakes[] = {
    {"ATensorHasNoAddress",
     [] { Launch([](Pointers& p, void*&, cudnnHandle_t&) { p.erase(p.begin()); }); },
     "a tensor in memory has no address"},
    {"AnIdThatTheGraphLacks",
     [] { Launch([](Pointers& p, void*&, cudnnHandle_t&) { p.emplace_back(77, p[0].second); }); },
     "an id that the graph lacks"},
    {"AnAddressIsNotAligned",
     [] {
       Launch([](Pointers& p, void*&, cudnnHandle_t&) { p[0].second = Shifted(p[0].second, 2); });
     },
     "less aligned than its tensor says"},
    {"AnOperandIsTheHosts",
     [] {
       static char memory[4096];
       Launch([](Pointers& p, void*&, cudnnHandle_t&) { p[0].second = memory; });
     },
     "cudnnBackendExecute: it is not memory of"},
    {"AnOperandEndsTooEarly",
     [] {
       Launch(
           [](Pointers& p, void*&, cudnnHandle_t&) { p[0].second = Shifted(p[0].second, 3072); });
     },
     "cudnnBackendExecute"},
    {"TheWorkspaceIsTooSmall",
     [] {
       Launch([](Pointers&, void*& workspace, cudnnHandle_t&) {
         workspace = Shifted(workspace, 512);
       });
     },
     "cudnnBackendExecute"},
    {"APlanOfAnotherHandle",
     [] { Launch([](Pointers&, void*&, cudnnHandle_t& handle) { cudnnCreate(&handle); }); },
     "are not of one GPU"},
    {"TheThreadHasAnotherGpu",
     [] { Launch([](Pointers&, void*&, cudnnHandle_t&) { cudaSetDevice(1); }); },
     "are not of one GPU"},
    {"ADescriptorIsUsedAfterItsEnd",
     [] {
       cudnnBackendDescriptor_t tensor = nullptr;
       cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor);
       cudnnBackendDestroyDescriptor(tensor);
       cudnnBackendFinalize(tensor);
     },
     "no such descriptor"},
    {"AnOperandIsNoTensor",
     [] {
       cudnnBackendDescriptor_t matmul = nullptr, operation = nullptr;
       const cudnnDataType_t type = CUDNN_DATA_FLOAT;
       cudnnBackendCreateDescriptor(CUDNN_BACKEND_MATMUL_DESCRIPTOR, &matmul);
       cudnnBackendSetAttribute(matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1,
                                &type);
       cudnnBackendFinalize(matmul);
       cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &operation);
       cudnnBackendSetAttribute(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &matmul);
       cudnnBackendFinalize(operation);
     },
     "an operand is no tensor"},
    {"AnOperandIsNotFinal",
     [] {
       cudnnBackendDescriptor_t tensor = nullptr, operation = nullptr;
       cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor);
       cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &operation);
       cudnnBackendSetAttribute(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
                                CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor);
       cudnnBackendFinalize(operation);
     },
     "is not final"},
    {"AKindThatIsNotFaked",
     [] {
       cudnnBackendDescriptor_t descriptor = nullptr;
       cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, &descriptor);
     },
     "a kind that is not faked"},
};

class CudnnRefusalsTest : public testing::TestWithParam<Mistake> {
 protected:
  // A stream is a thread: a process that is forked would have none.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(CudnnRefusalsTest, IsRefused) {
  const auto program = [] {
    GetParam().program();
    std::_Exit(0);
  };
  EXPECT_EXIT(program(), testing::ExitedWithCode(kRefused), GetParam().refusal);
}

INSTANTIATE_TEST_SUITE_P(All, CudnnRefusalsTest, testing::ValuesIn(kMistakes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dtensor::kernels::cuda
