// What our code takes cuDNN to promise: the same file runs over the fake and on a GPU.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dtensor/runtime/kernels/cuda/cudnn/attention_graphs.h"
#include "dtensor/runtime/kernels/cuda/cudnn/graph.h"
#include "dtensor/tools/cuda/fake/cudnn_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::kernels::cuda {
namespace {

using ::testing::Each;
using ::testing::FloatNear;

// Of descriptors alone: these held without a GPU, with the library of cuDNN 9.19.
TEST(CudnnDescriptors, WhatIsNotCompleteIsNotFinal) {
  cudnnBackendDescriptor_t tensor = nullptr;
  ASSERT_EQ(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &tensor),
            CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendFinalize(tensor), CUDNN_STATUS_BAD_PARAM);
  const int64_t dims[] = {1, 2, 3, 8}, strides[] = {48, 24, 8, 1}, id = 1, alignment = 16;
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  const auto set = [&](cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t of,
                       int64_t count, const void* values) {
    return cudnnBackendSetAttribute(tensor, name, of, count, values);
  };
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_INT64, 1, &id),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type), 0);
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims), 0);
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides), 0);
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id), 0);
  EXPECT_EQ(cudnnBackendFinalize(tensor), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment), 0);
  int64_t found = 0, read = 0;
  EXPECT_EQ(cudnnBackendGetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1,
                                     &found, &read),
            CUDNN_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cudnnBackendFinalize(tensor), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendFinalize(tensor), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(tensor), CUDNN_STATUS_SUCCESS);
}

class CudnnPromisesTest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "there is no GPU";
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetStream(handle_, stream_), CUDNN_STATUS_SUCCESS);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudnnDestroy(handle_), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  absl::StatusOr<GraphPlan> PlanOf(const AttentionKey& key) {
    Graph graph = key.backward ? AttentionBackwardGraph(key) : AttentionForwardGraph(key);
    return std::move(graph).MakePlan(handle_);
  }
  // With a workspace that holds NaN.
  absl::Status RunPlan(const GraphPlan& plan, TestRun& run, bool backward) {
    void* const workspace = run.Allocate(plan.workspace_bytes + 1);
    cudaMemsetAsync(workspace, 0xFF, plan.workspace_bytes, stream_);
    return plan.Run(handle_, run.Pointers(backward), workspace);
  }

  cudaStream_t stream_ = nullptr;
  cudnnHandle_t handle_ = nullptr;
};

// All weights of a row are alike, so o is v and lse the logarithm of how many keys it sees, besides
// the score that all have. The scale is read before the call returns.
TEST_F(CudnnPromisesTest, ForwardGivesOAndTheLogarithmOfTheSum) {
  const auto plan = PlanOf(TestKey(false));
  ASSERT_TRUE(plan.ok()) << plan.status();
  TestRun run(stream_);
  run.Fill(kIdQ, 0.5);
  run.Fill(kIdK, 0.5);
  run.Fill(kIdV, 3);
  ASSERT_TRUE(RunPlan(*plan, run, false).ok());
  run.scale = 1000;
  EXPECT_THAT(run.Values(kIdO), Each(FloatNear(3, 0.02f)));
  const std::vector<float> lse = run.Statistics();
  for (int64_t i = 0; i < kTestRows; ++i) {
    EXPECT_NEAR(lse[i], 1 + std::log(i + 1.0), 1e-4) << i;  // 0.25 * 16 * 0.25
  }
}

TEST_F(CudnnPromisesTest, BackwardHasTheSameBitsWhateverItsWorkspaceHolds) {
  const auto forward = PlanOf(TestKey(false)), backward = PlanOf(TestKey(true));
  ASSERT_TRUE(forward.ok() && backward.ok()) << forward.status() << backward.status();
  TestRun run(stream_);
  for (const int64_t id : {kIdQ, kIdK, kIdV}) run.Fill(id, 0.125f * id);
  run.Fill(kIdDout, 0.5);
  ASSERT_TRUE(RunPlan(*forward, run, false).ok());
  std::vector<std::vector<float>> first;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(RunPlan(*backward, run, true).ok());
    std::vector<std::vector<float>> now;
    for (const int64_t id : {kIdDq, kIdDk, kIdDv}) now.push_back(run.Values(id));
    if (i == 0) first = now;
    EXPECT_EQ(now, first);
  }
  // The last key is seen by the last row alone, with one weight of 64.
  EXPECT_NEAR(first[2].back(), 0.5 / kTestRows, 1e-3);
}

TEST_F(CudnnPromisesTest, WhatIsNotServedIsNotSupported) {
  AttentionKey key = TestKey(false);
  key.dim = 100;
  key.q = key.k = key.v = key.o = {6400, 100, 100};
  EXPECT_EQ(PlanOf(key).status().code(), absl::StatusCode::kUnimplemented);
  key = TestKey(true);
  key.q_heads = 2;
  key.q = key.o = key.dout = key.dq = {2 * kTestElements, kTestFeatures, 2 * kTestFeatures};
  EXPECT_TRUE(PlanOf(key).ok());
}

}  // namespace
}  // namespace dtensor::kernels::cuda
