#include "dtensor/runtime/comm/shared/shared_group.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "dtensor/runtime/comm/fingerprint.h"
#include "dtensor/runtime/core/dims.h"
#include "dtensor/runtime/core/dtype.h"
#include "dtensor/runtime/core/status.h"
#include "dtensor/runtime/kernels/copy.h"

namespace dtensor {
namespace {

constexpr std::chrono::seconds kAwaitSummary(3);
constexpr int64_t kPage = 4096;
constexpr uint64_t kMostDims = 64;  // more than any tensor has

// The first word of a description; a 0 is a part without a source.
uint64_t HeadOf(const Tensor& tensor) {
  return 1 | static_cast<uint64_t>(tensor.dtype()) << 8 | uint64_t(tensor.ndim()) << 16;
}

void Write(absl::string_view text, BoardText& board) {
  board.size = static_cast<uint32_t>(std::min(text.size(), BoardText::kBytes));
  text.copy(board.bytes, board.size);
}

std::string Read(const BoardText& board) {
  return std::string(board.bytes, std::min<size_t>(board.size, BoardText::kBytes));
}

// Access from offset `at` of an arena.
absl::Span<const uint64_t> WordsAt(const HostRank& rank, uint64_t at) {
  const auto bytes = static_cast<uint64_t>(rank.bytes);
  if (at % sizeof(uint64_t) != 0 || at >= bytes) return {};
  return {reinterpret_cast<const uint64_t*>(rank.data + at), (bytes - at) / sizeof(uint64_t)};
}

uint64_t ReadOnce(const uint64_t& word) { return *static_cast<const volatile uint64_t*>(&word); }

// Whether a view with these sizes and strides stays within `elements` elements.
bool Reaches(absl::Span<const int64_t> shape, absl::Span<const int64_t> strides, int64_t offset,
             int64_t elements) {
  int64_t numel = 1, last = offset;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    int64_t step;
    if (shape[dim] < 0 || strides[dim] < 0 || strides[dim] > elements) return false;
    if (__builtin_mul_overflow(numel, shape[dim], &numel)) return false;
    if (shape[dim] == 0) continue;
    if (__builtin_mul_overflow(shape[dim] - 1, strides[dim], &step)) return false;
    if (__builtin_add_overflow(last, step, &last)) return false;
  }
  return numel == 0 || (offset >= 0 && last < elements);
}

CallSummary Summarize(const Collective& collective, size_t parts) {
  return dtensor::SummaryOf(collective.op, collective.kind, collective.digest,
                            collective.description, parts);
}

}  // namespace

SharedGroup::SharedGroup(HostRanks& host, const WorldState& world, absl::Span<const int> ranks)
    : host_(host),
      world_(world),
      ranks_(ranks.begin(), ranks.end()),
      key_(FingerprintOf(ranks)),
      members_(ranks.size()),
      mine_(FindOrMakeGroup(host.board(), key_)) {
  for (int member = 0; member < size(); ++member) members_[member].host = host.Find(ranks_[member]);
}

SharedGroup::~SharedGroup() {
  for (const Mine& mine : posted_) {
    if (mine.pages != nullptr) host_.arena().Unmap(mine.pages, mine.page_bytes);
  }
}

int SharedGroup::IndexOf(int rank) const {
  return static_cast<int>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

uint64_t SharedGroup::posted(int member) const {
  const BoardGroup* const place = PlaceOf(member);
  return place == nullptr ? 0
                          : place->counter(ExchangeStage::kPosted).load(std::memory_order_relaxed);
}

void SharedGroup::SleepUntilReached(int member, ExchangeStage stage, uint64_t number,
                                    int64_t microseconds) const {
  const Board& board = members_[member].host->board();
  const uint32_t made = board.groups_made.load(std::memory_order_seq_cst);
  const BoardGroup* const place = PlaceOf(member);
  if (place == nullptr) return SleepWhile(board.groups_made, made, microseconds);
  const uint64_t reached = place->counter(stage).load(std::memory_order_seq_cst);
  if (reached < number) SleepWhile(place->counter(stage), reached, microseconds);
}

absl::Status SharedGroup::Post(int, uint64_t number, const Collective& collective,
                               absl::Span<const ExchangePart> parts, uint64_t reads,
                               const DeviceEvent&) {
  if (mine_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory has room for ", Board::kGroups,
                     " groups of ranks, and all are taken; use fewer meshes, or set "
                     "DTENSOR_TRANSPORT=tcp on all ranks"));
  }
  Mine& mine = posted_[number % 2];
  mine.collective = &collective;
  mine.parts = parts;
  words_.clear();
  for (const ExchangePart& part : parts) DT_RETURN_IF_ERROR(Describe(part, mine));
  BoardGroup::Post& post = mine_->posts[number % 2];
  DT_RETURN_IF_ERROR(WriteWords(mine, post));
  post.call = FingerprintOf(collective, parts.size());
  post.reads = reads;
  Publish(ExchangeStage::kPosted, number);
  return absl::OkStatus();
}

void SharedGroup::PublishDone(int, uint64_t number, const DeviceEvent&) {
  Publish(ExchangeStage::kDone, number);
}

void SharedGroup::Release(int, uint64_t number) { posted_[number % 2].copies.clear(); }

// One word of type and rank, the offset in the arena, and sizes and strides.
absl::Status SharedGroup::Describe(const ExchangePart& part, Mine& mine) {
  const Tensor* source = &part.src;
  if (!source->defined()) {
    words_.push_back(0);
    return absl::OkStatus();
  }
  if (source->raw() != nullptr && !host_.arena().has(source->raw())) {
    DT_ASSIGN_OR_RETURN(Tensor copy,
                        Tensor::Empty(host_.device(), source->dtype(), source->shape()));
    DT_RETURN_IF_ERROR(kernels::Copy(host_.device(), *source, copy));
    source = &mine.copies.emplace_back(std::move(copy));
  }
  const char* const data = static_cast<const char*>(source->raw());
  words_.push_back(HeadOf(*source));
  words_.push_back(data == nullptr ? 0 : data - host_.arena().data());
  words_.insert(words_.end(), source->shape().begin(), source->shape().end());
  // The stride of a single element means nothing, and may be any number.
  for (int dim = 0; dim < source->ndim(); ++dim) {
    words_.push_back(source->shape()[dim] == 1 ? 0 : source->strides()[dim]);
  }
  return absl::OkStatus();
}

// Readers of what was written there before are done: see RankGroup.
absl::Status SharedGroup::WriteWords(Mine& mine, BoardGroup::Post& post) {
  const int64_t bytes = static_cast<int64_t>(words_.size() * sizeof(uint64_t));
  uint64_t* into = post.words;
  SharedArena& arena = host_.arena();
  if (words_.size() > BoardGroup::kWords) {
    if (bytes > mine.page_bytes) {
      if (mine.pages != nullptr) arena.Unmap(mine.pages, mine.page_bytes);
      mine.page_bytes = (bytes + kPage - 1) / kPage * kPage;
      mine.pages = static_cast<char*>(arena.Map(mine.page_bytes));
    }
    if (mine.pages == nullptr) {
      mine.page_bytes = 0;
      return absl::ResourceExhaustedError(
          absl::StrCat("shared memory is full: no ", bytes, " bytes to describe an exchange"));
    }
    into = reinterpret_cast<uint64_t*>(mine.pages);
  }
  std::copy(words_.begin(), words_.end(), into);
  post.at = reinterpret_cast<char*>(into) - arena.data();
  return absl::OkStatus();
}

const Tensor& SharedGroup::SourceOf(int index, uint64_t number, size_t part) {
  Mine& mine = posted_[number % 2];
  if (ranks_[index] == host_.rank()) return mine.parts[part].src;
  Member& member = members_[index];
  if (member.number != number) {
    absl::Span<const uint64_t> words = WordsAt(*member.host, post(index, number).at);
    member.sources.clear();
    for (size_t i = 0; i < mine.parts.size(); ++i) {
      member.sources.push_back(ReadSource(member, words));
    }
    member.number = number;
  }
  return member.sources[part];
}

// Whatever the words contain, the resulting tensor is inside the arena. Each word is read once,
// since a faulty peer may write them meanwhile.
Tensor SharedGroup::ReadSource(Member& member, absl::Span<const uint64_t>& words) const {
  const uint64_t head = words.empty() ? 0 : ReadOnce(words[0]);
  words = words.subspan(std::min<size_t>(1, words.size()));
  if (head == 0) return Tensor();
  const uint64_t type = head >> 8 & 0xff, ndim = head >> 16;
  if (type > static_cast<uint64_t>(DType::kBool) || ndim > kMostDims ||
      words.size() < 1 + 2 * ndim) {
    words = {};  // the position of the next one is unknown
    return Tensor();
  }
  const auto dtype = static_cast<DType>(type);
  const int64_t offset = static_cast<int64_t>(ReadOnce(words[0])) / SizeOf(dtype);
  const int64_t elements = member.host->bytes / SizeOf(dtype);
  Dims sizes;
  for (const uint64_t& word : words.subspan(1, 2 * ndim)) {
    sizes.push_back(static_cast<int64_t>(ReadOnce(word)));
  }
  const absl::Span<const int64_t> shape(sizes.data(), ndim), strides(sizes.data() + ndim, ndim);
  words.remove_prefix(1 + 2 * ndim);
  if (!Reaches(shape, strides, offset, elements)) return Tensor();
  Tensor& all = member.arena[type];
  if (!all.defined()) {
    // Only its elements are read.
    all = Tensor::Adopt(host_.device(), const_cast<char*>(member.host->data), dtype, {elements},
                        {1}, nullptr);
  }
  return all.View(shape, strides, offset);
}

void SharedGroup::Publish(ExchangeStage stage, uint64_t number) {
  std::atomic<uint64_t>& counter = mine_->counters[static_cast<int>(stage)];
  counter.store(number, std::memory_order_seq_cst);
  const uint32_t awaited = static_cast<uint32_t>(host_.rank()) + 1;
  for (const Member& member : members_) {
    if (member.host->board().sleeps_for.load(std::memory_order_seq_cst) != awaited) continue;
    return Wake(counter);
  }
}

CallSummary SharedGroup::SummaryOf(int index, uint64_t number) const {
  if (ranks_[index] == host_.rank()) {
    const Mine& mine = posted_[number % 2];
    const CallSummary summary = Summarize(*mine.collective, mine.parts.size());
    Board& board = host_.board();
    if (!board.disagrees.load(std::memory_order_relaxed)) {
      Write(summary.op, board.op);
      Write(summary.kind, board.kind);
      Write(summary.what, board.what);
      board.described = summary.described;
      board.disagrees.store(true, std::memory_order_release);
    }
    return summary;
  }
  const Board& board = members_[index].host->board();
  const auto until = std::chrono::steady_clock::now() + kAwaitSummary;
  while (!board.disagrees.load(std::memory_order_acquire)) {
    if (world_.failed() || std::chrono::steady_clock::now() > until) {
      return {"?", "?", "something else", false};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {Read(board.op), Read(board.kind), Read(board.what), board.described};
}

}  // namespace dtensor
