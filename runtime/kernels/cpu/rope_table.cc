#include "dtensor/runtime/kernels/cpu/rope_table.h"

#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>
#include <utility>

namespace dtensor::kernels {
namespace {

constexpr size_t kMaxTables = 64;
constexpr int64_t kMaxBytes = 64 << 20;

template <typename T>
std::shared_ptr<const RopeTable<T>> Compute(const IndexSet& positions, const RopeBase& base,
                                            int64_t d) {
  const int64_t half = d / 2;
  const std::vector<double> frequency = RopeFrequencies(base, d);
  const double amplitude = base.scaling.amplitude;
  auto table = std::make_shared<RopeTable<T>>();
  table->cos.reserve(positions.size() * half);
  table->sin.reserve(positions.size() * half);
  for (const IndexRun& run : positions.runs()) {
    for (int64_t k = 0; k < run.size(); ++k) {
      const int64_t position = run.begin + k / run.length * run.stride + k % run.length;
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequency[i];
        table->cos.push_back(static_cast<T>(amplitude * std::cos(angle)));
        table->sin.push_back(static_cast<T>(amplitude * std::sin(angle)));
      }
    }
  }
  return table;
}

// The most recently used table first.
template <typename T>
class Cache {
 public:
  std::shared_ptr<const RopeTable<T>> Find(const IndexSet& positions, const RopeBase& base,
                                           int64_t d) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) {
      return e.base == base && e.d == d && e.positions == positions;
    });
    if (found == entries_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found);
    return found->table;
  }

  void Insert(const IndexSet& positions, const RopeBase& base, int64_t d,
              std::shared_ptr<const RopeTable<T>> table) {
    const std::lock_guard lock(mutex_);
    bytes_ += Bytes(*table);
    entries_.push_front({positions, base, d, std::move(table)});
    while (entries_.size() > kMaxTables || (bytes_ > kMaxBytes && entries_.size() > 1)) {
      bytes_ -= Bytes(*entries_.back().table);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    IndexSet positions;
    RopeBase base;
    int64_t d;
    std::shared_ptr<const RopeTable<T>> table;
  };
  static int64_t Bytes(const RopeTable<T>& table) {
    return static_cast<int64_t>((table.cos.size() + table.sin.size()) * sizeof(T));
  }

  std::mutex mutex_;
  std::list<Entry> entries_;
  int64_t bytes_ = 0;
};

}  // namespace

template <typename T>
std::shared_ptr<const RopeTable<T>> GetRopeTable(const IndexSet& positions, const RopeBase& base,
                                                 int64_t d) {
  // Never destroyed: rank threads may outlive static destructors.
  static auto& cache = *new Cache<T>;
  if (auto table = cache.Find(positions, base, d)) return table;
  // Computed outside the lock: two ranks may both compute the same table, and either one is kept.
  auto table = Compute<T>(positions, base, d);
  cache.Insert(positions, base, d, table);
  return table;
}

template std::shared_ptr<const RopeTable<float>> GetRopeTable<float>(const IndexSet&,
                                                                     const RopeBase&, int64_t);
template std::shared_ptr<const RopeTable<double>> GetRopeTable<double>(const IndexSet&,
                                                                       const RopeBase&, int64_t);

}  // namespace dtensor::kernels
