// What a program of views, writes and backward passes means: each root owns its elements, a view
// names some of them and is looked up anew at each reading, everything else is a root of its own.
// One process, dense, in double. For random_writes_test.cc.
#ifndef DTENSOR_TESTS_WRITE_REFERENCE_H_
#define DTENSOR_TESTS_WRITE_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "dtensor/runtime/core/dims.h"

namespace dtensor::write_reference {

using Values = std::vector<double>;

// What aliases share.
struct Root {
  Values values;
  int writes = 0;
};

// A leaf or a recorded operator.
struct Node {
  int number = 0;  // in order of creation
  // A leaf's.
  Values gradient;
  bool has_gradient = false;
  // An operator's. An input that wants no gradient is null.
  std::vector<std::shared_ptr<Node>> inputs;
  std::function<Values(int input, const Values& result_gradient)> backward;
  struct Saved {
    std::shared_ptr<Root> root;
    int writes;
  };
  std::vector<Saved> saved;
  bool consumed = false;
};

struct Ref {
  std::shared_ptr<Root> root;
  std::vector<int> at;  // in root, of each element, row-major
  Dims shape;
  std::shared_ptr<Node> node;  // where its gradient goes, or null

  Values Read() const;
  void Write(const std::function<double(double, size_t)>& fn);  // of the old value and the index
};

// Creates references; `recording` as in a Context.
class Reference {
 public:
  bool recording = true;

  Ref Make(Dims shape, Values values) const;
  void RequireGradient(Ref& leaf);
  Ref Detach(const Ref& x) const;
  Ref Value(const Ref& x) const;   // a redistribution
  Ref Itself(const Ref& x) const;  // a view of all, as it is: no operator
  // The elements `from` of x, in this order, as `shape`; an alias, or a value.
  Ref View(const Ref& x, Dims shape, std::vector<int> from, bool alias);
  Ref Reshape(const Ref& x, const Dims& shape, bool alias);
  Ref Transpose(const Ref& x, int dim0, int dim1, bool alias);
  Ref Slice(const Ref& x, int dim, int64_t begin, int64_t end, bool alias);
  Ref Add(const Ref& a, const Ref& b);
  Ref Mul(const Ref& a, const Ref& b);
  Ref Scale(const Ref& x, double factor);
  Ref MatMul(const Ref& a, const Ref& b);
  Ref SumAll(const Ref& x);

 private:
  Ref Record(Ref result, std::vector<const Ref*> inputs, std::vector<const Ref*> saved,
             std::function<Values(int, const Values&)> backward);
  int nodes_ = 0;
};

// What may, and what must, keep Backward from running.
struct Obstacles {
  bool written = false;   // something saved, or what it came from, was written to
  bool consumed = false;  // an operator was walked before
};
Obstacles LookForObstacles(const Ref& loss);
void Backward(const Ref& loss);

}  // namespace dtensor::write_reference

#endif  // DTENSOR_TESTS_WRITE_REFERENCE_H_
