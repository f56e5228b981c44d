#include "dtensor/nn/kv_cache.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/layout/regions.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"
#include "dtensor/runtime/kernels/elementwise.h"

namespace dtensor {
namespace {

constexpr absl::string_view kWho = "KvCache: ";
// The block size if an axis shards the sequence. Blocks are dealt out in turn, so that ranks have
// about equally many keys from the first blocks on.
constexpr int64_t kSequenceBlock = 64;
constexpr int64_t kMostTokens = int64_t{1} << 40;  // of all rows

bool AllEqual(absl::Span<const int64_t> values) {
  return absl::c_all_of(values, [&](int64_t value) { return value == values[0]; });
}

absl::Status CheckMask(const std::string& path, const AttentionOptions& options) {
  const AttentionMask::Kind kind = options.mask.kind();
  if (kind == AttentionMask::Kind::kCausal || kind == AttentionMask::Kind::kWindow) {
    return absl::OkStatus();
  }
  return InvalidArgument({kWho, path, " attends by the mask ", options.mask.ToString(),
                          "; tokens that come later must not be seen: causal, or a window"});
}

// Redistributes x to the layout of `cache`, but with the sequence replicated.
TensorOr BesideCache(const DistributedTensor& cache, const TensorOr& x) {
  DT_ASSIGN_OR_RETURN(const Layout layout, cache.layout().WithDim(1, DimLayout()));
  return x->Redistribute(layout);
}

// `sinks`: undefined if there are none.
TensorOr AttentionTo(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                     const AttentionOptions& options, const TensorOr& sinks) {
  const bool has_none = sinks.ok() && !sinks->defined();
  return has_none ? Attention(q, k, v, options) : AttentionWithSinks(q, k, v, sinks, options);
}

// Zeroes positions [begin, end) of one row. This rank holds the positions `held`.
absl::Status ZeroTokens(Device& device, const Tensor& cache, const IndexSet& held, int64_t begin,
                        int64_t end) {
  for (const MatchedRun& run : MatchIndexSets(IndexSet::Interval(begin, end), held)) {
    for (int64_t j = 0; j < run.count; ++j) {
      const Tensor tokens = cache.Narrow(1, run.dst + j * run.dst_stride, run.length);
      DT_RETURN_IF_ERROR(kernels::Fill(device, tokens, 0));
    }
  }
  return absl::OkStatus();
}

// Zeroes positions [begin, end) of row `row`, which no query sees any more, so that they are finite
// like new ones.
absl::Status Forget(const DistributedTensor& cache, int64_t row, int64_t begin, int64_t end) {
  DT_RETURN_IF_ERROR(BeforeWrite(cache));
  const Spec& spec = cache.spec();
  if (!spec.on_mesh || spec.local_numel == 0) return absl::OkStatus();
  Context& context = cache.context();
  const auto coordinate = cache.mesh().Coordinate(context.rank());
  const IndexSet rows = DimRegion(cache.layout(), 0, cache.shape()[0], coordinate);
  const IndexSet held = DimRegion(cache.layout(), 1, cache.shape()[1], coordinate);
  for (int64_t i = 0; i < rows.size(); ++i) {
    if (rows.At(i) != row) continue;
    const absl::Status status =
        ZeroTokens(context.device(), cache.local().Narrow(0, i, 1), held, begin, end);
    if (!status.ok()) return context.communicator().Fail(status);
  }
  return absl::OkStatus();
}

// For one row, or for all rows if they are alike: copies x's tokens [0, count) to positions from
// `start` on. This rank holds the positions `held`.
absl::Status CopyTokens(Device& device, const Tensor& x, const Tensor& cache, const IndexSet& held,
                        int64_t start, int64_t count) {
  for (const MatchedRun& run : MatchIndexSets(IndexSet::Interval(start, start + count), held)) {
    for (int64_t j = 0; j < run.count; ++j) {
      const int64_t from = run.src + j * run.src_stride, to = run.dst + j * run.dst_stride;
      DT_RETURN_IF_ERROR(
          kernels::Copy(device, x.Narrow(1, from, run.length), cache.Narrow(1, to, run.length)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWrite(const DistributedTensor& cache, const TensorOr& x,
                        absl::Span<const int64_t> starts, absl::Span<const int64_t> counts) {
  constexpr absl::string_view kWrite = "WriteTokens: ";
  DT_RETURN_IF_ERROR(x.status());
  if (!cache.defined() || !x->defined()) return InvalidArgument({kWrite, "a tensor is undefined"});
  const auto refuse = [&](absl::string_view why) {
    return InvalidArgument({kWrite, why, " (cache ", cache.ToString(), ", x ", x->ToString(), ")"});
  };
  if (&cache.context() != &x->context() || cache.mesh() != x->mesh()) {
    return refuse("cache and x must be of one Context and mesh");
  }
  if (cache.ndim() < 2 || cache.ndim() != x->ndim() || cache.dtype() != x->dtype()) {
    return refuse("cache and x are [b, t, ...] and [b, s, ...], of one type");
  }
  for (int d = 0; d < cache.ndim(); ++d) {
    if (d != 1 && cache.shape()[d] != x->shape()[d]) return refuse("only sequences may differ");
  }
  if (cache.layout().is_partial()) return refuse("a cache that is Partial cannot be written to");
  const size_t rows = cache.shape()[0];
  if (starts.size() != rows || counts.size() != rows) {
    return refuse("there must be a start and a count for each row");
  }
  for (size_t r = 0; r < rows; ++r) {
    if (starts[r] < 0 || counts[r] < 0 || counts[r] > x->shape()[1] ||
        starts[r] > cache.shape()[1] - counts[r]) {
      return refuse(
          absl::StrCat(counts[r], " tokens from ", starts[r], " on of row ", r, " do not fit"));
    }
  }
  if (cache.context().recording()) {
    return refuse("a write has no gradient; call it where nothing is recorded (NoGrad)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteTokens(const DistributedTensor& cache, const TensorOr& x,
                         absl::Span<const int64_t> starts, absl::Span<const int64_t> counts) {
  DT_RETURN_IF_ERROR(CheckWrite(cache, x, starts, counts));
  Context& context = cache.context();
  DT_ASSIGN_OR_RETURN(const DistributedTensor beside, BesideCache(cache, x));
  DT_RETURN_IF_ERROR(BeforeWrite(cache));
  const Spec& spec = cache.spec();
  if (!spec.on_mesh || spec.local_numel == 0) return absl::OkStatus();
  const auto coordinate = cache.mesh().Coordinate(context.rank());
  const IndexSet rows = DimRegion(cache.layout(), 0, cache.shape()[0], coordinate);
  const IndexSet held = DimRegion(cache.layout(), 1, cache.shape()[1], coordinate);
  const Tensor &from = beside.local(), &to = cache.local();
  const auto copy = [&]() -> absl::Status {
    if (AllEqual(starts) && AllEqual(counts)) {
      return CopyTokens(context.device(), from, to, held, starts[0], counts[0]);
    }
    for (int64_t i = 0; i < rows.size(); ++i) {
      const int64_t r = rows.At(i);
      DT_RETURN_IF_ERROR(CopyTokens(context.device(), from.Narrow(0, i, 1), to.Narrow(0, i, 1),
                                    held, starts[r], counts[r]));
    }
    return absl::OkStatus();
  };
  const absl::Status status = copy();
  return status.ok() ? status : context.communicator().Fail(status);
}

// The parts, in the order of the modules. Errors: as Create.
absl::StatusOr<std::vector<KvCache::Part>> KvCache::PartsOf(Module& model, int64_t capacity) {
  std::vector<Part> parts;
  absl::Status status;
  int attentions = 0;
  model.VisitModules([&](const std::string& path, Module& module) {
    KvCacheSlot* const slot = module.kv_cache_slot();
    if (slot != nullptr) parts.push_back({slot, -1});
    if (slot != nullptr && slot->positions > 0 && capacity > slot->positions && status.ok()) {
      status = InvalidArgument({kWho, path, " has learned ", absl::StrCat(slot->positions),
                                " positions, and the capacity is ", absl::StrCat(capacity),
                                " tokens; give at most as many"});
    }
    const AttentionOptions* const attention = module.attention();
    if (attention == nullptr || !status.ok()) return;
    if (slot == nullptr) {
      status = InvalidArgument({kWho, path, " has an attention and keeps no cache (Module::",
                                "kv_cache_slot); models that do: Transformer, Gpt2"});
      return;
    }
    status = CheckMask(path, *attention);
    parts.back().attention = attentions++;
  });
  DT_RETURN_IF_ERROR(status);
  if (attentions > 0) return parts;
  return InvalidArgument({kWho, "the model has no attention"});
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(Module& model,
                                                         const KvCacheOptions& options) {
  if (options.batch < 1 || options.capacity < 1) {
    return InvalidArgument({kWho, "a batch of ", absl::StrCat(options.batch), " and a capacity of ",
                            absl::StrCat(options.capacity), " tokens; give at least 1 of each"});
  }
  if (options.batch > kMostTokens / options.capacity) {
    return InvalidArgument({kWho, "a batch of ", absl::StrCat(options.batch), " and a capacity of ",
                            absl::StrCat(options.capacity), " tokens; no memory holds so many"});
  }
  DT_ASSIGN_OR_RETURN(std::vector<Part> parts, PartsOf(model, options.capacity));
  model.SetTraining(false);
  std::unique_ptr<KvCache> cache(new KvCache(model, options));
  model.VisitModules([&](const std::string&, Module& module) {
    cache->num_ids_ = std::max(cache->num_ids_, module.num_ids());
  });
  cache->parts_ = std::move(parts);
  cache->layers_.resize(
      absl::c_count_if(cache->parts_, [](const Part& part) { return part.attention >= 0; }));
  return cache;
}

KvCache::KvCache(Module& model, const KvCacheOptions& options)
    : model_(model), options_(options), lengths_(options.batch, 0) {}

absl::Status KvCache::CheckIdle() const {
  if (!running_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      kWho, "this cache's Append runs; a module that it runs may use another cache, not this one"));
}

absl::Status KvCache::CheckAppend(const DistributedTensor& ids,
                                  absl::Span<const int64_t> counts) const {
  DT_RETURN_IF_ERROR(CheckIdle());
  if (!ids.defined()) return InvalidArgument({kWho, "the ids are undefined"});
  if (ids.context().key_lengths() != nullptr) {
    return InvalidArgument({kWho, "there are KeyLengths, which would hide what a cache appends; ",
                            "give counts, outside of their scope"});
  }
  if (ids.ndim() != 2 || ids.shape()[0] != options_.batch || ids.shape()[1] < 1) {
    return InvalidArgument({kWho, "ids ", ids.ToString(), " for a batch of ",
                            absl::StrCat(options_.batch), "; give [batch, s], s >= 1"});
  }
  if (!counts.empty() && static_cast<int64_t>(counts.size()) != options_.batch) {
    return InvalidArgument({kWho, absl::StrCat(counts.size()), " counts for a batch of ",
                            absl::StrCat(options_.batch), "; give one for each row, or none"});
  }
  for (int64_t r = 0; r < options_.batch; ++r) {
    const int64_t count = counts.empty() ? ids.shape()[1] : counts[r];
    if (count < 0 || count > ids.shape()[1]) {
      return InvalidArgument({kWho, "a count of ", absl::StrCat(count), " in row ", absl::StrCat(r),
                              " of ids ", ids.ToString()});
    }
    if (lengths_[r] + count > options_.capacity) {
      return InvalidArgument({kWho, "row ", absl::StrCat(r), " has ", absl::StrCat(lengths_[r]),
                              " tokens, and with ", absl::StrCat(count),
                              " more it would exceed the capacity of ",
                              absl::StrCat(options_.capacity), "; make a larger cache"});
    }
  }
  return absl::OkStatus();
}

void KvCache::SetPositions(int64_t s, absl::Span<const int64_t> counts) {
  counts_.assign(options_.batch, s);
  if (!counts.empty()) counts_.assign(counts.begin(), counts.end());
  positions_ = Positions();
  if (AllEqual(lengths_)) {
    positions_.first = lengths_[0];
  } else {
    positions_.rows = lengths_;
  }
  for (int64_t r = 0; r < options_.batch; ++r) {
    positions_.end = std::max(positions_.end, lengths_[r] + counts_[r]);
  }
}

TensorOr KvCache::Append(const DistributedTensor& ids, absl::Span<const int64_t> counts) {
  DT_RETURN_IF_ERROR(CheckAppend(ids, counts));
  const NoGrad no_grad(ids.context());
  SetPositions(ids.shape()[1], counts);
  ++pass_;
  // A module may run with a cache of its own while this one waits.
  std::vector<KvCacheSlot> before;
  for (const Part& part : parts_) before.push_back(*part.slot);
  const absl::Cleanup leave = [&] {  // also when the model throws
    running_ = false;
    for (size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].slot->cache = before[i].cache;
      parts_[i].slot->attention = before[i].attention;
    }
  };
  running_ = true;
  for (const Part& part : parts_) {
    part.slot->cache = this;
    part.slot->attention = part.attention;
  }
  absl::Cleanup forget = [&] {
    for (int64_t r = 0; r < options_.batch; ++r) {
      ForgetTokens(r, lengths_[r], lengths_[r] + counts_[r]).IgnoreError();
    }
  };
  DT_ASSIGN_OR_RETURN(std::vector<DistributedTensor> results, model_.Call({ids}));
  std::move(forget).Cancel();
  for (int64_t r = 0; r < options_.batch; ++r) lengths_[r] += counts_[r];
  return std::move(results[0]);
}

absl::Status KvCache::ForgetTokens(int64_t row, int64_t begin, int64_t end) const {
  for (const Layer& layer : layers_) {
    for (const DistributedTensor& kept : {layer.k, layer.v}) {
      if (kept.defined()) DT_RETURN_IF_ERROR(Forget(kept, row, begin, end));
    }
  }
  return absl::OkStatus();
}

absl::Status KvCache::Truncate(int64_t row, int64_t length) {
  DT_RETURN_IF_ERROR(CheckIdle());
  if (row < 0 || row >= options_.batch || length < 0 || length > lengths_[row]) {
    return InvalidArgument({kWho, "there are no ", absl::StrCat(length), " tokens of row ",
                            absl::StrCat(row), " to keep"});
  }
  if (length == lengths_[row]) return absl::OkStatus();
  DT_RETURN_IF_ERROR(ForgetTokens(row, length, lengths_[row]));
  lengths_[row] = length;
  return absl::OkStatus();
}

int64_t KvCache::local_bytes() const {
  int64_t bytes = 0;
  for (const Layer& layer : layers_) {
    for (const DistributedTensor& kept : {layer.k, layer.v}) {
      if (kept.defined()) bytes += kept.local().bytes();
    }
  }
  return bytes;
}

TensorOr KvCache::NewTensor(const DistributedTensor& like) const {
  const Layout& layout = like.layout();
  std::vector<DimLayout> dims(layout.dims().begin(), layout.dims().end());
  dims[1] = DimLayout();
  DT_ASSIGN_OR_RETURN(Layout kept, Layout::Create(layout.mesh(), dims));
  if (!options_.sequence_axis.empty()) {
    DT_ASSIGN_OR_RETURN(const AxisList axes, layout.mesh().Find(options_.sequence_axis));
    DT_ASSIGN_OR_RETURN(kept, kept.WithAxes(axes, Shard(1, ShardOrder::Block(kSequenceBlock))));
  }
  Dims shape = like.shape();
  shape[1] = options_.capacity;
  // Positions that no query sees yet must be finite, too.
  DT_ASSIGN_OR_RETURN(DistributedTensor made, Full(like.context(), kept, shape, like.dtype(), 0));
  made.set_pinned(true);
  return made;
}

absl::Status KvCache::Keep(DistributedTensor& kept, const DistributedTensor& x) const {
  if (!kept.defined()) {
    DT_ASSIGN_OR_RETURN(kept, NewTensor(x));
  }
  return WriteTokens(kept, x, lengths_, counts_);
}

absl::StatusOr<KvCache::Layer*> KvCache::Enter(const KvCacheSlot& slot) {
  Layer& layer = layers_[slot.attention];
  if (layer.pass == pass_) {
    return InvalidArgument({kWho, "attention ", absl::StrCat(slot.attention),
                            " runs twice in one pass; each use of it needs keys of its own"});
  }
  layer.pass = pass_;
  return &layer;
}

TensorOr KvCache::Attend(const KvCacheSlot& slot, const TensorOr& q, const TensorOr& k,
                         const TensorOr& v, AttentionOptions options, const TensorOr& sinks) {
  for (const TensorOr* const x : {&q, &k, &v, &sinks}) DT_RETURN_IF_ERROR(x->status());
  DT_ASSIGN_OR_RETURN(Layer* const layer, Enter(slot));
  DT_RETURN_IF_ERROR(Keep(layer->k, *k));
  DT_RETURN_IF_ERROR(Keep(layer->v, *v));
  return AttendTo(layer->k, layer->v, q, std::move(options), sinks);
}

TensorOr KvCache::AttendToOne(const KvCacheSlot& slot, const TensorOr& q, const TensorOr& x,
                              AttentionOptions options) {
  for (const TensorOr* const given : {&q, &x}) DT_RETURN_IF_ERROR(given->status());
  DT_ASSIGN_OR_RETURN(Layer* const layer, Enter(slot));
  DT_RETURN_IF_ERROR(Keep(layer->k, *x));
  return AttendTo(layer->k, layer->k, q, std::move(options));
}

TensorOr KvCache::AttendTo(const DistributedTensor& k, const DistributedTensor& v,
                           const TensorOr& q, AttentionOptions options,
                           const TensorOr& sinks) const {
  options.query_offset = positions_.first;
  options.row_offsets = positions_.rows;
  options.dropout = 0;
  const bool by_rows = !positions_.rows.empty();  // one of the sequences must not be sharded then
  if (options_.sequence_axis.empty() || (q->shape()[1] > 1 && !by_rows)) {
    return AttentionTo(q, k, v, options, sinks);
  }
  // A plan may have sharded the queries over the cache's axis, too. A single token goes to the
  // shards of the cache: to bring these to the rank that has the token moves more with each token,
  // and needs a decision for each position.
  DT_ASSIGN_OR_RETURN(const Layout whole, q->layout().WithDim(1, DimLayout()));
  return AttentionTo(q->Redistribute(whole), k, v, options, sinks);
}

TensorOr KvCache::LastTokens(const DistributedTensor& x) const {
  const int64_t batch = x.shape()[0], s = x.shape()[1];
  if (s == 1) return x;
  if (AllEqual(counts_)) {
    const int64_t last = std::max<int64_t>(counts_[0] - 1, 0);
    return Slice(x, 1, last, last + 1);
  }
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < batch; ++r) rows.push_back(r * s + std::max<int64_t>(counts_[r] - 1, 0));
  return Embedding(
      Distribute<int64_t>(x.context(), Layout::Replicated(x.mesh(), 2), {batch, 1}, rows),
      Reshape(x, {batch * s, x.shape()[2]}));
}

RopeOptions KvCacheSlot::Positioned(RopeOptions rope) const {
  if (cache == nullptr) return rope;
  rope.offset = cache->positions().first;
  rope.row_offsets = cache->positions().rows;
  return rope;
}

TensorOr KvCacheSlot::Attend(const TensorOr& q, const TensorOr& k, const TensorOr& v,
                             const AttentionOptions& options, const TensorOr& sinks) const {
  if (cache != nullptr) return cache->Attend(*this, q, k, v, options, sinks);
  return AttentionTo(q, k, v, options, sinks);
}

}  // namespace dtensor
