// Compares SmolLM2-135M on a mesh with PyTorch's results (convert_smollm2.py): logits of a prompt,
// 200 tokens of greedy text, and the tokenizer. Usage: smollm2_check MESH; the exit status is 0 if
// all agree.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/examples/generate/model.h"
#include "dtensor/generation/generate.h"
#include "dtensor/nn/kv_cache.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/io/read_file.h"
#include "dtensor/runtime/io/safetensors/safetensors_reader.h"
#include "dtensor/tensor/join_world.h"
#include "nlohmann/json.hpp"

namespace dtensor::generate {
namespace {

template <typename T>
absl::StatusOr<std::vector<T>> Stored(const SafetensorsReader& file, const char* name) {
  DT_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

absl::Status CheckTokenizer(const ModelFiles& files) {
  DT_ASSIGN_OR_RETURN(const std::string text,
                      ReadFile(absl::StrCat(files.folder, "/texts.json"), int64_t{1} << 20));
  for (const auto& one : nlohmann::json::parse(text)) {
    const std::string words = one["text"];
    const std::vector<int64_t> ids = files.tokenizer.Encode(words);
    if (ids != one["ids"].get<std::vector<int64_t>>()) {
      return absl::InternalError(absl::StrCat("other tokens of '", words, "'"));
    }
    std::string decoded;
    for (const int64_t id : ids) decoded += files.tokenizer.Decode(id);
    if (decoded != words)
      return absl::InternalError(absl::StrCat("'", words, "' does not come back"));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(Context& context, const ModelFiles& files, const DeviceMesh& mesh) {
  DT_ASSIGN_OR_RETURN(const SafetensorsReader file, SafetensorsReader::Open(absl::StrCat(
                                                        files.folder, "/reference.safetensors")));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, Stored<int64_t>(file, "ids"));
  DT_ASSIGN_OR_RETURN(const std::vector<float> wanted, Stored<float>(file, "logits"));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> greedy, Stored<int64_t>(file, "greedy"));
  DT_ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(context, files, mesh, DType::kF32));
  const NoGrad no_grad(context);
  const int64_t size = static_cast<int64_t>(ids.size());
  const TensorOr logits = (*loaded.model)(
      Distribute<int64_t>(context, Layout::Replicated(loaded.mesh, 2), {1, size}, ids));
  DT_RETURN_IF_ERROR(logits.status());
  DT_ASSIGN_OR_RETURN(const std::vector<float> got, ToGlobal<float>(*logits));
  double difference = 0, squares = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - wanted[i], 2);
    squares += std::pow(static_cast<double>(wanted[i]), 2);
  }
  const double error = std::sqrt(difference / squares);
  DT_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(*loaded.model, {.capacity = size + 200}));
  DT_ASSIGN_OR_RETURN(const auto texts,
                      Generate(*cache, context, loaded.mesh, {ids}, {.tokens = 200}));
  size_t same = 0;
  while (same < greedy.size() && texts[0][same] == greedy[same]) ++same;
  if (context.rank() == 0) {
    std::printf("%s: logits differ by %.2e of their RMS; of 200 greedy tokens %zu are equal\n",
                mesh.ToString().c_str(), error, same);
  }
  if (error <= 1e-5 && same == greedy.size()) return absl::OkStatus();
  return absl::InternalError("they differ");
}

absl::Status Check(const char* mesh_text) {
  DT_ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Parse(mesh_text));
  DT_ASSIGN_OR_RETURN(const ModelFiles files, ReadModelFiles(DefaultModelFolder()));
  DT_RETURN_IF_ERROR(CheckTokenizer(files));
  return RunWorld(mesh.size(), [&](Context& context) { return CheckRank(context, files, mesh); });
}

}  // namespace
}  // namespace dtensor::generate

int main(int argc, char** argv) {
  const absl::Status status = dtensor::generate::Check(argc > 1 ? argv[1] : "tp=1");
  if (!status.ok()) std::fprintf(stderr, "smollm2_check: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
