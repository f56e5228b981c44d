// ConfigReader: the members of a model's configuration, a JSON object as Hugging Face writes it.
#ifndef DTENSOR_NN_CONFIG_READER_H_
#define DTENSOR_NN_CONFIG_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dtensor/nn/gelu_mlp.h"

namespace dtensor::internal {

// A member that is missing or null has the value that the caller names, which is that of Hugging
// Face's class: it may leave such out when it writes. The first thing that is wrong is kept, and
// what was read then means nothing; so a configuration is read from top to bottom, and status()
// asked once.
//
//   DT_ASSIGN_OR_RETURN(ConfigReader json, ConfigReader::Parse("Gpt2Config", text));
//   json.OnlyModel("gpt2");
//   config.dim = json.Size("n_embd", 768);
//   json.OnlyFlag("add_cross_attention", false, "there is no encoder to attend to");
//   DT_RETURN_IF_ERROR(json.status());
//
// Members that nobody asks for are passed over. One of a member that is an object goes by both
// names: "rope_parameters.rope_theta".
class ConfigReader {
 public:
  // Of sizes: two of them make a tensor, whatever they are.
  static constexpr int64_t kMaxSize = int64_t{1} << 27;
  // Of layers: each is made, also where nothing has memory.
  static constexpr int64_t kMaxLayers = 4096;

  // `reader` begins the text of errors. Errors: kInvalidArgument for text that is no JSON object,
  // one that has a member twice, and one that is nested more than 32 deep.
  static absl::StatusOr<ConfigReader> Parse(absl::string_view reader, absl::string_view text);

  // Of the features of one head, which heads multiply.
  static constexpr int64_t kMaxHeadDim = int64_t{1} << 20;

  // Whole, from 1 to `most`.
  int64_t Size(absl::string_view name, int64_t if_missing, int64_t most = kMaxSize);
  int64_t Count(absl::string_view name, int64_t if_missing);  // whole, from 0 to kMaxSize
  // Finite and at least 0.
  double Number(absl::string_view name, double if_missing);
  double Probability(absl::string_view name, double if_missing);  // 0 <= p < 1
  bool Flag(absl::string_view name, bool if_missing);
  std::string Text(absl::string_view name, absl::string_view if_missing);
  // A name of gelu_mlp.h.
  GeluForm Gelu(absl::string_view name, absl::string_view if_missing);
  bool Has(absl::string_view name) const;     // it is there, and not null
  bool IsNull(absl::string_view name) const;  // it is there, and null
  bool HasObject(absl::string_view name);     // the same; refuses what is no object

  // A configuration of a model of this type, or of none, whose weights are not quantized. To be
  // asked first: another model's members mean other things.
  void OnlyModel(absl::string_view type);
  // Refuse what the library has no implementation of: any value of the member but `only`, which is
  // what a missing one means. `why` is a clause.
  void OnlyFlag(absl::string_view name, bool only, absl::string_view why);
  void OnlyText(absl::string_view name, absl::string_view only, absl::string_view why);
  void Never(absl::string_view name, absl::string_view why);  // any value but null
  // The same in the caller's words.
  void Refuse(absl::string_view name, absl::string_view why);

  const absl::Status& status() const { return status_; }

 private:
  friend class ConfigParser;
  enum class Nested { kObject, kList };
  // Numbers that are whole and fit are int64_t.
  using Value = std::variant<std::nullptr_t, bool, int64_t, double, std::string, Nested>;

  explicit ConfigReader(absl::string_view reader) : reader_(reader) {}
  const Value* Find(absl::string_view name) const;  // null: missing, or null
  static std::string TextOf(const Value& value);
  // Reads a member of one type.
  template <typename T>
  T Get(absl::string_view name, T if_missing, absl::string_view wanted);

  std::string reader_;
  std::map<std::string, Value, std::less<>> members_;
  absl::Status status_;
};

// A model's sizes, with their names. Errors: kInvalidArgument, beginning with `model`, for one that
// is below 1; and for a divisor that is none.
using NamedSize = std::pair<absl::string_view, int64_t>;
absl::Status CheckSizes(absl::string_view model, absl::Span<const NamedSize> sizes);
absl::Status CheckDivides(absl::string_view model, NamedSize divisor, NamedSize size);

}  // namespace dtensor::internal

#endif  // DTENSOR_NN_CONFIG_READER_H_
