// 10,000 tokens take no more memory than the first ones: in tensors, in what the Context remembers,
// in the heap, and in what the process holds of the machine's memory.
#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "dtensor/generation/generate.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/tensor_parallel.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

constexpr int64_t kVocab = 31, kWarmUp = 100;

// $DTENSOR_TOKENS, or 10,000.
int64_t Tokens() {
  const char* const text = std::getenv("DTENSOR_TOKENS");
  int64_t tokens = 10'000;
  if (text != nullptr && !absl::SimpleAtoi(text, &tokens)) tokens = 0;
  return std::max<int64_t>(tokens, 10 * kWarmUp);
}

TransformerConfig Llama() {
  TransformerConfig config;
  config.vocab = kVocab, config.dim = 12, config.layers = 2, config.heads = 3, config.kv_heads = 3;
  config.hidden = 16, config.tie_embeddings = true, config.init_stddev = 0.3;
  return config;
}

int64_t ResidentBytes() {
  // Exact, unlike /proc/self/statm of many cores.
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string word;
  while (rollup >> word && word != "Rss:") {
  }
  int64_t kib = 0;
  EXPECT_TRUE(rollup >> kib);
  return kib << 10;
}

// Of this rank, but for the heap and the process's memory, which its ranks share.
struct Usage {
  int64_t live_bytes = 0, peak_bytes = 0, heap_bytes = 0, resident_bytes = 0;
  Context::CacheSizes caches;
};

Usage UsageOf(Context& context) {
  Usage usage;
  usage.live_bytes = context.device().memory().live_bytes;
  usage.peak_bytes = context.device().memory().peak_bytes;
  const struct mallinfo2 heap = mallinfo2();
  usage.heap_bytes = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  usage.resident_bytes = ResidentBytes();
  usage.caches = context.cache_sizes();
  return usage;
}

void ExpectNoMore(const Usage& early, const Usage& late, int64_t cache_bytes, int64_t texts) {
  EXPECT_EQ(late.live_bytes, early.live_bytes);
  EXPECT_EQ(late.peak_bytes, early.peak_bytes);
  EXPECT_EQ(late.caches.decisions, early.caches.decisions);
  EXPECT_EQ(late.caches.plans, early.caches.plans);
  EXPECT_EQ(late.caches.options, early.caches.options);
  EXPECT_EQ(late.caches.specs, early.caches.specs);
  // Of a text each token takes 8 bytes, or 16 as its vector doubles.
  EXPECT_LE(late.heap_bytes - early.heap_bytes, texts * 20);
  // The cache's pages may come when they are written.
  EXPECT_LE(late.resident_bytes - early.resident_bytes, cache_bytes + (int64_t{1} << 20));
}

absl::Status Write(Context& context, const DeviceMesh& axes, const std::string& sequence_axis,
                   int64_t tokens) {
  Transformer model(Llama());
  TensorParallelOptions options;
  options.seed = 3;
  options.sequence_parallel = false;
  options.allow_uneven = true;
  options.context_axis = "none";  // it splits the cache's sequence
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, ApplyTensorParallel(model, context, axes, options));
  DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(model, {.capacity = tokens + 3,
                                                                .sequence_axis = sequence_axis}));
  int64_t written = 0;
  Usage early, late;
  GenerateOptions generate{.tokens = tokens, .sampling = {.temperature = 1, .top_p = 0.9}};
  generate.on_token = [&](int64_t, int64_t) {
    ++written;
    if (written == kWarmUp) early = UsageOf(context);
    if (written == tokens) late = UsageOf(context);
    return true;
  };
  DT_RETURN_IF_ERROR(Generate(*cache, context, mesh, {{1, 2, 3}}, generate).status());
  EXPECT_EQ(written, tokens);
  const int64_t ranks = context.world_size();
  ExpectNoMore(early, late, ranks * cache->local_bytes(), ranks * tokens);
  if (context.rank() != 0) return absl::OkStatus();
  std::printf(
      "%s: %ld tokens; from token %ld on %+ld B of tensors, %+ld B of heap, %+ld B "
      "resident; %zu decisions, %zu specs\n",
      axes.ToString().c_str(), static_cast<long>(tokens), static_cast<long>(kWarmUp),
      static_cast<long>(late.live_bytes - early.live_bytes),
      static_cast<long>(late.heap_bytes - early.heap_bytes),
      static_cast<long>(late.resident_bytes - early.resident_bytes), late.caches.decisions,
      late.caches.specs);
  return absl::OkStatus();
}

TEST(LongText, TakesNoMoreMemoryThanAShortOne) {
  for (const std::string text : {"tp=1", "tp=2", "cp=2"}) {
    SCOPED_TRACE(text);
    const int64_t tokens = text == "tp=1" ? Tokens() : Tokens() / 5;  // ranks wait for each other
    const absl::StatusOr<DeviceMesh> mesh = DeviceMesh::Parse(text);
    DT_ASSERT_OK(mesh);
    DT_EXPECT_OK(RunRanks(mesh->size(), [&](Context& context) {
      return Write(context, *mesh, text == "cp=2" ? "cp" : "", tokens);
    }));
  }
}

}  // namespace
}  // namespace dtensor
