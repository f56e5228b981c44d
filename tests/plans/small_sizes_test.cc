// Fewer batch rows, positions, features or words than ranks, or none at all: models still train as
// on one rank.
#include <memory>
#include <set>
#include <string>

#include "dtensor/nn/containers.h"
#include "dtensor/nn/layers.h"
#include "dtensor/tests/plans/train_module.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kDim = 8;

TEST(SmallSizes, BatchesAndSequencesMayBeSmallerThanTheMeshAndEmpty) {
  for (const Dims& x : {Dims{0, 6, kDim}, Dims{1, 1, kDim}, Dims{2, 3, kDim}, Dims{4, 0, kDim}}) {
    for (const std::set<std::string>& recomputed : {std::set<std::string>{}, {"0"}, {"1"}}) {
      ExpectAsOnOneRank(
          {.make = [] { return TwoLinearsOfOneWeight(kDim); }, .x = x, .recomputed = recomputed},
          {{"dp=4", "{\"\", DataParallel(\"dp\")}"},
           {"fs=4", "{\"{0,1,}\", FullyShard(\"fs\")}"},
           {"tp=4", "{\"{0,2}\", Rowwise(\"tp\", out S(1))}\n{\"1\", SequenceParallel(\"tp\")}"},
           {"dp=2,fs=3", "{\"\", FullyShard(\"fs\")}\n{\"\", DataParallel(\"dp\")}"},
           {"fs=2,tp=4",
            "{\"{0,2}\", Colwise(\"tp\", out S(1))}\n{\"{0,}\", FullyShard(\"fs\")}"}});
    }
  }
}

TEST(SmallSizes, FeaturesAndWordsMayBeFewerThanRanks) {
  const auto narrow = [] {
    auto model = std::make_unique<Sequential>();
    model->Append(std::make_unique<EmbeddingLayer>(kWords, 2, 0.5));
    model->Append(
        std::make_unique<LinearLayer>(2, 3, 0.5, LinearLayer::Units(), LinearLayer::Bias::kAdded));
    model->Append(
        std::make_unique<LinearLayer>(3, 1, 0.5, LinearLayer::Units(), LinearLayer::Bias::kAdded));
    return model;
  };
  ExpectAsOnOneRank({.make = narrow, .x = {2, 3}},
                    {{"tp=4",
                      "{\"0\", VocabParallel(\"tp\", out S(1))}\n{\"1\", Colwise(\"tp\")}\n"
                      "{\"2\", Rowwise(\"tp\", out S(1))}"},
                     {"tp=8",
                      "{\"0\", Colwise(\"tp\")}\n{\"1\", Rowwise(\"tp\", out S(-1))}\n"
                      "{\"2\", VocabParallel(\"tp\")}"},
                     {"tp=16", "{\"0\", VocabParallel(\"tp\")}\n{\"1\", Colwise(\"tp\")}"},
                     {"fs=8", "{\"{0,1,2}\", FullyShard(\"fs\")}"},
                     {"fs=3,tp=4",
                      "{\"0\", VocabParallel(\"tp\")}\n{\"1\", Colwise(\"tp\")}\n"
                      "{\"2\", Rowwise(\"tp\")}\n{\"{0,1,2,}\", FullyShard(\"fs\")}"}});
}

}  // namespace
}  // namespace dtensor
