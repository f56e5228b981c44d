#include "dtensor/runtime/kernels/cuda/cudnn/attention_graphs.h"

#include <cstdint>

namespace dtensor::kernels::cuda {
namespace {

using Node = Graph::Node;

// One graph's tensors and the parts that both directions have.
class Builder {
 public:
  explicit Builder(const AttentionKey& key)
      : key_(key),
        scores_({key.batch, key.q_heads, key.q_rows, key.keys}),
        stat_({key.batch, key.q_heads, key.q_rows, 1}) {}

  Graph Forward() &&;
  Graph Backward() &&;

 private:
  // A tensor of the heads' rows.
  Node Rows(int64_t id, int64_t heads, int64_t rows, const AttentionStrides& s) {
    return graph_.Memory(id, key_.dtype, {key_.batch, heads, rows, key_.dim},
                         {s[0], s[1], s[2], 1});
  }
  Node Queries(int64_t id, const AttentionStrides& s) {
    return Rows(id, key_.q_heads, key_.q_rows, s);
  }
  Node Keys(int64_t id, const AttentionStrides& s) { return Rows(id, key_.kv_heads, key_.keys, s); }
  Node TransposedKeys(int64_t id, const AttentionStrides& s) {
    return graph_.Memory(id, key_.dtype, {key_.batch, key_.kv_heads, key_.dim, key_.keys},
                         {s[0], s[1], 1, s[2]});
  }
  Node Statistic(int64_t id) { return graph_.Memory(id, DType::kF32, stat_, RowMajor(stat_)); }
  Node Scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) { return graph_.Virtual(type, scores_); }
  Node Stat() { return graph_.Virtual(CUDNN_DATA_FLOAT, stat_); }

  Node Mapped(cudnnPointwiseMode_t f, Node x, Node y) {
    graph_.Map(f, x, y);
    return y;
  }
  Node Mapped(cudnnPointwiseMode_t f, Node x, Node b, Node y) {
    graph_.Map(f, x, b, y);
    return y;
  }
  Node Reduced(cudnnReduceTensorOp_t f, Node x, Node y) {
    graph_.Reduce(f, x, y);
    return y;
  }

  Node ScaledScores(Node q, Node k, Node scale) {
    const Node scores = Scores();
    graph_.Multiply(q, k, scores);
    return Mapped(CUDNN_POINTWISE_MUL, scores, scale, Scores());
  }
  // With a causal mask, sets scores to -inf if the column is after the row.
  Node Masked(Node scores) {
    if (!key_.causal) return scores;
    const Node hidden = graph_.Scalar(kIdHidden), rows = Scores(CUDNN_DATA_INT32);
    const Node columns = Scores(CUDNN_DATA_INT32), sees = Scores(CUDNN_DATA_BOOLEAN);
    const Node masked = Scores();
    graph_.Index(scores, 2, rows);
    graph_.Index(scores, 3, columns);
    graph_.Map(CUDNN_POINTWISE_CMP_GE, rows, columns, sees);
    graph_.Select(scores, hidden, sees, masked);
    return masked;
  }

  // For the products over queries: scores in the operands' type, transposed.
  Node TransposedScores(Node scores) {
    const Node transposed = graph_.Virtual(
        CudnnType(key_.dtype), {key_.batch, key_.q_heads, key_.keys, key_.q_rows},
        {key_.q_heads * key_.q_rows * key_.keys, key_.q_rows * key_.keys, 1, key_.keys});
    graph_.Reinterpret(scores, transposed);
    return transposed;
  }
  // A gradient of keys: the gradients by each query head, summed over the heads of a group.
  void KeyGradient(Node scores, Node rows, Node gradient) {
    const Node transposed = TransposedScores(scores);
    if (key_.q_heads == key_.kv_heads) {
      graph_.Multiply(transposed, rows, gradient);
      return;
    }
    const Node of_heads =
        graph_.Virtual(CudnnType(key_.dtype), {key_.batch, key_.q_heads, key_.keys, key_.dim});
    graph_.Multiply(transposed, rows, of_heads);
    graph_.Reduce(CUDNN_REDUCE_TENSOR_ADD, of_heads, gradient);
  }

  const AttentionKey& key_;
  const Dims4 scores_, stat_;
  Graph graph_;
};

Graph Builder::Forward() && {
  const Node scale = graph_.Scalar(kIdScale);
  const Node q = Queries(kIdQ, key_.q), k = TransposedKeys(kIdK, key_.k);
  const Node v = Keys(kIdV, key_.v);
  const Node scores = Masked(ScaledScores(q, k, scale));
  const Node max = Reduced(CUDNN_REDUCE_TENSOR_MAX, scores, Stat());
  const Node shifted = Mapped(CUDNN_POINTWISE_SUB, scores, max, Scores());
  const Node weights = Mapped(CUDNN_POINTWISE_EXP, shifted, Scores());
  const Node sum = Reduced(CUDNN_REDUCE_TENSOR_ADD, weights, Stat());
  const Node log_sum = Mapped(CUDNN_POINTWISE_LOG, sum, Stat());
  Mapped(CUDNN_POINTWISE_ADD, max, log_sum, Statistic(kIdLse));
  const Node p = Mapped(CUDNN_POINTWISE_DIV, weights, sum, Scores(CudnnType(key_.dtype)));
  graph_.Multiply(p, v, Queries(kIdO, key_.o));
  return std::move(graph_);
}

Graph Builder::Backward() && {
  const Node scale = graph_.Scalar(kIdScale), one = graph_.Scalar(kIdOne);
  const Node q = Queries(kIdQ, key_.q), k = TransposedKeys(kIdK, key_.k);
  const Node v = TransposedKeys(kIdV, key_.v), o = Queries(kIdO, key_.o);
  const Node dout = Queries(kIdDout, key_.dout), lse = Statistic(kIdLse);
  const Dims4 rows = {key_.batch, key_.q_heads, key_.q_rows, key_.dim};

  // delta = rowsum(do * o)
  const Node product = Mapped(CUDNN_POINTWISE_MUL, dout, o, graph_.Virtual(CUDNN_DATA_FLOAT, rows));
  const Node sum = Reduced(CUDNN_REDUCE_TENSOR_ADD, product, Stat());
  const Node delta = Mapped(CUDNN_POINTWISE_MUL, sum, one, Statistic(kIdDelta));

  // p = exp(scale q k^T - lse), dv = p^T do
  const Node scores = Masked(Mapped(CUDNN_POINTWISE_SUB, ScaledScores(q, k, scale), lse, Scores()));
  const Node p = Mapped(CUDNN_POINTWISE_EXP, scores, Scores());
  KeyGradient(p, dout, Keys(kIdDv, key_.dv));

  // ds = scale p (do v^T - delta), dk = ds^T q, dq = ds k
  const Node dp = Scores();
  graph_.Multiply(dout, v, dp);
  const Node centered = Mapped(CUDNN_POINTWISE_SUB, dp, delta, Scores());
  const Node weighted = Mapped(CUDNN_POINTWISE_MUL, centered, p, Scores());
  const Node ds = Mapped(CUDNN_POINTWISE_MUL, weighted, scale, Scores());
  KeyGradient(ds, q, Keys(kIdDk, key_.dk));
  const Node straight =
      graph_.Virtual(CUDNN_DATA_FLOAT, {key_.batch, key_.kv_heads, key_.keys, key_.dim},
                     {key_.k[0], key_.k[1], key_.k[2], 1});
  graph_.Reinterpret(k, straight);
  // dq is this product itself. With a sum in memory in between, cuDNN might add in any order.
  graph_.Multiply(ds, straight, Queries(kIdDq, key_.dq));
  return std::move(graph_);
}

}  // namespace

Graph AttentionForwardGraph(const AttentionKey& key) { return Builder(key).Forward(); }
Graph AttentionBackwardGraph(const AttentionKey& key) { return Builder(key).Backward(); }

}  // namespace dtensor::kernels::cuda
