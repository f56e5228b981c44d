// A program's own names beside `using namespace dtensor`: everyday words are left to it.
#include "dtensor/dtensor.h"
#include "dtensor/nn/layers.h"
#include "dtensor/nn/optim/adamw.h"
#include "dtensor/nn/optim/clip.h"
#include "dtensor/nn/optim/loss_scaler.h"
#include "dtensor/nn/optim/lr_schedule.h"
#include "dtensor/nn/optim/sgd.h"
#include "dtensor/nn/transformer.h"
#include "dtensor/parallel_plans/context_parallel.h"
#include "dtensor/parallel_plans/parallel_plan.h"
#include "dtensor/parallel_plans/transformer_plan.h"

using namespace dtensor;  // NOLINT(build/namespaces): what is tested

struct Assignment {};
struct Caller {};
struct Choose {};
struct Event {};
struct Execute {};
struct Factor {};
struct Follow {};
struct Init {};
struct Linearity {};
struct Link {};
struct Match {};
struct Order {};
struct Piece {};
struct PlanOptions {};
struct Run {};
struct Solve {};
struct Split {};
struct Style {};
struct Traffic {};
struct Transfer {};
struct Work {};

template <typename... Types>
constexpr int Count(Types...) {
  return sizeof...(Types);
}

// Found by name lookup, in which dtensor's functions and types take part.
static_assert(Count(Assignment(), Caller(), Choose(), Event(), Execute(), Factor(), Follow(),
                    Init(), Linearity(), Link(), Match(), Order(), Piece(), PlanOptions(), Run(),
                    Solve(), Split(), Style(), Traffic(), Transfer(), Work()) == 21);

int main() { return 0; }
