// Ranks that know only their own part of a model, as the stages of a pipeline do, save the model
// together, and load it with its parts on other ranks.
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/ops/ops.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/presets.h"
#include "dtensor/parallel_plans/testing/small_transformer.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tensor/autograd.h"
#include "dtensor/tensor/gather_values.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kFeatures = 8;

// Layers first, ..., last - 1 of a model, called as they are there.
class Layers : public Module {
 public:
  Layers(int first, int last) {
    for (int i = first; i < last; ++i) {
      layers_.push_back(std::make_unique<LinearLayer>(
          kFeatures, kFeatures, 0.5, LinearLayer::Units(), LinearLayer::Bias::kAdded));
      AddChild(absl::StrCat("layer", i), layers_.back().get());
    }
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override {
    TensorOr y = x;
    for (const auto& layer : layers_) y = (*layer)(y);
    return y;
  }

 private:
  std::vector<std::unique_ptr<LinearLayer>> layers_;
};

// Where layers lie: a rank of the mesh has them, and others know nothing of them. Without layers it
// is a small Transformer, of fused projections or not.
struct Stage {
  std::string mesh;
  int first = 0, last = 0;
  bool fused = false;
  bool is_transformer() const { return last == 0; }
};
using Stages = std::vector<Stage>;

struct RankState {
  DeviceMesh mesh;
  std::unique_ptr<Module> model;
  std::vector<DistributedTensor> parameters;
  std::unique_ptr<AdamW> optimizer;
  TrainingState state;
};

absl::StatusOr<std::unique_ptr<Module>> MakeModel(Context& context, const Stage& stage,
                                                  const DeviceMesh& mesh, uint64_t seed) {
  ParallelPlan plan({{"layer*", Colwise("tp")}});
  std::unique_ptr<Module> model;
  if (stage.is_transformer()) {
    TransformerConfig config = SmallTransformer();
    config.fused_projections = stage.fused;
    model = std::make_unique<Transformer>(config);
    DT_ASSIGN_OR_RETURN(plan, NamedPlan("tp", mesh));
  } else {
    model = std::make_unique<Layers>(stage.first, stage.last);
  }
  DT_RETURN_IF_ERROR(plan.Apply(*model, context, mesh, {.seed = seed, .allow_uneven = true}));
  return model;
}

// Of the stage that this rank has part in.
absl::StatusOr<RankState> Make(Context& context, const Stages& stages, uint64_t seed) {
  RankState rank;
  for (const Stage& stage : stages) {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(stage.mesh));
    if (!mesh.Contains(context.rank())) continue;
    rank.mesh = mesh;
    DT_ASSIGN_OR_RETURN(rank.model, MakeModel(context, stage, mesh, seed));
  }
  rank.parameters = rank.model->Parameters();
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(rank.parameters, {}));
  rank.optimizer = std::make_unique<AdamW>(std::move(adamw));
  rank.state.model = rank.model.get();
  rank.state.optimizer = rank.optimizer.get();
  return rank;
}

// A step of this rank's layers alone, on what depends on its number.
absl::StatusOr<double> Step(Context& context, RankState& rank) {
  TensorOr y;
  if (dynamic_cast<Transformer*>(rank.model.get()) != nullptr) {
    const std::vector<int32_t> ids = {1, 5, 2, static_cast<int32_t>(rank.state.step)};
    y = (*rank.model)(Distribute<int32_t>(context, Layout::Replicated(rank.mesh, 2), {1, 4}, ids));
  } else {
    std::vector<float> x(2 * kFeatures);
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>((i * 7 + rank.state.step * 5) % 11) / 11;
    }
    y = (*rank.model)(
        Distribute<float>(context, Layout::Replicated(rank.mesh, 2), {2, kFeatures}, x));
  }
  DT_RETURN_IF_ERROR(y.status());
  std::vector<int> dims(y->ndim());
  std::iota(dims.begin(), dims.end(), 0);
  const TensorOr loss = Sum(Mul(y, y), dims);
  DT_RETURN_IF_ERROR(loss.status());
  DT_RETURN_IF_ERROR(Backward(*loss));
  DT_RETURN_IF_ERROR(ReduceGradients(rank.parameters));
  DT_RETURN_IF_ERROR(rank.optimizer->Step(0.01));
  rank.optimizer->ClearGradients();
  ++rank.state.step;
  return Item(*loss);
}

using Values = std::map<std::string, std::vector<double>>;

// Of parameters and states that lie on this rank, by their names in checkpoints.
absl::StatusOr<Values> ValuesOf(Context& context, RankState& rank) {
  const NoGrad no_grad(context);
  DT_ASSIGN_OR_RETURN(const CheckpointContent content, CheckpointContentOf(context, rank.state));
  Values values;
  for (const auto& [name, tensor] : content.tensors) {
    DT_ASSIGN_OR_RETURN(const DistributedTensor wide, Cast(tensor, DType::kF64));
    DT_ASSIGN_OR_RETURN(values[name], ToGlobal<double>(wide));
  }
  return values;
}

int RanksOf(const Stages& stages) {
  int ranks = 0;
  for (const Stage& stage : stages) ranks += DeviceMesh::Parse(stage.mesh)->size();
  return ranks;
}

// What all ranks have, and each rank's next loss.
struct Seen {
  Values values;
  std::map<int, double> losses;
};

// Either three steps, a save, and a step; or a load, and a step.
absl::StatusOr<Seen> SaveOrLoad(const Stages& stages, MemoryFiles& files, bool saves) {
  Seen seen;
  std::mutex mutex;
  DT_RETURN_IF_ERROR(RunRanks(RanksOf(stages), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(RankState rank, Make(context, stages, saves ? 3 : 4));
    CheckpointSaver saver(context, "run", {.async = true, .files = &files});
    if (saves) {
      for (int i = 0; i < 3; ++i) DT_RETURN_IF_ERROR(Step(context, rank).status());
      rank.state.position = 77;
      DT_RETURN_IF_ERROR(SaveCheckpoint(context, saver, rank.state));
    } else {
      DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", rank.state, files).status());
      EXPECT_EQ(rank.state.step, 3);
      EXPECT_EQ(rank.state.position, 77);
    }
    DT_ASSIGN_OR_RETURN(const Values values, ValuesOf(context, rank));
    DT_ASSIGN_OR_RETURN(const double loss, Step(context, rank));
    DT_RETURN_IF_ERROR(saver.Wait());
    const std::lock_guard lock(mutex);
    seen.values.insert(values.begin(), values.end());
    seen.losses[context.rank()] = loss;
    return absl::OkStatus();
  }));
  return seen;
}

TEST(Stages, AreLoadedWhereverTheyLie) {
  const Stages saved = {{"tp=2@0..1", 0, 2}, {"tp=3@2..4", 2, 5}};
  MemoryFiles files;
  DT_ASSERT_OK_AND_ASSIGN(const Seen whole, SaveOrLoad(saved, files, /*saves=*/true));
  EXPECT_EQ(whole.values.size(), 5 * 2 * (1 + 3)) << "weights and biases, each with three states";
  DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader,
                          CheckpointReader::Open("run/step-00000003", files));
  DT_EXPECT_OK(reader.Verify());
  EXPECT_EQ(reader.index().tensors.size(), whole.values.size());
  EXPECT_EQ(reader.index().ranks, 5);
  for (const Stages& stages :
       {saved, Stages{{"tp=2@3,1", 0, 2}, {"tp=3@4,0,2", 2, 5}},
        Stages{{"tp=1@0..0", 0, 1}, {"tp=2@1..2", 1, 5}},
        Stages{{"tp=1@0..0", 0, 1}, {"tp=1@1..1", 1, 2}, {"tp=1@2..2", 2, 3}, {"tp=1@3..3", 3, 5}},
        Stages{{"tp=1", 0, 5}}, Stages{{"tp=4", 0, 5}}}) {
    SCOPED_TRACE(absl::StrCat(stages.size(), " stages, the first on ", stages[0].mesh));
    DT_ASSERT_OK_AND_ASSIGN(const Seen loaded, SaveOrLoad(stages, files, /*saves=*/false));
    EXPECT_EQ(loaded.values, whole.values);
    if (stages[0].mesh == saved[0].mesh) {
      EXPECT_EQ(loaded.losses, whole.losses);
    }
  }
}

// Projections that were saved as one, and are several now, move between the ranks of their mesh
// while others read theirs.
TEST(Stages, MayBeOfUnlikeModels) {
  MemoryFiles files;
  const Stages saved = {{"tp=2@0..1", 0, 0, true}, {"tp=1@2..2", 0, 3}};
  DT_ASSERT_OK_AND_ASSIGN(const Seen whole, SaveOrLoad(saved, files, /*saves=*/true));
  for (const Stages& stages : {saved, Stages{{"tp=1@0..0", 0, 3}, {"tp=2@1..2", 0, 0, false}},
                               Stages{{"tp=3@1..3", 0, 3}, {"tp=1@0..0", 0, 0, true}}}) {
    DT_ASSERT_OK_AND_ASSIGN(const Seen loaded, SaveOrLoad(stages, files, /*saves=*/false));
    EXPECT_EQ(loaded.values, whole.values) << stages[0].mesh;
  }
}

// A rank may know tensors of others, which it has no elements of, fused or not.
TEST(Stages, MayKnowWhatOthersHave) {
  for (const bool fused : {false, true}) {
    MemoryFiles files;
    const Stage stage = {"tp=2@0..1", 0, 0, fused};
    std::mutex mutex;
    Values saved, loaded;
    const auto run = [&](bool saves, Values& seen) {
      DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
        RankState rank;
        DT_ASSIGN_OR_RETURN(rank.mesh, DeviceMesh::Parse(stage.mesh));
        DT_ASSIGN_OR_RETURN(rank.model, MakeModel(context, stage, rank.mesh, saves ? 3 : 4));
        rank.parameters = rank.model->Parameters();
        DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create(rank.parameters, {}));
        rank.optimizer = std::make_unique<AdamW>(std::move(adamw));
        rank.state.model = rank.model.get();
        rank.state.optimizer = rank.optimizer.get();
        const bool here = rank.mesh.Contains(context.rank());
        if (saves && here) DT_RETURN_IF_ERROR(Step(context, rank).status());
        rank.state.step = 1;
        DT_RETURN_IF_ERROR(saves ? SaveCheckpoint(context, "run", rank.state, {.files = &files})
                                 : LoadCheckpoint(context, "run", rank.state, files).status());
        if (!here) return absl::OkStatus();
        DT_ASSIGN_OR_RETURN(const Values values, ValuesOf(context, rank));
        const std::lock_guard lock(mutex);
        seen = values;
        return absl::OkStatus();
      }));
    };
    run(true, saved);
    run(false, loaded);
    EXPECT_GT(saved.size(), 4);
    EXPECT_EQ(loaded, saved) << fused;
  }
}

// Each stage draws seeds for layers of its own: as many as these need. It goes on behind its own
// where the stages are the same, and behind all that were drawn where they are not.
TEST(Stages, DrawSeedsOfTheirOwn) {
  const Stages saved = {{"tp=2@0..1", 0, 2}, {"tp=1@2..2", 2, 5}};
  MemoryFiles files;
  DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(RankState rank, Make(context, saved, 3));
    context.random() = {.seed = 11, .drawn = context.rank() < 2 ? 7u : 5u};
    return SaveCheckpoint(context, "run", rank.state, {.files = &files});
  }));
  const auto drawn = [&](const Stages& stages) {
    std::vector<uint64_t> drawn(RanksOf(stages));
    DT_EXPECT_OK(RunRanks(RanksOf(stages), [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(RankState rank, Make(context, stages, 4));
      DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", rank.state, files).status());
      EXPECT_EQ(context.random().seed, 11);
      drawn[context.rank()] = context.random().drawn;
      return absl::OkStatus();
    }));
    return drawn;
  };
  using Drawn = std::vector<uint64_t>;
  EXPECT_EQ(drawn(saved), (Drawn{7, 7, 5}));
  EXPECT_EQ(drawn({{"tp=2@1..2", 0, 2}, {"tp=1@0..0", 2, 5}}), (Drawn{7, 7, 7}));
  EXPECT_EQ(drawn({{"tp=3", 0, 5}}), (Drawn{7, 7, 7}));
  EXPECT_EQ(drawn({{"tp=1", 0, 5}}), (Drawn{7}));
  EXPECT_EQ(drawn({{"tp=2@0..1", 0, 2}, {"tp=2@2..3", 2, 5}}), (Drawn{7, 7, 7, 7}));
}

// The error of a call that is the same on all ranks, after which the world goes on.
absl::Status Refused(const std::function<absl::Status(Context&)>& call) {
  std::vector<absl::Status> statuses(3);
  DT_EXPECT_OK(RunRanks(3, [&](Context& context) -> absl::Status {
    statuses[context.rank()] = call(context);
    return GatherValues(context, context.rank()).status();
  }));
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  return statuses[0];
}

TEST(Stages, AreRefusedWhereTheyContradictEachOther) {
  MemoryFiles files;
  const auto save = [&](const std::function<absl::Status(Context&, CheckpointContent&)>& change) {
    return Refused([&](Context& context) -> absl::Status {
      const std::string text = context.rank() < 2 ? "tp=2@0..1" : "tp=1@2..2";
      DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(text));
      CheckpointContent content;
      DT_ASSIGN_OR_RETURN(content.tensors[context.rank() < 2 ? "a" : "b"],
                          Full(context, mesh, {Shard(0)}, {4}, DType::kF32, 1));
      DT_RETURN_IF_ERROR(change(context, content));
      return SaveCheckpoint(context, "run", content, {.files = &files});
    });
  };
  EXPECT_THAT(
      save([](Context& context, CheckpointContent& content) {
        if (context.rank() == 2) content.tensors["a"] = content.tensors["b"];
        return absl::OkStatus();
      }),
      Refuses(HasSubstr("tensor 'a' is [4] f32 on [\"tp\"=2]@0..1 as [tp] on rank 0, and [4] "
                        "f32 on [\"tp\"=1]@2 as [] on rank 2; give unlike")));
  for (const int silent : {0, 1}) {
    EXPECT_THAT(
        save([&](Context& context, CheckpointContent& content) {
          if (context.rank() == silent) content.tensors.erase("a");
          return absl::OkStatus();
        }),
        Refuses(HasSubstr(absl::StrCat("lies on rank ", silent, " as well, which does not "))));
  }
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) -> absl::Status {
                if (context.rank() != 1) return absl::OkStatus();
                DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("tp=2@0..1"));
                DT_ASSIGN_OR_RETURN(content.tensors["a"],
                                    Full(context, mesh, {Shard(0)}, {6}, DType::kF32, 1));
                return absl::OkStatus();
              }),
              Refuses(HasSubstr("tensor 'a' is [4] f32")));
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) {
                content.entries["who"] = context.rank() == 2 ? "you" : "me";
                return absl::OkStatus();
              }),
              Refuses(HasSubstr("rank 2 saves another text as entry 'who' than rank 0")));
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) {
                content.step = context.rank();
                return absl::OkStatus();
              }),
              Refuses(HasSubstr("rank 1 saves another step than rank 0")));
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) {
                content.aliases["c"] = context.rank() == 2 ? "b" : "a";
                return absl::OkStatus();
              }),
              Refuses(HasSubstr("'c' is another name of 'a' on some ranks, and of 'b' on rank 2")));
  EXPECT_THAT(save([](Context& context, CheckpointContent& content) {
                if (context.rank() == 2) content.aliases["a"] = "b";
                return absl::OkStatus();
              }),
              Refuses(HasSubstr("'a' is a tensor of some ranks, and on rank 2 another name")));
  EXPECT_TRUE(files.Paths().empty());
  DT_EXPECT_OK(save([](Context&, CheckpointContent&) { return absl::OkStatus(); }));
}

TEST(Stages, AreRefusedWhereOneIsMissing) {
  MemoryFiles files;
  DT_ASSERT_OK(SaveOrLoad({{"tp=2@0..1", 0, 2}, {"tp=1@2..2", 2, 5}}, files, /*saves=*/true));
  const auto load = [&](const Stages& stages) {
    return Refused([&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(RankState rank, Make(context, stages, 4));
      return LoadCheckpoint(context, "run", rank.state, files).status();
    });
  };
  EXPECT_THAT(load({{"tp=2@0..1", 0, 2}, {"tp=1@2..2", 2, 4}}),
              Refuses(HasSubstr("the model has no layer4.bias")));
  EXPECT_THAT(load({{"tp=2@0..1", 0, 2}, {"tp=1@2..2", 2, 6}}),
              Refuses(HasSubstr("rank 2: checkpoint 'run/step-00000003' has no layer5.weight")));
  // A file that cannot be read is an error of all ranks, and none of them waits.
  std::string bytes = files.Bytes("run/step-00000003/rank-00002.safetensors");
  bytes[bytes.size() / 2] ^= 1;
  files.SetBytes("run/step-00000003/rank-00002.safetensors", bytes);
  EXPECT_THAT(load({{"tp=2@0..1", 0, 2}, {"tp=1@2..2", 2, 5}}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 2: ")));
}

}  // namespace
}  // namespace dtensor
