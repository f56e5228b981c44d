#include "dtensor/nn/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dtensor/nn/testing/small_problem.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pointwise;

using Values = std::vector<double>;

// [m, n], row-major; the formulas of the header.
struct Matrix {
  int64_t m, n;
  Values x;
  double& At(int64_t i, int64_t j) { return x[i * n + j]; }
  double At(int64_t i, int64_t j) const { return x[i * n + j]; }

  Matrix Transposed() const {
    Matrix t{n, m, Values(x.size())};
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) t.At(j, i) = At(i, j);
    }
    return t;
  }
  Matrix Times(const Matrix& b) const {
    Matrix c{m, b.n, Values(m * b.n)};
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < b.n; ++j) {
        for (int64_t k = 0; k < n; ++k) c.At(i, j) += At(i, k) * b.At(k, j);
      }
    }
    return c;
  }
};

Matrix Orthogonal(Matrix x, int64_t iterations) {
  if (x.m > x.n) return Orthogonal(x.Transposed(), iterations).Transposed();
  double squares = 0;
  for (const double v : x.x) squares += v * v;
  for (double& v : x.x) v /= std::max(std::sqrt(squares), 1e-7);
  for (int64_t i = 0; i < iterations; ++i) {
    const Matrix gram = x.Times(x.Transposed()), square = gram.Times(gram);
    Matrix mixed = gram;
    for (size_t e = 0; e < mixed.x.size(); ++e) {
      mixed.x[e] = -4.775 * gram.x[e] + 2.0315 * square.x[e];
    }
    const Matrix more = mixed.Times(x);
    for (size_t e = 0; e < x.x.size(); ++e) x.x[e] = 3.4445 * x.x[e] + more.x[e];
  }
  return x;
}

// A stack of matrices, each of which makes its own steps.
struct Reference {
  MuonOptions options;
  int64_t count, m, n;
  Values p, buffer = Values(p.size());

  void Step(double lr, const Values& gradient) {
    const double rows = static_cast<double>(m), columns = static_cast<double>(n);
    const double scale = options.matches_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                               : std::sqrt(std::max(1.0, rows / columns));
    for (int64_t k = 0; k < count; ++k) {
      Matrix u{m, n, Values(m * n)};
      for (int64_t e = 0; e < m * n; ++e) {
        const int64_t i = k * m * n + e;
        buffer[i] = options.momentum * buffer[i] + gradient[i];
        u.x[e] = options.nesterov ? gradient[i] + options.momentum * buffer[i] : buffer[i];
      }
      const Matrix o = Orthogonal(u, options.iterations);
      for (int64_t e = 0; e < m * n; ++e) {
        double& value = p[k * m * n + e];
        value -= lr * (options.weight_decay * value + scale * o.x[e]);
      }
    }
  }
};

const MuonOptions kOptions[] = {
    {},
    {.nesterov = false},
    {.momentum = 0.5, .weight_decay = 0, .matches_adamw = false, .iterations = 3},
    {.momentum = 0, .nesterov = false},
};

// Matrices, wide and tall and of one row, a stack, and a vector by AdamW.
struct Problem {
  std::vector<Dims> shapes = {{4, 3}, {3, 5}, {1, 6}, {4, 3}, {5, 2, 3}, {2, 3, 2}};
  std::vector<DistributedTensor> matrices;
  DistributedTensor vector;

  static absl::StatusOr<Problem> Make(Context& context, const SmallPlace& place, DType dtype) {
    Problem out;
    for (size_t i = 0; i < out.shapes.size(); ++i) {
      const Values values = SomeValues(NumElements(out.shapes[i]), static_cast<int>(i));
      DT_ASSIGN_OR_RETURN(out.matrices.emplace_back(),
                          SmallParameter(context, place, out.shapes[i], dtype, values));
    }
    DT_ASSIGN_OR_RETURN(out.vector, SmallParameter(context, place, {4}, dtype, SomeValues(4, 20)));
    return out;
  }
  Values Gradient(size_t i, int t) const {
    return SomeValues(NumElements(shapes[i]), static_cast<int>(31 * i) + 100 + t);
  }
  absl::Status AddGradients(int t) const {
    for (size_t i = 0; i < shapes.size(); ++i) {
      DT_RETURN_IF_ERROR(AddSmallGradient(matrices[i], Gradient(i, t)));
    }
    return AddSmallGradient(vector, SomeValues(4, 50 + t));
  }
};

absl::Status Follow(Context& context, const SmallPlace& place, const MuonOptions& options) {
  DT_ASSIGN_OR_RETURN(const Problem problem, Problem::Make(context, place, DType::kF64));
  DT_ASSIGN_OR_RETURN(const DistributedTensor same,
                      SmallParameter(context, place, {4}, DType::kF64, SomeValues(4, 20)));
  DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({{problem.matrices, options, 0.5}},
                                              {{{problem.vector}, {.weight_decay = 0.3}, 2}}));
  DT_ASSIGN_OR_RETURN(AdamW adamw, AdamW::Create({AdamWGroup{{same}, {.weight_decay = 0.3}, 2}}));
  std::vector<Reference> want;
  for (size_t i = 0; i < problem.shapes.size(); ++i) {
    const Dims& s = problem.shapes[i];
    const size_t n = s.size();
    want.push_back({options, n == 3 ? s[0] : 1, s[n - 2], s[n - 1],
                    SomeValues(NumElements(s), static_cast<int>(i))});
  }
  for (int t = 1; t <= 4; ++t) {
    DT_RETURN_IF_ERROR(problem.AddGradients(t));
    DT_RETURN_IF_ERROR(AddSmallGradient(same, SomeValues(4, 50 + t)));
    DT_RETURN_IF_ERROR(muon.Step(0.2));
    DT_RETURN_IF_ERROR(adamw.Step(0.2));
    muon.ClearGradients();
    adamw.ClearGradients();
    for (size_t i = 0; i < want.size(); ++i) want[i].Step(0.1, problem.Gradient(i, t));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_THAT(SmallValues(problem.matrices[i]),
                IsOkAndHolds(Pointwise(DoubleNear(1e-10), want[i].p)))
        << DimsToString(problem.shapes[i]);
    DT_ASSIGN_OR_RETURN(const OptimizerState state, muon.State(problem.matrices[i]));
    if (options.momentum == 0) continue;
    EXPECT_THAT(SmallValues(state.at("momentum_buffer")),
                IsOkAndHolds(Pointwise(DoubleNear(1e-12), want[i].buffer)));
  }
  DT_ASSIGN_OR_RETURN(const Values vector, SmallValues(same));
  EXPECT_THAT(SmallValues(problem.vector), IsOkAndHolds(vector));
  return absl::OkStatus();
}

TEST(Muon, FollowsTheFormulaOnEveryMesh) {
  for (const SmallPlace& place : SmallPlaces()) {
    for (const MuonOptions& options : kOptions) {
      SCOPED_TRACE(place.ToString());
      EXPECT_THAT(RunAt(place, [&](Context& context) { return Follow(context, place, options); }),
                  IsOk());
    }
  }
}

// One rank has the whole matrix, wherever its shards are.
TEST(Muon, GivesTheSameBitsOnEveryMesh) {
  std::vector<Values> want;
  for (const SmallPlace& place : SmallPlaces()) {
    DT_EXPECT_OK(RunAt(place, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const Problem problem, Problem::Make(context, place, DType::kF32));
      DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({{problem.matrices}}));
      for (int t = 1; t <= 3; ++t) {
        DT_RETURN_IF_ERROR(problem.AddGradients(t));
        DT_RETURN_IF_ERROR(muon.Step(0.1));
        muon.ClearGradients();
      }
      for (size_t i = 0; i < 4; ++i) {  // those that are no stacks
        DT_ASSIGN_OR_RETURN(const Values values, SmallValues(problem.matrices[i]));
        if (context.rank() != 0) continue;
        if (want.size() <= i) want.push_back(values);
        EXPECT_EQ(values, want[i]) << place.ToString();
      }
      return absl::OkStatus();
    }));
  }
}

// Each matrix is received once by the rank that orthogonalizes it, and sent back once.
TEST(Muon, MovesEachMatrixThereAndBack) {
  const SmallPlace place = {"dp=4", {Shard(0)}};
  DT_EXPECT_OK(RunAt(place, [&](Context& context) -> absl::Status {
    std::vector<DistributedTensor> parameters;
    for (int i = 0; i < 8; ++i) {
      DT_ASSIGN_OR_RETURN(parameters.emplace_back(),
                          SmallParameter(context, place, {8, 16}, DType::kF32, SomeValues(128, i)));
      DT_RETURN_IF_ERROR(AddSmallGradient(parameters.back(), SomeValues(128, 9 + i)));
    }
    DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({{parameters}}));
    context.communicator().ResetTraffic();
    DT_RETURN_IF_ERROR(muon.Step(0.1));
    int64_t received = 0;
    for (const auto& [key, traffic] : context.communicator().traffic()) {
      received += traffic.bytes;
    }
    // Of its own two matrices it lacks 3/4; of the other six it gets 1/4.
    EXPECT_EQ(received, (2 * 3 + 6) * 128);
    return absl::OkStatus();
  }));
}

TEST(Muon, StepsOnOtherMeshesThanItsOwnRanks) {
  DT_EXPECT_OK(RunRanks(3, [](Context& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const DeviceMesh first, DeviceMesh().OnRanks({0}));
    DT_ASSIGN_OR_RETURN(const DeviceMesh pair, DeviceMesh::Parse("tp=2"));
    DT_ASSIGN_OR_RETURN(const DeviceMesh last, pair.OnRanks({1, 2}));
    std::vector<DistributedTensor> parameters;
    std::vector<Reference> want;
    for (const Layout& layout : {Layout::Replicated(first, 2), *Layout::Parse(last, "[tp] []"),
                                 *Layout::Parse(last, "[] [tp]")}) {
      DT_ASSIGN_OR_RETURN(parameters.emplace_back(),
                          SmallTensor(context, layout, {4, 3}, DType::kF64, SomeValues(12, 1)));
      DT_RETURN_IF_ERROR(parameters.back().set_requires_grad(true));
      DT_RETURN_IF_ERROR(AddSmallGradient(parameters.back(), SomeValues(12, 2)));
    }
    DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({{parameters}}));
    DT_RETURN_IF_ERROR(muon.Step(0.1));
    Reference reference{{}, 1, 4, 3, SomeValues(12, 1)};
    reference.Step(0.1, SomeValues(12, 2));
    for (const DistributedTensor& parameter : parameters) {
      if (!parameter.spec().on_mesh) continue;
      EXPECT_THAT(SmallValues(parameter), IsOkAndHolds(Pointwise(DoubleNear(1e-10), reference.p)));
    }
    return absl::OkStatus();
  }));
}

// Only those with gradients step; a gradient of 0 only decays; gradients are scaled first.
TEST(Muon, StepsWhatHasAGradient) {
  const SmallPlace place = {"tp=2", {Shard(0)}};
  DT_EXPECT_OK(RunAt(place, [&](Context& context) -> absl::Status {
    std::vector<DistributedTensor> p;
    for (int i = 0; i < 4; ++i) {
      DT_ASSIGN_OR_RETURN(p.emplace_back(),
                          SmallParameter(context, place, {2, 2}, DType::kF64, Values(4, 1)));
    }
    DT_RETURN_IF_ERROR(AddSmallGradient(p[1], Values(4, 0)));
    DT_RETURN_IF_ERROR(AddSmallGradient(p[2], SomeValues(4, 1)));
    DT_RETURN_IF_ERROR(AddSmallGradient(p[3], SomeValues(4, 1)));
    DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({{p}}));
    DT_ASSIGN_OR_RETURN(const DistributedTensor scale,
                        Full(context, Layout::Replicated(p[0].mesh(), 0), {}, DType::kF64, 0.5));
    DT_RETURN_IF_ERROR(muon.Step(0.5, scale));
    EXPECT_THAT(SmallValues(p[0]), IsOkAndHolds(Each(1)));
    EXPECT_THAT(SmallValues(p[1]), IsOkAndHolds(Each(1 - 0.5 * 0.1)));
    DT_ASSIGN_OR_RETURN(const OptimizerState state, muon.State(p[2]));
    Values half = SomeValues(4, 1);
    for (double& v : half) v *= 0.5;
    EXPECT_THAT(SmallValues(state.at("momentum_buffer")),
                IsOkAndHolds(Pointwise(DoubleNear(1e-15), half)));
    DT_ASSIGN_OR_RETURN(const Values third, SmallValues(p[3]));
    EXPECT_THAT(SmallValues(p[2]), IsOkAndHolds(third));
    return absl::OkStatus();
  }));
}

TEST(Muon, MasterWeightsKeepSmallSteps) {
  for (const bool master : {true, false}) {
    const SmallPlace place = {"tp=2", {Shard(1)}};
    DT_EXPECT_OK(RunAt(place, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const DistributedTensor p,
                          SmallParameter(context, place, {2, 2}, DType::kBF16, Values(4, 64)));
      const MuonOptions options = {.weight_decay = 0, .master_weights = master};
      DT_ASSIGN_OR_RETURN(Muon muon, Muon::Create({{{p}, options}}));
      for (int t = 0; t < 40; ++t) {
        DT_RETURN_IF_ERROR(AddSmallGradient(p, {1, 0, 0, 1}));
        DT_RETURN_IF_ERROR(muon.Step(0.1));  // 0.02 to 0.03 of 64, which bf16 cannot tell from 64
        muon.ClearGradients();
      }
      DT_ASSIGN_OR_RETURN(const Values values, SmallValues(p));
      EXPECT_EQ(values[0] < 64, master);
      EXPECT_EQ(values[1], 64);
      return absl::OkStatus();
    }));
  }
}

// Close to orthogonal in f32 and in bf16: singular values of about 1, of a matrix with those of 1
// and 0.1.
TEST(NewtonSchulz, MakesSingularValuesOne) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    DT_EXPECT_OK(RunRanks(1, [&](Context& context) -> absl::Status {
      DT_ASSIGN_OR_RETURN(const auto x, SmallTensor(context, Layout::Replicated(DeviceMesh(), 2),
                                                    {2, 3}, dtype, {0, 1, 0, 0.1, 0, 0}));
      DT_ASSIGN_OR_RETURN(const auto o, NewtonSchulz(x));
      DT_ASSIGN_OR_RETURN(const Values values, SmallValues(o));
      EXPECT_THAT(values, Pointwise(DoubleNear(0.35), Values{0, 1, 0, 1, 0, 0}));
      EXPECT_THAT(NewtonSchulz(Sum(x, {0})),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no matrix")));
      return absl::OkStatus();
    }));
  }
}

TEST(Muon, RefusesWhatItCannotStep) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const MuonOptions& options :
       {MuonOptions{.momentum = 1}, MuonOptions{.momentum = nan}, MuonOptions{.weight_decay = -1},
        MuonOptions{.weight_decay = HUGE_VAL}, MuonOptions{.iterations = 0},
        MuonOptions{.dtype = DType::kF16}}) {
    EXPECT_THAT(Muon::Create({MuonGroup{{}, options}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Muon: ")));
  }
  EXPECT_THAT(Muon::Create({}, {AdamWGroup{{}, {.beta1 = 1}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Muon: a beta")));
  DT_EXPECT_OK(RunRanks(1, [](Context& context) -> absl::Status {
    const SmallPlace place = {"tp=1", {Replicate()}};
    DT_ASSIGN_OR_RETURN(const auto vector,
                        SmallParameter(context, place, {4}, DType::kF32, Values(4, 1)));
    DT_ASSIGN_OR_RETURN(const auto matrix,
                        SmallParameter(context, place, {2, 2}, DType::kF32, Values(4, 1)));
    EXPECT_THAT(Muon::Create({{{vector}}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no matrix")));
    EXPECT_THAT(Muon::Create({{{matrix}}}, {{{matrix}}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("are one tensor")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace dtensor
