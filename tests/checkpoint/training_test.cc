// A saved training run continues elsewhere. On every mesh and with every plan, the values are those
// that were saved, bit by bit, and the next steps are those of the uninterrupted run.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/checkpoint/checkpoint_reader.h"
#include "dtensor/checkpoint/load.h"
#include "dtensor/checkpoint/testing/memory_files.h"
#include "dtensor/checkpoint/training_state.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/state_dict.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "dtensor/tests/checkpoint/training_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

// What rank 0 saw.
struct Seen {
  std::vector<double> losses;
  RunValues values;  // where it was saved, or loaded
};

// Steps, a save, and more steps.
absl::StatusOr<Seen> Save(const TrainingPlace& place, MemoryFiles& files, int before, int after,
                          bool async = false) {
  Seen seen;
  DT_RETURN_IF_ERROR(RunRanks(RanksOf(place), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    for (int i = 0; i < before; ++i) DT_RETURN_IF_ERROR(run->Step().status());
    run->state().entries["mood"] = "fine";
    CheckpointSaver saver(context, "run", {.async = async, .files = &files});
    DT_ASSIGN_OR_RETURN(RunValues values, run->Values());
    DT_RETURN_IF_ERROR(SaveCheckpoint(context, saver, run->state()));
    std::vector<double> losses;
    for (int i = 0; i < after; ++i) {
      DT_ASSIGN_OR_RETURN(losses.emplace_back(), run->Step());
    }
    if (context.rank() == 0) seen = {std::move(losses), std::move(values)};
    return saver.Wait();
  }));
  return seen;
}

absl::StatusOr<Seen> Load(TrainingPlace place, MemoryFiles& files, int after) {
  place.seed = 99;  // other weights than those that were saved
  Seen seen;
  DT_RETURN_IF_ERROR(RunRanks(RanksOf(place), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    run->state().schedule = LrSchedule::Constant(5);
    DT_ASSIGN_OR_RETURN(const std::string path,
                        LoadCheckpoint(context, "run", run->state(), files));
    EXPECT_TRUE(absl::StartsWith(path, "run/step-"));
    EXPECT_EQ(run->state().entries.at("mood"), "fine");
    EXPECT_EQ(run->state().schedule, LrSchedule::Cosine(0.02, 2, 40));
    DT_ASSIGN_OR_RETURN(RunValues values, run->Values());
    std::vector<double> losses;
    for (int i = 0; i < after; ++i) {
      DT_ASSIGN_OR_RETURN(losses.emplace_back(), run->Step());
    }
    if (context.rank() == 0) seen = {std::move(losses), std::move(values)};
    return absl::OkStatus();
  }));
  return seen;
}

// The first name with other values; empty if all are equal.
std::string FirstDifference(const RunValues& a, const RunValues& b) {
  for (const auto& [name, values] : a) {
    if (!b.contains(name)) return name + " is missing";
    if (b.at(name) != values) return name;
  }
  return a.size() == b.size() ? "" : "there are more";
}

double Farthest(const std::vector<double>& a, const std::vector<double>& b) {
  double farthest = a.size() == b.size() ? 0 : 1e9;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    farthest = std::max(farthest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  }
  return farthest;
}

// Each saves, and some load: itself and two others. All pairs with DTENSOR_ALL_PAIRS.
void ExpectEachLoadsWhatEachSaved(const std::vector<TrainingPlace>& places,
                                  const std::string& state) {
  const bool all_pairs = std::getenv("DTENSOR_ALL_PAIRS") != nullptr;
  for (size_t i = 0; i < places.size(); ++i) {
    const TrainingPlace& from = places[i];
    MemoryFiles files;
    DT_ASSERT_OK_AND_ASSIGN(const Seen saved, Save(from, files, 2, 2));
    ASSERT_THAT(saved.values, Contains(Key(state)));
    for (size_t j = 0; j < places.size(); ++j) {
      const size_t distance = (j + places.size() - i) % places.size();
      if (!all_pairs && distance != 0 && distance != 1 && distance != 5) continue;
      const TrainingPlace& to = places[j];
      const std::string what = from.mesh + " " + from.plan + " to " + to.mesh + " " + to.plan;
      DT_ASSERT_OK_AND_ASSIGN(const Seen loaded, Load(to, files, 2));
      ASSERT_EQ(FirstDifference(saved.values, loaded.values), "") << what;
      EXPECT_LE(Farthest(loaded.losses, saved.losses), 1e-5) << what;
      const bool same = from.mesh == to.mesh && from.plan == to.plan;
      EXPECT_TRUE(!same || loaded.losses == saved.losses) << what;
    }
  }
}

TEST(Training, EachMeshAndPlanLoadsWhatEachSaved) {
  ExpectEachLoadsWhatEachSaved(TrainingPlaces(),
                               "optimizer/exp_avg_sq/model.layers.1.self_attn.k_proj.weight");
}

TEST(Training, EachLoadsTheExpertsThatEachSaved) {
  const std::string state = "optimizer/exp_avg_sq/model.layers.1.mlp.experts.";
  ExpectEachLoadsWhatEachSaved(MixturePlaces(4), state + "3.down_proj.weight");
}

// It is the only part of its stack, which has a dimension more.
TEST(Training, ASingleExpertIsLoaded) {
  const std::string state = "optimizer/exp_avg_sq/model.layers.1.mlp.experts.";
  ExpectEachLoadsWhatEachSaved({{.mesh = "tp=2", .plan = "tp+sp", .experts = 1},
                                {.mesh = "dp=2", .plan = "fsdp", .experts = 1}},
                               state + "0.down_proj.weight");
}

TEST(Training, TheModelIsWrittenOnceAndEvenly) {
  for (TrainingPlace place : TrainingPlaces()) {
    place.tied = true;
    MemoryFiles files;
    DT_ASSERT_OK(Save(place, files, 1, 0));
    DT_ASSERT_OK_AND_ASSIGN(CheckpointReader reader, CheckpointReader::Open("run", files));
    // Tied weights, once: 12 x 16 of the embedding, 2 layers, the last norm; each with two states,
    // and a number of steps for each.
    const int64_t layer = 2 * 16 + 2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16;
    const int64_t parameters = 12 * 16 + 2 * layer + 16;
    const int64_t expected = 3 * 4 * parameters + 8 * (2 + 2 * 9);
    EXPECT_EQ(reader.index().bytes(), expected) << place.mesh;
    EXPECT_NE(reader.index().Find("lm_head.weight"), nullptr);
    int64_t sum = 0, most = 0;
    for (const CheckpointFile& file : reader.index().files) {
      sum += file.slice_bytes;
      most = std::max(most, file.slice_bytes);
    }
    EXPECT_EQ(sum, expected) << place.mesh << " " << place.plan;
    EXPECT_LE(static_cast<double>(most * RanksOf(place)), 1.1 * static_cast<double>(sum))
        << place.mesh << " " << place.plan;
  }
}

TEST(Training, TiedWeightsAreLoadedByAnyName) {
  const TrainingPlace tied = {.mesh = "tp=2", .plan = "tp", .tied = true};
  const TrainingPlace also_tied = {.mesh = "dp=2", .plan = "fsdp", .fused = true, .tied = true};
  const TrainingPlace untied = {.mesh = "dp=2", .plan = "zero1"};
  MemoryFiles files;
  DT_ASSERT_OK_AND_ASSIGN(const Seen saved, Save(tied, files, 2, 2));
  EXPECT_THAT(saved.values, Not(Contains(Key("lm_head.weight"))));
  DT_ASSERT_OK_AND_ASSIGN(const Seen same, Load(also_tied, files, 2));
  EXPECT_EQ(FirstDifference(saved.values, same.values), "");
  EXPECT_LE(Farthest(same.losses, saved.losses), 1e-5);
  // Two weights that begin alike.
  DT_ASSERT_OK_AND_ASSIGN(const Seen apart, Load(untied, files, 1));
  EXPECT_EQ(apart.values.at("lm_head.weight"), saved.values.at("model.embed_tokens.weight"));
  EXPECT_EQ(apart.values.at("optimizer/exp_avg/lm_head.weight"),
            saved.values.at("optimizer/exp_avg/model.embed_tokens.weight"));
  EXPECT_LE(Farthest(apart.losses, {saved.losses[0]}), 1e-5);
}

TEST(Training, MastersBecomeWhatTheNextRunHas) {
  const TrainingPlace bf16 = {
      .mesh = "dp=2", .plan = "fsdp", .masters = true, .dtype = DType::kBF16};
  const TrainingPlace f32 = {.mesh = "tp=2", .plan = "tp", .fused = true};
  const TrainingPlace bf16_elsewhere = {
      .mesh = "tp=2", .plan = "tp", .fused = true, .masters = true, .dtype = DType::kBF16};
  const std::string name = "model.layers.0.self_attn.q_proj.weight",
                    master = "optimizer/master/" + name;
  {
    MemoryFiles files;
    DT_ASSERT_OK_AND_ASSIGN(const Seen saved, Save(bf16, files, 3, 1));
    EXPECT_NE(saved.values.at(name), saved.values.at(master));
    DT_ASSERT_OK_AND_ASSIGN(const Seen same, Load(bf16, files, 1));
    EXPECT_EQ(FirstDifference(saved.values, same.values), "");
    EXPECT_EQ(same.losses, saved.losses);
    DT_ASSERT_OK_AND_ASSIGN(const Seen other, Load(bf16_elsewhere, files, 0));
    EXPECT_EQ(FirstDifference(saved.values, other.values), "");
    DT_ASSERT_OK_AND_ASSIGN(const Seen wide, Load(f32, files, 0));
    EXPECT_EQ(wide.values.at(name), saved.values.at(master)) << "not what was rounded";
    EXPECT_THAT(wide.values, Not(Contains(Key(master))));
  }
  MemoryFiles files;
  DT_ASSERT_OK_AND_ASSIGN(const Seen saved, Save(f32, files, 3, 1));
  DT_ASSERT_OK_AND_ASSIGN(const Seen narrow, Load(bf16_elsewhere, files, 0));
  EXPECT_EQ(narrow.values.at(master), saved.values.at(name)) << "not what was rounded";
  EXPECT_NE(narrow.values.at(name), saved.values.at(name));
}

TEST(Training, AnAsynchronousSaveDisturbsNothing) {
  const TrainingPlace place = {.mesh = "dp=2,tp=2", .plan = "fsdp+tp+sp"};
  MemoryFiles at_once, later;
  DT_ASSERT_OK_AND_ASSIGN(const Seen a, Save(place, at_once, 2, 3));
  DT_ASSERT_OK_AND_ASSIGN(const Seen b, Save(place, later, 2, 3, /*async=*/true));
  EXPECT_EQ(a.losses, b.losses);
  for (const std::string& path : at_once.Paths()) EXPECT_EQ(at_once.Bytes(path), later.Bytes(path));
}

// The error of all ranks alike, with the model unchanged.
absl::Status RefusedLoad(TrainingPlace place, MemoryFiles& files,
                         const std::function<void(TrainingRun&)>& change = nullptr) {
  place.seed = 99;
  std::vector<absl::Status> all(RanksOf(place));
  const absl::Status run = RunRanks(RanksOf(place), [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    if (change) change(*run);
    DT_ASSIGN_OR_RETURN(const RunValues before, run->Values());
    all[context.rank()] = LoadCheckpoint(context, "run", run->state(), files).status();
    DT_ASSIGN_OR_RETURN(const RunValues after, run->Values());
    EXPECT_EQ(FirstDifference(before, after), "");
    EXPECT_EQ(run->state().step, 0);
    return absl::OkStatus();
  });
  EXPECT_THAT(run, IsOk());
  for (const absl::Status& status : all) EXPECT_EQ(status, all[0]);
  return all[0];
}

TEST(Training, RefusesWhatDoesNotFit) {
  const auto invalid = [](const std::string& words) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
  };
  const TrainingPlace adamw = {.mesh = "tp=2", .plan = "tp"};
  TrainingPlace sgd = adamw;
  sgd.sgd = true;
  TrainingPlace tied = adamw;
  tied.tied = true;
  {
    MemoryFiles files;
    DT_ASSERT_OK(Save(adamw, files, 1, 0));
    EXPECT_THAT(RefusedLoad(sgd, files),
                invalid("LoadCheckpoint: checkpoint 'run/step-00000001' has no "
                        "optimizer/momentum_buffer/"));
    EXPECT_THAT(RefusedLoad(adamw, files,
                            [](TrainingRun& run) {
                              static LossScaler scaler = *LossScaler::Create();
                              run.state().loss_scaler = &scaler;
                            }),
                invalid("was saved without a LossScaler"));
    // Of two weights of the checkpoint the model has one, by both names: the first counts.
    DT_EXPECT_OK(Load(tied, files, 1));
  }
  {
    MemoryFiles files;
    DT_ASSERT_OK(Save(sgd, files, 1, 0));
    EXPECT_THAT(RefusedLoad(adamw, files), invalid("has no optimizer/exp_avg/"));
  }
  MemoryFiles files;
  DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, adamw));
    DT_ASSIGN_OR_RETURN(CheckpointContent content, CheckpointContentOf(context, run->state()));
    content.step = 1;
    DT_RETURN_IF_ERROR(content.tensors.erase("model.norm.weight") == 1
                           ? SaveCheckpoint(context, "run", content, {.files = &files})
                           : absl::InternalError("the model has no norm"));
    content.tensors["model.norm.weight"] = content.tensors["lm_head.weight"];
    content.step = 2;
    DT_RETURN_IF_ERROR(SaveCheckpoint(context, "bad_shape", content, {.files = &files}));
    content = *CheckpointContentOf(context, run->state());
    content.tensors["model.extra"] = content.tensors["lm_head.weight"];
    return SaveCheckpoint(context, "extra", content, {.files = &files});
  }));
  EXPECT_THAT(
      RefusedLoad(adamw, files),
      invalid("checkpoint 'run/step-00000001' has no model.norm.weight, which the model has"));
  DT_ASSERT_OK(files.Remove("run/step-00000001/index.json"));
  DT_ASSERT_OK(RemoveFolder(files, "run/step-00000001"));
  DT_ASSERT_OK(files.Rename("extra/step-00000000", "run/step-00000000"));
  EXPECT_THAT(RefusedLoad(adamw, files), invalid("the model has no model.extra"));
  DT_ASSERT_OK(files.Rename("bad_shape/step-00000002", "run/step-00000002"));
  EXPECT_THAT(RefusedLoad(adamw, files), invalid("tensor 'model.norm.weight'"));
}

TEST(Training, RefusesAnOptimizerOfOtherParameters) {
  MemoryFiles files;
  const TrainingPlace place = {.mesh = "tp=2", .plan = "tp"};
  DT_ASSERT_OK(Save(place, files, 1, 0));
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    DT_ASSIGN_OR_RETURN(const auto other, TrainingRun::Create(context, place));
    run->state().optimizer = other->state().optimizer;
    const auto refused =
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("steps a parameter [12, 16] f32"));
    CheckpointSaver saver(context, "other", {.files = &files});
    EXPECT_THAT(SaveCheckpoint(context, saver, run->state()), refused);
    EXPECT_THAT(LoadCheckpoint(context, "run", run->state(), files), refused);
    return absl::OkStatus();
  }));
}

// On both ranks of the new world, and before anything is written in the old one.
TEST(Training, RefusesAModelOfAnotherWorld) {
  MemoryFiles files;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    const TrainingPlace place = {.mesh = "dp=2"};
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    DT_RETURN_IF_ERROR(SaveCheckpoint(context, "run", run->state(), {.files = &files}));
    return RunRanks(1, [&](Context& old) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto other, TrainingRun::Create(old, {.seed = 2}));
      DT_ASSIGN_OR_RETURN(const RunValues before, other->Values());
      const auto of_another = Refuses(HasSubstr("belongs to another Context"));
      EXPECT_THAT(LoadCheckpoint(context, "run", other->state(), files), of_another);
      EXPECT_THAT(SaveCheckpoint(context, "run", other->state(), {.files = &files}), of_another);
      EXPECT_THAT(other->Values(), IsOkAndHolds(before));
      return absl::OkStatus();
    });
  }));
}

TEST(Training, RefusesToSaveAScheduleThatCannotBeRead) {
  MemoryFiles files;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run,
                        TrainingRun::Create(context, {.mesh = "tp=2", .plan = "tp"}));
    run->state().schedule = LrSchedule::Constant(std::numeric_limits<double>::infinity());
    CheckpointSaver saver(context, "run", {.files = &files});
    EXPECT_THAT(SaveCheckpoint(context, saver, run->state()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("constant(inf, 0)")));
    return absl::OkStatus();
  }));
}

// A child without a name has its parent's path; so the parent may have the child's parameter, too.
class Wrapper : public Module {
 public:
  Wrapper() : inner_(4, 4, 0.1) {
    AddChild("", &inner_);
    AddParameter("weight", inner_.weight());
  }

 protected:
  TensorOr Forward(const DistributedTensor& x) override { return inner_(x); }

 private:
  LinearLayer inner_;
};

TEST(Training, AParameterMayStandTwiceAtOnePath) {
  MemoryFiles files;
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse("dp=2"));
    Wrapper saved, loaded;
    DT_RETURN_IF_ERROR(saved.Materialize(context, mesh, 1));
    DT_RETURN_IF_ERROR(loaded.Materialize(context, mesh, 2));
    CheckpointSaver saver(context, "run", {.files = &files});
    DT_RETURN_IF_ERROR(SaveCheckpoint(context, saver, {.model = &saved, .step = 1}));
    TrainingState state = {.model = &loaded};
    DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", state, files).status());
    EXPECT_EQ(ToGlobal<float>(loaded.Parameters()[0]).value(),
              ToGlobal<float>(saved.Parameters()[0]).value());
    return absl::OkStatus();
  }));
}

TEST(Training, TheModelAloneIsLoadedFromMore) {
  MemoryFiles files;
  const TrainingPlace place = {.mesh = "tp=2", .plan = "tp", .fused = true};
  DT_ASSERT_OK_AND_ASSIGN(const Seen saved, Save(place, files, 2, 0));
  DT_ASSERT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    TrainingPlace other = {.mesh = "dp=2", .plan = "fsdp", .sgd = true};
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, other));
    TrainingState state = {.model = &run->model()};
    DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", state, files).status());
    EXPECT_EQ(state.step, 2);
    EXPECT_EQ(state.position, 8);
    EXPECT_THAT(state.plan, HasSubstr("o_proj\", Rowwise"));
    EXPECT_EQ(context.random().drawn, 2);
    DT_ASSIGN_OR_RETURN(const RunValues values, run->Values());
    for (const auto& [name, of_name] : values) {
      if (absl::StartsWith(name, "optimizer/")) continue;
      EXPECT_EQ(of_name, saved.values.at(name)) << name;
    }
    return absl::OkStatus();
  }));
}

// What the checkpoint lacks stays the program's.
TEST(Training, KeepsTheProgramsScheduleWhereTheCheckpointHasNone) {
  MemoryFiles files;
  const TrainingPlace place = {.mesh = "tp=2", .plan = "tp"};
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    run->state().schedule.reset();
    DT_RETURN_IF_ERROR(SaveCheckpoint(context, "run", run->state(), {.files = &files}));
    run->state().schedule = LrSchedule::Constant(0.25);
    DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", run->state(), files).status());
    if (!run->state().schedule) return absl::InternalError("the schedule is gone");
    EXPECT_EQ(run->state().schedule->At(3), 0.25);
    return absl::OkStatus();
  }));
}

TEST(Training, ALossScalerGoesOn) {
  MemoryFiles files;
  const TrainingPlace place = {.mesh = "tp=2", .plan = "tp"};
  DT_EXPECT_OK(RunRanks(2, [&](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto run, TrainingRun::Create(context, place));
    DT_ASSIGN_OR_RETURN(LossScaler scaler, LossScaler::Create());
    DT_RETURN_IF_ERROR(scaler.set_state({.scale = 1.0 / 3, .good_steps = 17}));
    run->state().loss_scaler = &scaler;
    DT_RETURN_IF_ERROR(SaveCheckpoint(context, "run", run->state(), {.files = &files}));
    DT_RETURN_IF_ERROR(scaler.set_state({.scale = 7, .good_steps = 0}));
    DT_RETURN_IF_ERROR(LoadCheckpoint(context, "run", run->state(), files).status());
    EXPECT_EQ(scaler.state(), (LossScaler::State{.scale = 1.0 / 3, .good_steps = 17}));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
