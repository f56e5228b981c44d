#include "dtensor/runtime/device/host/onednn_gemm.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dnnl.h"
#include "dtensor/runtime/core/hash_map.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/device/gemm_operand.h"
#include "dtensor/runtime/device/host/scratch.h"

// From the OpenMP run-time library. Its header belongs to the compiler, which may not have one.
extern "C" int omp_get_max_threads();
extern "C" void omp_set_num_threads(int);

namespace dtensor {
namespace {

// Enough for every shape of a training step. If a program's shapes keep changing, the cache is
// cleared now and then.
constexpr size_t kMostPrimitives = 1024;

// Restores the setting: the thread may belong to a program that uses OpenMP itself.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  const int before_;
};

// Owns an object of oneDNN's C API.
template <typename T, dnnl_status_t (*destroy)(T*)>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() {
    if (object_ != nullptr) destroy(object_);
  }
  T* get() const { return object_; }
  T** out() { return &object_; }

 private:
  T* object_ = nullptr;
};

using Engine = Owned<dnnl_engine, dnnl_engine_destroy>;
using Stream = Owned<dnnl_stream, dnnl_stream_destroy>;
using Memory = Owned<dnnl_memory, dnnl_memory_destroy>;
using Attributes = Owned<dnnl_primitive_attr, dnnl_primitive_attr_destroy>;
using PostOps = Owned<dnnl_post_ops, dnnl_post_ops_destroy>;
using Description = Owned<dnnl_primitive_desc, dnnl_primitive_desc_destroy>;
using Code = Owned<dnnl_primitive, dnnl_primitive_destroy>;

absl::Status ToStatus(dnnl_status_t status, const char* call) {
  if (status == dnnl_success) return absl::OkStatus();
  const std::string message = absl::StrCat("oneDNN's ", call, " returned status ", int{status});
  return status == dnnl_out_of_memory ? absl::ResourceExhaustedError(message)
                                      : absl::InternalError(message);
}

#define DT_DNNL(function, ...) DT_RETURN_IF_ERROR(ToStatus(function(__VA_ARGS__), #function))

// What a primitive depends on.
struct Key {
  DType dtype, out_dtype;
  bool accumulate;
  int64_t batch, m, n, k;
  OperandStrides a, b, c;
  friend bool operator==(const Key&, const Key&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.dtype, key.out_dtype, key.accumulate, key.batch, key.m,
                      key.n, key.k, key.a, key.b, key.c);
  }
};

GemmMatrix OneOfBatch(const GemmMatrix& x, int64_t i, DType dtype) {
  char* const data = static_cast<char*>(x.data) + i * x.batch_stride * SizeOf(dtype);
  return {data, x.row_stride, x.col_stride, 0};
}

GemmProblem OneOfBatch(GemmProblem p, int64_t i) {
  p.batch = 1;
  p.a = OneOfBatch(p.a, i, p.dtype);
  p.b = OneOfBatch(p.b, i, p.dtype);
  p.c = OneOfBatch(p.c, i, p.out_dtype);
  return p;
}

GemmMatrix Transposed(const GemmMatrix& x) {
  return {x.data, x.col_stride, x.row_stride, x.batch_stride};
}

// oneDNN is twice as fast at a row times a matrix as at a matrix times a column.
GemmProblem WithRowForColumn(const GemmProblem& p) {
  if (p.n != 1 || p.m == 1 || p.c.row_stride != 1) return p;
  GemmProblem row = p;
  row.m = 1;
  row.n = p.m;
  row.a = Transposed(p.b);
  row.b = Transposed(p.a);
  row.c = {p.c.data, p.m, 1, p.c.batch_stride};
  return row;
}

std::optional<Key> MakeKey(const GemmProblem& p) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kBF16) return std::nullopt;
  const auto a = StridesOf(p.a, p.m, p.k, p.batch);
  const auto b = StridesOf(p.b, p.k, p.n, p.batch);
  const auto c = StridesOf(p.c, p.m, p.n, p.batch);
  if (!a || !b || !c) return std::nullopt;
  // oneDNN does not broadcast both operands.
  if (p.batch > 1 && a->batch == 0 && b->batch == 0) return std::nullopt;
  return Key{p.dtype, p.out_dtype, p.accumulate, p.batch, p.m, p.n, p.k, *a, *b, *c};
}

// Null if oneDNN refuses the strides, as of matrices that interleave in an unusual way.
std::optional<dnnl_memory_desc_t> Describe(const Key& key, DType dtype, const OperandStrides& s,
                                           int64_t rows, int64_t columns) {
  // A batch stride of 0 becomes a batch of one, which oneDNN broadcasts.
  const dnnl_dims_t batched = {s.batch == 0 ? 1 : key.batch, rows, columns};
  const dnnl_dims_t batched_strides = {s.batch == 0 ? rows * columns : s.batch, s.row, s.column};
  const bool flat = key.batch == 1;
  dnnl_memory_desc_t result;
  const dnnl_status_t status = dnnl_memory_desc_init_by_strides(
      &result, flat ? 2 : 3, batched + flat, dtype == DType::kF32 ? dnnl_f32 : dnnl_bf16,
      batched_strides + flat);
  if (status != dnnl_success) return std::nullopt;
  return result;
}

absl::StatusOr<Attributes> MakeAttributes(bool accumulate) {
  Attributes attributes;
  DT_DNNL(dnnl_primitive_attr_create, attributes.out());
  DT_DNNL(dnnl_primitive_attr_set_scratchpad_mode, attributes.get(), dnnl_scratchpad_mode_user);
  if (!accumulate) return attributes;
  PostOps post_ops;
  DT_DNNL(dnnl_post_ops_create, post_ops.out());
  DT_DNNL(dnnl_post_ops_append_sum, post_ops.get(), 1.0f);
  DT_DNNL(dnnl_primitive_attr_set_post_ops, attributes.get(), post_ops.get());
  return attributes;
}

// oneDNN's name for its code: "brg:avx512_core", "gemm:jit", "ref:any".
absl::string_view NameOf(const Description& description) {
  const char* name = "";
  dnnl_primitive_desc_query(description.get(), dnnl_query_impl_info_str, 0, &name);
  return name;
}

// oneDNN (2.6) does not survive a failed allocation while it generates code: it writes through
// null, and exceptions leave locks held for which others wait for ever. So this throws first,
// unless more memory is available than oneDNN needs. Another thread may still take that memory.
void AskForMemory() {
  constexpr size_t kBytes = size_t{4} << 20;
  ::operator delete(::operator new(kBytes));
}

class Primitive {
 public:
  static absl::StatusOr<Primitive> Make(const Key& key, dnnl_engine_t engine) {
    AskForMemory();
    const auto a = Describe(key, key.dtype, key.a, key.m, key.k);
    const auto b = Describe(key, key.dtype, key.b, key.k, key.n);
    const auto c = Describe(key, key.out_dtype, key.c, key.m, key.n);
    if (!a || !b || !c) return Primitive();
    dnnl_matmul_desc_t matmul;
    DT_DNNL(dnnl_matmul_desc_init, &matmul, &*a, &*b, nullptr, &*c);
    DT_ASSIGN_OR_RETURN(const Attributes attributes, MakeAttributes(key.accumulate));
    Description description;
    const dnnl_status_t status =
        dnnl_primitive_desc_create(description.out(), &matmul, attributes.get(), engine, nullptr);
    Primitive result;
    if (status == dnnl_unimplemented) return result;
    DT_RETURN_IF_ERROR(ToStatus(status, "dnnl_primitive_desc_create"));
    const absl::string_view name = NameOf(description);
    if (absl::StartsWith(name, "ref")) return result;  // slower than ours
    // For an odd number of terms it uses A's last one again, times 0: NaN, if that is infinite.
    const bool is_odd = key.dtype == DType::kBF16 && key.k % 2 == 1;
    if (is_odd && absl::StartsWith(name, "gemm")) return result;
    // Other code shifts rows within its tiles. AMX has tiles, too, and oneDNN may choose it for a
    // whole product and not for a part.
    result.by_rows_ = absl::StartsWith(name, "brg") && !absl::StrContains(name, "amx");
    DT_DNNL(dnnl_primitive_create, result.code_.out(), description.get());
    DT_RETURN_IF_ERROR(result.MakeMemories({&*a, &*b, &*c}, description, engine));
    return result;
  }

  bool exists() const { return code_.get() != nullptr; }
  bool by_rows() const { return by_rows_; }

  absl::Status Run(const GemmProblem& p, Scratch& scratch, dnnl_stream_t stream) {
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, memory_[0].get()},
                              {DNNL_ARG_WEIGHTS, memory_[1].get()},
                              {DNNL_ARG_DST, memory_[2].get()},
                              {DNNL_ARG_SCRATCHPAD, memory_[3].get()}};
    void* const data[] = {p.a.data, p.b.data, p.c.data, scratch.Reserve(scratch_bytes_)};
    const int count = scratch_bytes_ == 0 ? 3 : 4;
    if (count == 4 && data[3] == nullptr) {
      return absl::ResourceExhaustedError("the system refused the scratch memory of a product");
    }
    for (int i = 0; i < count; ++i) DT_DNNL(dnnl_memory_set_data_handle, args[i].memory, data[i]);
    DT_DNNL(dnnl_primitive_execute, code_.get(), stream, count, args);
    return absl::OkStatus();
  }

 private:
  absl::Status MakeMemories(std::initializer_list<const dnnl_memory_desc_t*> operands,
                            const Description& description, dnnl_engine_t engine) {
    Memory* memory = memory_;
    for (const dnnl_memory_desc_t* operand : operands) {
      DT_DNNL(dnnl_memory_create, (memory++)->out(), operand, engine, DNNL_MEMORY_NONE);
    }
    const dnnl_memory_desc_t* scratch =
        dnnl_primitive_desc_query_md(description.get(), dnnl_query_scratchpad_md, 0);
    scratch_bytes_ = dnnl_memory_desc_get_size(scratch);
    if (scratch_bytes_ == 0) return absl::OkStatus();
    DT_DNNL(dnnl_memory_create, memory->out(), scratch, engine, DNNL_MEMORY_NONE);
    return absl::OkStatus();
  }

  Code code_;
  Memory memory_[4];  // a, b, c, scratch
  int64_t scratch_bytes_ = 0;
  bool by_rows_ = false;
};

}  // namespace

struct OneDnnGemm::Impl {
  absl::Status Start() {
    if (stream.get() != nullptr) return absl::OkStatus();
    DT_DNNL(dnnl_engine_create, engine.out(), dnnl_cpu, 0);
    DT_DNNL(dnnl_stream_create, stream.out(), engine.get(), dnnl_stream_default_flags);
    return absl::OkStatus();
  }

  absl::StatusOr<Primitive*> Find(const Key& key) {
    if (const auto found = primitives.find(key); found != primitives.end()) return &found->second;
    DT_RETURN_IF_ERROR(Start());
    DT_ASSIGN_OR_RETURN(Primitive made, Primitive::Make(key, engine.get()));
    if (primitives.size() >= kMostPrimitives) primitives.clear();
    return &primitives.emplace(key, std::move(made)).first->second;
  }

  // Runs the primitive for all of `p`; returns false if there is none.
  absl::StatusOr<bool> RunAtOnce(const GemmProblem& p) {
    const std::optional<Key> key = MakeKey(p);
    if (!key) return false;
    DT_ASSIGN_OR_RETURN(Primitive* const primitive, Find(*key));
    if (!primitive->exists()) return false;
    DT_RETURN_IF_ERROR(primitive->Run(p, scratch, stream.get()));
    return true;
  }

  // In this order, since primitives must be destroyed before the engine.
  Engine engine;
  Stream stream;
  Scratch scratch;
  // A primitive that does not exist is cached as well, so that oneDNN is asked only once.
  HashMap<Key, Primitive> primitives;
};

OneDnnGemm::OneDnnGemm() : impl_(std::make_unique<Impl>()) {}
OneDnnGemm::~OneDnnGemm() = default;

absl::StatusOr<bool> OneDnnGemm::Run(const GemmProblem& gemm) {
  const GemmProblem p = WithRowForColumn(WithoutNeedlessBatch(gemm));
  // Primitives are made for the number of threads at that time.
  const OneThread one_thread;
  DT_ASSIGN_OR_RETURN(bool done, impl_->RunAtOnce(p));
  if (done || p.batch == 1) return done;
  for (int64_t i = 0; i < p.batch; ++i) {
    // All of them have one key: either not even the first one runs, or all do.
    DT_ASSIGN_OR_RETURN(done, impl_->RunAtOnce(OneOfBatch(p, i)));
    if (!done) return false;
  }
  return true;
}

// A product of one column is computed as a row, in which rows of the column are columns for oneDNN.
absl::StatusOr<OneDnnGemm::Code> OneDnnGemm::CodeOf(const GemmProblem& gemm) {
  const std::optional<Key> key = MakeKey(gemm);
  if (!key) return Code::kNone;
  const OneThread one_thread;
  DT_ASSIGN_OR_RETURN(const Primitive* const primitive, impl_->Find(*key));
  if (!primitive->exists()) return Code::kNone;
  return primitive->by_rows() && gemm.n > 1 ? Code::kByRows : Code::kOther;
}

int OneDnnGemm::cached() const { return static_cast<int>(impl_->primitives.size()); }

}  // namespace dtensor
