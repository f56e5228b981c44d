// Training on every mesh is training on one rank: losses, gradient norms, gradients; and the
// prediction holds.
#include "dtensor/examples/training/run.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/folder.h"
#include "dtensor/hugging_face/save.h"
#include "dtensor/nn/model_config.h"
#include "dtensor/ops/ops.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor::training {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string WriteText(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 4000; ++i) {
    text += "the " + std::to_string(i * i % 97) + " and " + std::to_string(i % 13) + ". ";
  }
  return text;
}

TrainConfig Small(absl::string_view mesh, absl::string_view plan) {
  TrainConfig config;
  config.mesh = *DeviceMesh::Parse(mesh);
  config.plan = std::string(plan);
  config.model = {.vocab = 256, .dim = 32, .layers = 2, .heads = 8, .kv_heads = 4, .hidden = 64};
  config.batch = 4;
  config.sequence = 32;
  config.steps = 10;
  config.warmup = 5;
  return config;
}

RunResult RunOn(const TrainConfig& config, const Corpus& corpus) {
  TrainOptions options;
  options.keep_tensors = true;
  options.eval_batches = 2;
  auto result = Train(config, corpus, options);
  EXPECT_THAT(result.status(), IsOk()) << config.mesh.ToString();
  return result.ok() ? *std::move(result) : RunResult();
}

// The prediction is the same program: calls, messages, bytes and memory to the last byte.
void ExpectPredicted(const RunResult& run, const std::string& what) {
  EXPECT_EQ(run.predicted.table.size(), run.counted.table.size()) << what;
  for (const auto& [key, counted] : run.counted.table) {
    const auto predicted = run.predicted.table.find(key);
    ASSERT_NE(predicted, run.predicted.table.end()) << what << " " << key.first;
    const auto numbers = [](const CommunicatorTraffic& traffic) {
      return std::vector<int64_t>{traffic.calls, traffic.messages, traffic.bytes};
    };
    EXPECT_EQ(numbers(predicted->second), numbers(counted))
        << what << " " << key.first << " " << ToString(key.second);
  }
  EXPECT_EQ(run.predicted.peak_bytes, run.counted.peak_bytes) << what;
}

TEST(Train, EveryMeshFollowsOneRank) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  const RunResult reference = RunOn(Small("tp=1", "tp+sp"), corpus);
  EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.5);
  struct Case {
    const char *mesh, *plan;
    bool uneven = false;
    const char* pattern = "zigzag";
  };
  for (const Case& c : {Case{"dp=4", "dp"},
                        Case{"tp=4", "tp"},
                        Case{"tp=4", "tp+sp"},
                        Case{"dp=2,tp=2", "tp"},
                        Case{"dp=2,tp=2", "tp+sp"},
                        Case{"dp=2,tp=2", "none"},
                        Case{"tp=3", "tp", true},
                        Case{"tp=3", "tp+sp", true},
                        Case{"cp=2", "none"},
                        Case{"cp=3", "none", true},
                        Case{"dp=2,cp=2", "none"},
                        Case{"cp=2,tp=2", "tp"},
                        Case{"cp=2,tp=2", "tp+sp"},
                        Case{"tp=2,cp=2", "tp+sp"},
                        Case{"cp=3,tp=2", "tp+sp", true},
                        Case{"dp=2,cp=2,tp=2", "tp+sp"},
                        Case{"cp=2,tp=2", "tp+sp", false, "ring"},
                        Case{"cp=2,tp=2", "tp+sp", false, "striped"},
                        Case{"cp=2,tp=2", "tp+sp", false, "ulysses"},
                        Case{"a=2,b=2;cp=a*b", "none", false, "double_ring"},
                        Case{"a=2,b=2,tp=2;cp=a*b", "tp+sp", false, "ulysses+zigzag"},
                        Case{"dp=4", "zero1"},
                        Case{"dp=2,tp=2", "zero2+tp"},
                        Case{"dp=4", "fsdp"},
                        Case{"dp=2,tp=2", "fsdp+tp+sp"},
                        Case{"dp=2,cp=2,tp=2", "fsdp+cp+tp+sp"},
                        Case{"a=2,b=2;dp=a*b", "hsdp"},
                        Case{"a=2,b=2,tp=2;dp=a*b", "hsdp+tp+sp"},
                        Case{"dp=2,tp=2", ""}}) {
    SCOPED_TRACE(c.pattern);
    TrainConfig config = Small(c.mesh, c.plan);
    config.cp_pattern = c.pattern;
    config.allow_uneven = c.uneven;
    const RunResult run = RunOn(config, corpus);
    const Difference difference = Compare(run, reference);
    EXPECT_LE(difference.loss, 1e-5) << c.mesh << " " << c.plan;
    EXPECT_LE(difference.grad_norm, 1e-5) << c.mesh << " " << c.plan;
    EXPECT_LE(difference.gradient, 1e-5)
        << c.mesh << " " << c.plan << " " << difference.worst_gradient;
    EXPECT_NEAR(run.heldout_loss, reference.heldout_loss, 1e-5 * reference.heldout_loss) << c.mesh;
    ExpectPredicted(run, std::string(c.mesh) + " " + c.plan);
    EXPECT_EQ(run.initial_weights.size(), reference.initial_weights.size());
    for (size_t i = 0; i < run.initial_weights.size(); ++i) {
      EXPECT_EQ(run.initial_weights[i].values, reference.initial_weights[i].values);
    }
  }
}

// A rounding to bf16 is off by 2^-8 at most. Ranks round other terms than one rank does, so their
// runs differ by roundings, but by no more than a few.
TEST(Train, InBf16EveryMeshFollowsOneRankWithinItsRoundings) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  const auto run_on = [&](absl::string_view mesh, absl::string_view plan, DType dtype) {
    TrainConfig config = Small(mesh, plan);
    config.dtype = dtype;
    return RunOn(config, corpus);
  };
  constexpr double kRounding = 0x1p-8;
  const RunResult reference = run_on("tp=1", "tp+sp", DType::kBF16);
  EXPECT_LT(reference.losses.back(), reference.losses.front() - 0.5);
  for (const auto& [mesh, plan] : {std::pair("dp=2,tp=2", "tp+sp"),
                                   {"dp=2,tp=2", "tp"},
                                   {"tp=4", "tp+sp"},
                                   {"dp=4", "none"},
                                   {"cp=2,tp=2", "tp+sp"}}) {
    const RunResult run = run_on(mesh, plan, DType::kBF16);
    const Difference difference = Compare(run, reference);
    EXPECT_LE(difference.loss, kRounding / 4) << mesh << " " << plan;
    EXPECT_LE(difference.grad_norm, kRounding) << mesh << " " << plan;
    EXPECT_LE(difference.gradient, 8 * kRounding) << difference.worst_gradient;
    EXPECT_GT(difference.gradient, 0) << "not bf16 after all?";
    EXPECT_LT(run.losses.back(), run.losses.front() - 0.5) << mesh << " " << plan;
    ExpectPredicted(run, std::string(mesh) + " " + plan);
  }
  // And bf16 learns what f32 learns.
  const RunResult f32 = run_on("tp=1", "tp+sp", DType::kF32);
  EXPECT_NEAR(reference.heldout_loss, f32.heldout_loss, 0.01 * f32.heldout_loss);
}

TEST(Train, RefusesHeadsThatDoNotSplit) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  EXPECT_THAT(Train(Small("tp=3", "tp"), corpus, {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("allow uneven")));
}

TEST(Train, RefusesNumbersThatCannotBe) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  const auto refuses = [&](const std::function<void(TrainConfig&)>& change,
                           const std::string& words) {
    TrainConfig config = Small("dp=2,tp=2", "tp");
    change(config);
    EXPECT_THAT(Train(config, corpus, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  };
  refuses([](TrainConfig& c) { c.lr = std::nan(""); }, "--lr: nan");
  refuses([](TrainConfig& c) { c.lr = -1; }, "--lr: -1");
  refuses([](TrainConfig& c) { c.batch = -1; }, "--batch: -1 is out of range");
  refuses([](TrainConfig& c) { c.sequence = -5; }, "--seq: -5 is out of range");
  refuses([](TrainConfig& c) { c.batch = int64_t{1} << 62; }, "--batch: 4611686018427387904");
  refuses([](TrainConfig& c) { c.batch = 1 << 30; }, "MiB are free");
  refuses([](TrainConfig& c) { c.model.layers = 0; }, "--layers: 0");
  refuses([](TrainConfig& c) { c.model.dim = 1 << 16, c.model.layers = 10'000; }, "MiB are free");
  refuses([](TrainConfig& c) { c.warmup = -1; }, "--warmup: -1");
  refuses([](TrainConfig& c) { c.mesh = *DeviceMesh::Parse("dp=2000"); }, "1024 or fewer");
  refuses([](TrainConfig& c) { c.mesh = *DeviceMesh::Parse("dp=3"); },
          "--mesh: the 3 ranks of dp do not divide the 4 sequences of --batch; take another mesh, "
          "a --batch "
          "that is a multiple of 3, or --allow-uneven");
  refuses([](TrainConfig& c) { c.mesh = *DeviceMesh::Parse("a=2,b=3;dp=a*b"); }, "6 ranks of dp");
}

// With a rate like this the weights overflow in the first step.
TEST(Train, StopsWhenItDiverges) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  TrainConfig config = Small("dp=2,tp=2", "tp+sp");
  config.lr = 1e38;
  const RunResult run = RunOn(config, corpus);
  EXPECT_TRUE(run.diverged);
  EXPECT_LT(run.losses.size(), 10);
  EXPECT_FALSE(std::isfinite(run.losses.back()));
  EXPECT_FALSE(RunOn(Small("tp=1", "tp"), corpus).diverged);
}

// With dropout, which Hugging Face's GPT-2 trains with.
TrainConfig SmallGpt2() {
  const std::string config = R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 32,
    "n_embd": 16, "n_layer": 2, "n_head": 2})";
  const std::string folder = ::testing::TempDir() + "/gpt2";
  EXPECT_THAT(RunRanks(1,
                       [&](Context& context) -> absl::Status {
                         DT_ASSIGN_OR_RETURN(const auto model, ModelFromJson(config));
                         DT_RETURN_IF_ERROR(model->Materialize(context, DeviceMesh(), 1));
                         return SaveHuggingFace(*model, folder, {.config = config});
                       }),
              IsOk());
  TrainConfig small = Small("tp=2", "none");
  small.pretrained = PretrainedModel{config, folder};
  small.batch = 2;
  return small;
}

TEST(Train, IsTheSameWhereItIsEvaluatedInBetween) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  TrainConfig config = SmallGpt2();
  config.steps = 27;
  TrainOptions options;
  options.eval_batches = 2;
  DT_ASSERT_OK_AND_ASSIGN(const RunResult alone, Train(config, corpus, options));
  options.stop_below = 0;
  DT_ASSERT_OK_AND_ASSIGN(const RunResult evaluated, Train(config, corpus, options));
  EXPECT_EQ(evaluated.losses, alone.losses);
  EXPECT_EQ(evaluated.heldout_loss, alone.heldout_loss);
}

TEST(Train, IsTheSameWhereItsFirstGradientsAreKept) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  TrainConfig config = SmallGpt2();
  config.steps = 2;
  TrainOptions options;
  DT_ASSERT_OK_AND_ASSIGN(const RunResult alone, Train(config, corpus, options));
  options.keep_tensors = true;
  DT_ASSERT_OK_AND_ASSIGN(const RunResult kept, Train(config, corpus, options));
  EXPECT_EQ(kept.losses, alone.losses);
}

TEST(Trainer, EvaluatesWithoutDropout) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  TrainConfig config = SmallGpt2();
  config.seed = 5;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(context, config));
    DT_RETURN_IF_ERROR(trainer->Begin());
    EXPECT_EQ(context.random().seed, 5) << "dropout's masks are those of --seed";
    const std::vector<int32_t> tokens = corpus.HeldOutBatch(config.batch, 0);
    DT_ASSIGN_OR_RETURN(const DistributedTensor first, trainer->Loss(tokens));
    DT_ASSIGN_OR_RETURN(const DistributedTensor again, trainer->Loss(tokens));
    EXPECT_EQ(Item(first).value(), Item(again).value());
    EXPECT_EQ(context.random().drawn, 0);
    EXPECT_TRUE(trainer->model().training());
    return absl::OkStatus();
  }));
}

// Neither is a run written over another, nor taken for it when it is resumed.
TEST(Train, DoesNotBeginWhereAnotherRunWasSaved) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  TrainConfig config = Small("tp=2", "tp");
  config.steps = 2;
  TrainOptions options;
  options.save = ::testing::TempDir() + "/another_run";
  options.save_every = 2;
  DT_EXPECT_OK(Train(config, corpus, options));
  config.steps = 4;
  int steps = 0;
  options.progress = [&](int64_t, double) { ++steps; };
  EXPECT_THAT(
      Train(config, corpus, options),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("--save: "), HasSubstr("step-00000002"), HasSubstr("--resume"))));
  EXPECT_EQ(steps, 0);
  options.resume = true;
  DT_EXPECT_OK(Train(config, corpus, options));
  EXPECT_EQ(steps, 2);
}

TEST(Train, IsResumedWithWhatItsBatchesDependOn) {
  const std::string path = WriteText("text", Text());
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(path, 32));
  TrainConfig config = Small("tp=2", "tp");
  config.steps = 1;
  TrainOptions options;
  options.save = ::testing::TempDir() + "/depends";
  DT_EXPECT_OK(Train(config, corpus, options));
  options.resume = true;
  config.steps = 2;
  const auto refused = [&](const TrainConfig& other, const Corpus& text, const std::string& flag) {
    EXPECT_THAT(Train(other, text, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(flag + ": the run in")));
  };
  TrainConfig other = config;
  other.seed += 1;
  refused(other, corpus, "--seed");
  other = config;
  other.batch *= 2;
  refused(other, corpus, "--batch");
  other = config;
  other.sequence = 16;
  DT_ASSERT_OK_AND_ASSIGN(const Corpus shorter, Corpus::Load(path, 16));
  refused(other, shorter, "--seq");
  DT_ASSERT_OK_AND_ASSIGN(const Corpus another,
                          Corpus::Load(WriteText("another", Text() + "x"), 32));
  refused(config, another, "--text");
  DT_EXPECT_OK(Train(config, corpus, options));
}

// What was trained since the last checkpoint is not lost.
TEST(Train, SavesItsLastStep) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  TrainConfig config = Small("tp=2", "tp");
  TrainOptions options;
  options.save = ::testing::TempDir() + "/last_step";
  options.save_every = 2;
  options.keep_last = 0;
  const auto saved = [&](int64_t steps) {
    config.steps = steps;
    DT_EXPECT_OK(Train(config, corpus, options));
    options.resume = true;
    return FindCheckpoint(options.save).value();
  };
  EXPECT_THAT(saved(3), testing::EndsWith("step-00000003"));
  EXPECT_THAT(saved(3), testing::EndsWith("step-00000003"));  // nothing was left to do
  EXPECT_THAT(saved(4), testing::EndsWith("step-00000004"));
}

// The same bits, for less memory.
TEST(Train, BucketsOfAnySizeGiveTheSameBits) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  for (const char* plan : {"dp+tp+sp", "zero1+tp+sp"}) {
    TrainConfig config = Small("dp=2,tp=2", plan);
    config.bucket_bytes = 0;
    const RunResult at_end = RunOn(config, corpus);
    for (const int64_t bytes : {1, 5000, 1 << 20}) {
      config.bucket_bytes = bytes;
      const RunResult run = RunOn(config, corpus);
      EXPECT_EQ(run.losses, at_end.losses) << plan << " " << bytes;
      EXPECT_EQ(run.grad_norms, at_end.grad_norms) << plan << " " << bytes;
      ExpectPredicted(run, plan);
    }
  }
}

TEST(Train, RecomputesTheModulesThatItIsTold) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  for (const auto& [mesh, plan] :
       {std::pair("dp=2,tp=2", "dp+tp+sp"), {"dp=2,tp=2", "fsdp+tp+sp"}}) {
    TrainConfig config = Small(mesh, plan);
    const RunResult all = RunOn(config, corpus);
    config.recompute = {"model.layers.*"};
    const RunResult recomputed = RunOn(config, corpus);
    EXPECT_EQ(recomputed.losses, all.losses) << plan;
    EXPECT_EQ(recomputed.grad_norms, all.grad_norms) << plan;
    ExpectPredicted(recomputed, plan);
    EXPECT_LT(recomputed.counted.peak_bytes[0], all.counted.peak_bytes[0]) << plan;
  }
  TrainConfig config = Small("dp=2", "dp");
  config.recompute = {"model.layer.*"};
  EXPECT_THAT(
      Train(config, corpus, {}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("recompute \"model.layer.*\": matches no module; the nearest is")));
}

TEST(MakePlan, RefusesUnknownNames) {
  EXPECT_THAT(MakePlan(Small("tp=2", "xp")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean ")));
  EXPECT_THAT(MakePlan(Small("xp=2", "none")).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'xp'")));
  TrainConfig config = Small("cp=2", "none");
  config.cp_pattern = "spiral";
  EXPECT_THAT(MakePlan(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"spiral\"")));
}

TEST(Corpus, RefusesTextsThatDoNotServe) {
  EXPECT_THAT(Corpus::Load("/nowhere/text", 8).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tools/setup")));
  EXPECT_THAT(Corpus::Load(WriteText("empty", ""), 8).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is empty")));
  EXPECT_THAT(Corpus::Load(WriteText("short", "abcdefgh"), 8).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--seq")));
}

// Every length of text and of sequence: refused, or windows lie within their part.
TEST(Corpus, NoTextIsTooShort) {
  for (int length = 1; length <= 100; ++length) {
    const std::string path = WriteText("short", std::string(length, 'x') + "\n");
    for (int64_t sequence = -1; sequence <= 10; ++sequence) {
      const absl::StatusOr<Corpus> corpus = Corpus::Load(path, sequence);
      const int64_t held_out_from = (length + 1) / 20 * 19;
      const bool fits =
          sequence >= 1 && sequence < held_out_from && sequence < length + 1 - held_out_from;
      ASSERT_EQ(corpus.ok(), fits) << length << " " << sequence;
      if (!corpus.ok()) {
        EXPECT_THAT(corpus.status(),
                    StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--seq: windows of ")));
        continue;
      }
      for (int64_t step = 0; step < 20; ++step) {
        for (const int32_t token : corpus->TrainingBatch(2, 1, step)) EXPECT_EQ(token, 'x');
        EXPECT_EQ(corpus->HeldOutBatch(2, step).size(), 2 * (sequence + 1));
      }
    }
  }
}

TEST(Corpus, RefusesWhatIsNoFile) {
  EXPECT_THAT(Corpus::Load("/dev/zero", 8).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--text: '/dev/zero' is a")));
  EXPECT_THAT(Corpus::Load(::testing::TempDir(), 8).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is a folder")));
}

TEST(Corpus, BatchesDependOnSeedAndStepAlone) {
  DT_ASSERT_OK_AND_ASSIGN(const Corpus corpus, Corpus::Load(WriteText("text", Text()), 32));
  EXPECT_EQ(corpus.TrainingBatch(4, 1, 7), corpus.TrainingBatch(4, 1, 7));
  EXPECT_NE(corpus.TrainingBatch(4, 1, 7), corpus.TrainingBatch(4, 1, 8));
  EXPECT_NE(corpus.TrainingBatch(4, 1, 7), corpus.TrainingBatch(4, 2, 7));
  EXPECT_EQ(corpus.TrainingBatch(4, 1, 7).size(), 4 * 33);
}

}  // namespace
}  // namespace dtensor::training
