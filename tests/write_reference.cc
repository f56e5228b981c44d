#include "tests/write_reference.h"

#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace dtensor::write_reference {
namespace {

std::vector<int> Counting(size_t n) {
  std::vector<int> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Operators that lead to `node`, itself included; the last created first.
std::map<int, Node*, std::greater<int>> Reachable(const std::shared_ptr<Node>& node) {
  std::map<int, Node*, std::greater<int>> found;
  std::vector<Node*> open = {node.get()};
  while (!open.empty()) {
    Node* const next = open.back();
    open.pop_back();
    if (next == nullptr || !found.emplace(next->number, next).second) continue;
    for (const auto& input : next->inputs) open.push_back(input.get());
  }
  return found;
}

void AddTo(Values& sum, const Values& more) {
  if (sum.empty()) sum.resize(more.size());
  for (size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

}  // namespace

Values Ref::Read() const {
  Values values;
  for (int i : at) values.push_back(root->values[i]);
  return values;
}

void Ref::Write(const std::function<double(double, size_t)>& fn) {
  for (size_t i = 0; i < at.size(); ++i) root->values[at[i]] = fn(root->values[at[i]], i);
  ++root->writes;
}

Ref Reference::Make(Dims shape, Values values) const {
  Ref ref;
  ref.at = Counting(values.size());
  ref.root = std::make_shared<Root>(Root{std::move(values)});
  ref.shape = std::move(shape);
  return ref;
}

void Reference::RequireGradient(Ref& leaf) {
  leaf.node = std::make_shared<Node>();
  leaf.node->number = ++nodes_;
}

Ref Reference::Detach(const Ref& x) const {
  Ref detached = x;
  detached.node = nullptr;
  return detached;
}

Ref Reference::Value(const Ref& x) const {
  Ref value = Make(x.shape, x.Read());
  if (recording) value.node = x.node;
  return value;
}

Ref Reference::Itself(const Ref& x) const { return recording ? x : Detach(x); }

Ref Reference::Record(Ref result, std::vector<const Ref*> inputs, std::vector<const Ref*> saved,
                      std::function<Values(int, const Values&)> backward) {
  bool wanted = false;
  for (const Ref* input : inputs) wanted |= input->node != nullptr;
  if (!recording || !wanted) return result;
  result.node = std::make_shared<Node>();
  result.node->number = ++nodes_;
  for (const Ref* input : inputs) result.node->inputs.push_back(input->node);
  for (const Ref* kept : saved) result.node->saved.push_back({kept->root, kept->root->writes});
  result.node->backward = std::move(backward);
  return result;
}

Ref Reference::View(const Ref& x, Dims shape, std::vector<int> from, bool alias) {
  Ref view;
  view.root = x.root;
  for (int i : from) view.at.push_back(x.at[i]);
  view.shape = std::move(shape);
  if (!alias) view = Make(view.shape, view.Read());
  const size_t elements = x.at.size();
  return Record(std::move(view), {&x}, {}, [from, elements](int, const Values& dy) {
    Values dx(elements);
    for (size_t i = 0; i < from.size(); ++i) dx[from[i]] += dy[i];
    return dx;
  });
}

Ref Reference::Reshape(const Ref& x, const Dims& shape, bool alias) {
  return View(x, shape, Counting(x.at.size()), alias);
}

Ref Reference::Transpose(const Ref& x, int dim0, int dim1, bool alias) {
  Dims shape = x.shape, strides = RowMajorStrides(x.shape);
  std::swap(shape[dim0], shape[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  std::vector<int> from(x.at.size());
  for (size_t i = 0; i < from.size(); ++i) {
    int64_t left = i;
    for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
      from[i] += left % shape[d] * strides[d];
      left /= shape[d];
    }
  }
  return View(x, shape, from, alias);
}

Ref Reference::Slice(const Ref& x, int dim, int64_t begin, int64_t end, bool alias) {
  const int64_t inner = RowMajorStrides(x.shape)[dim];
  std::vector<int> from;
  for (int i = 0; i < static_cast<int>(x.at.size()); ++i) {
    const int64_t index = i / inner % x.shape[dim];
    if (index >= begin && index < end) from.push_back(i);
  }
  Dims shape = x.shape;
  shape[dim] = end - begin;
  return View(x, shape, from, alias);
}

Ref Reference::Add(const Ref& a, const Ref& b) {
  Values sum = a.Read();
  AddTo(sum, b.Read());
  return Record(Make(a.shape, sum), {&a, &b}, {}, [](int, const Values& dy) { return dy; });
}

Ref Reference::Mul(const Ref& a, const Ref& b) {
  const Values factors[] = {a.Read(), b.Read()};
  const auto times = [](Values x, const Values& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] *= y[i];
    return x;
  };
  return Record(Make(a.shape, times(factors[0], factors[1])), {&a, &b}, {&a, &b},
                [x = factors[0], y = factors[1], times](int input, const Values& dy) {
                  return times(dy, input == 0 ? y : x);
                });
}

Ref Reference::Scale(const Ref& x, double factor) {
  const auto times = [factor](Values values) {
    for (double& value : values) value *= factor;
    return values;
  };
  return Record(Make(x.shape, times(x.Read())), {&x}, {},
                [times](int, const Values& dy) { return times(dy); });
}

Ref Reference::MatMul(const Ref& a, const Ref& b) {
  const int64_t m = a.shape[0], k = a.shape[1], n = b.shape[1];
  const Values x = a.Read(), y = b.Read();
  Values product(m * n);
  for (int64_t i = 0; i < m * k * n; ++i) {
    const int64_t row = i / (k * n), inner = i / n % k, column = i % n;
    product[row * n + column] += x[row * k + inner] * y[inner * n + column];
  }
  return Record(Make({m, n}, product), {&a, &b}, {&a, &b},
                [m, k, n, x, y](int input, const Values& dy) {
                  Values gradient(input == 0 ? m * k : k * n);
                  for (int64_t i = 0; i < m * k * n; ++i) {
                    const int64_t row = i / (k * n), inner = i / n % k, column = i % n;
                    const double d = dy[row * n + column];
                    if (input == 0) gradient[row * k + inner] += d * y[inner * n + column];
                    if (input == 1) gradient[inner * n + column] += d * x[row * k + inner];
                  }
                  return gradient;
                });
}

Ref Reference::SumAll(const Ref& x) {
  const Values values = x.Read();
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return Record(Make({}, {sum}), {&x}, {},
                [n = values.size()](int, const Values& dy) { return Values(n, dy[0]); });
}

Obstacles LookForObstacles(const Ref& loss) {
  Obstacles found;
  for (const auto& [number, node] : Reachable(loss.node)) {
    found.consumed |= node->consumed;
    for (const Node::Saved& saved : node->saved)
      found.written |= saved.root->writes != saved.writes;
  }
  return found;
}

void Backward(const Ref& loss) {
  std::map<const Node*, Values> gradients = {{loss.node.get(), {1}}};
  for (const auto& [number, node] : Reachable(loss.node)) {
    const Values& gradient = gradients[node];
    if (node->backward == nullptr) {
      AddTo(node->gradient, gradient);
      node->has_gradient = true;
      continue;
    }
    node->consumed = true;
    for (size_t i = 0; i < node->inputs.size(); ++i) {
      if (node->inputs[i] == nullptr) continue;
      AddTo(gradients[node->inputs[i].get()], node->backward(static_cast<int>(i), gradient));
    }
  }
}

}  // namespace dtensor::write_reference
