// Which graphs the fake cuDNN has kernels for: attention's, by the operations in their order.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dtensor/tools/cuda/fake/cudnn.h"

namespace dtensor::fake_cuda {
namespace {

using Kind = CudnnOperation::Kind;

// A letter for each operation. A causal mask adds kMask, heads that share keys an 'S' behind the
// products that are gradients of keys.
constexpr char kMask[] = "iigs";

char LetterOf(const CudnnOperation& op) {
  if (op.kind == Kind::kProduct) return 'P';
  if (op.kind == Kind::kReshape) return 'R';
  if (op.kind == Kind::kReduction) return op.mode == CUDNN_REDUCE_TENSOR_MAX ? 'X' : 'S';
  switch (op.mode) {
    case CUDNN_POINTWISE_MUL:
      return '*';
    case CUDNN_POINTWISE_SUB:
      return '-';
    case CUDNN_POINTWISE_ADD:
      return '+';
    case CUDNN_POINTWISE_DIV:
      return '/';
    case CUDNN_POINTWISE_EXP:
      return 'e';
    case CUDNN_POINTWISE_LOG:
      return 'l';
    case CUDNN_POINTWISE_GEN_INDEX:
      return 'i';
    case CUDNN_POINTWISE_CMP_GE:
      return 'g';
    case CUDNN_POINTWISE_BINARY_SELECT:
      return 's';
    default:
      return '?';
  }
}

std::string LettersOf(const CudnnGraph& graph) {
  std::string letters;
  for (const CudnnOperation& op : graph.operations) letters += LetterOf(op);
  return letters;
}

bool IsForward(const std::string& letters) {
  const std::string begin = "P*", end = "X-eSl+/P";
  return letters == begin + end || letters == begin + kMask + end;
}
bool IsBackward(const std::string& letters) {
  for (const std::string& mask : {std::string(), std::string(kMask)}) {
    for (const std::string& keys : {std::string("P"), std::string("PS")}) {
      if (letters == "*S*P*-" + mask + "eR" + keys + "P-**R" + keys + "RP") return true;
    }
  }
  return false;
}

bool IsNarrow(const CudnnTensor& x) {
  return x.type == CUDNN_DATA_BFLOAT16 || x.type == CUDNN_DATA_HALF;
}

// Rows of features: one stride of 1, the others whole 16 bytes.
bool HasRows(const CudnnTensor& x) {
  const int64_t unit = IsNarrow(x) ? 8 : 4;
  int adjacent = 0;
  for (const int64_t stride : x.strides) {
    adjacent += stride == 1 ? 1 : 0;
    if (stride != 1 && (stride <= 0 || stride % unit != 0)) return false;
  }
  return adjacent == 1;
}
bool IsStatistic(const CudnnTensor& x) { return x.dims[3] == 1; }

// DTENSOR_FAKE_CUDNN=none: what another version may do.
bool RefusesAll() {
  const char* const said = std::getenv("DTENSOR_FAKE_CUDNN");
  return said != nullptr && std::strcmp(said, "none") == 0;
}

std::string WhyNotOperand(const CudnnTensor& x, cudnnDataType_t type) {
  if (x.is_scalar) return "";
  if (IsStatistic(x)) return x.type == CUDNN_DATA_FLOAT ? "" : "statistics are f32";
  if (x.type != type) return "operands are of one type";
  return HasRows(x) ? "" : "an operand's strides";
}

}  // namespace

std::string WhyNotSupported(const CudnnGraph& graph) {
  const std::string letters = LettersOf(graph);
  if (RefusesAll()) return "DTENSOR_FAKE_CUDNN=none";
  if (!IsForward(letters) && !IsBackward(letters)) return "no such pattern";
  const auto product = std::find_if(graph.operations.begin(), graph.operations.end(),
                                    [](const auto& op) { return op.kind == Kind::kProduct; });
  const CudnnTensor& q = product->x;
  if (!IsNarrow(q)) return "operands are of 16 bits";
  if (q.dims[3] % 8 != 0 || q.dims[3] > 128) return "features";
  for (const auto& [id, x] : graph.Inputs()) {
    if (std::string why = WhyNotOperand(x, q.type); !why.empty()) return why;
  }
  for (const CudnnOperation& op : graph.operations) {
    if (op.y.is_virtual || IsStatistic(op.y)) continue;
    if (!HasRows(op.y)) return "a result's strides";
    // For f32 the real one has engines, and wrong results.
    if (op.y.type != q.type) return "a result's type";
  }
  return "";
}

// Backward has all scores in memory, in 16 bits.
int64_t CudnnWorkspaceBytes(const CudnnGraph& graph) {
  if (IsForward(LettersOf(graph))) return 1024;
  for (const CudnnOperation& op : graph.operations) {
    if (op.kind == Kind::kProduct) return 2 * op.y.elements();
  }
  return 0;
}

}  // namespace dtensor::fake_cuda
