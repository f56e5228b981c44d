// Saves a checkpoint: named tensors in any layout, and texts.
//
//   CheckpointSaver saver(context, "run", {.keep_last = 3, .async = true});
//   for (...) {
//     ...
//     if (step % 100 == 0) DT_RETURN_IF_ERROR(saver.Save({.step = step, .tensors = tensors}));
//   }
//   DT_RETURN_IF_ERROR(saver.Wait());
//
// training_state.h saves a whole training run: a model, its optimizer and so on. load.h reads
// checkpoints.
//
// Each element is written once, by a rank that holds it; no rank gathers anything. A checkpoint
// exists as a whole or not at all, even if the processes or the machine go down at any time, and
// earlier checkpoints stay. All ranks must see the folder: they are on one host, or on several that
// share a file system. docs/checkpoints.md has the format and the reasons.
#ifndef DTENSOR_CHECKPOINT_SAVE_H_
#define DTENSOR_CHECKPOINT_SAVE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "dtensor/runtime/core/export.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/tensor/context.h"
#include "dtensor/tensor/distributed_tensor.h"

namespace DTENSOR_EXPORT dtensor {

// What one rank names, in UTF-8. The checkpoint contains what all ranks of the world name together.
struct CheckpointContent {
  int64_t step = 0;  // the same on all ranks
  // Not Partial. A tensor must be named by all ranks of its mesh, under one name. Other ranks may
  // name it too if they know it; they have no elements of it. So in a pipeline a rank names the
  // tensors of its stage. Tensors that are still in flight (RedistributeOptions) are waited for, in
  // the order of the names.
  std::map<std::string, DistributedTensor> tensors;
  // Other names of tensors. A tensor with several names is written once.
  std::map<std::string, std::string> aliases;
  std::map<std::string, std::string> entries;  // texts, the same on all ranks
};

struct SaveOptions {
  // How many checkpoints are kept: after this one is saved, checkpoints of earlier steps are
  // removed, except for the latest keep_last - 1. 0: all are kept. So Wait() before loading from
  // the folder: a save that still runs may remove what is being read.
  int keep_last = 0;
  // Save returns as soon as what this rank writes (its share of the bytes) has been copied to host
  // memory. A thread writes it while the rank goes on.
  bool async = false;
  // Null: the machine's file system. Otherwise it must outlive the saver, and it gets paths as they
  // were given.
  FileSystem* files = nullptr;
};

// Saves into one folder, one checkpoint after the other. To be used on the rank's thread. Once Save
// has returned, the saved tensors may be changed or destroyed.
class CheckpointSaver {
 public:
  // The context must outlive it. A relative folder is relative to the process's current folder at
  // this time.
  CheckpointSaver(Context& context, std::string folder, const SaveOptions& options = {});
  // Waits for what this rank is still writing. If Wait was not called for the last save, that is
  // completed as soon as the last rank has written; its errors are then lost.
  ~CheckpointSaver();
  CheckpointSaver(CheckpointSaver&&) noexcept;
  CheckpointSaver& operator=(CheckpointSaver&&) = delete;

  // Waits for the previous save. Then saves this one; or, with `async`, begins to. Collective over
  // the world. Errors, the same on all ranks: those of Wait for the previous save, and then nothing
  // is begun; kInvalidArgument for a tensor that is undefined, Partial or of another Context, a
  // name that is taken or reserved, an alias of nothing, a text that is not UTF-8, a negative step,
  // and if ranks give different steps, entries or folders, give one name to different tensors, or
  // do not name a tensor that lies on them; kAlreadyExists if the folder has a checkpoint of this
  // step; kFailedPrecondition on meta; kUnavailable, naming rank, file and tensor, if something
  // cannot be written. Failures. After an error, what was saved before is still there.
  absl::Status Save(const CheckpointContent& content);
  // Blocks until all ranks have written the last save to disk. Collective. Returns its outcome,
  // once; OK if there is none.
  absl::Status Wait();
  // Whether this rank has written its part of the last save. Ranks may get different answers.
  bool written() const;

 private:
  struct Pending;
  absl::Status Begin(const CheckpointContent& content);

  Context& context_;
  const std::string folder_;  // as it was given: the same on all ranks
  const std::string place_;   // where that is; absolute if on the machine's own file system
  const SaveOptions options_;
  std::unique_ptr<Pending> pending_;
};

// Saves one checkpoint and waits for it, whatever options.async says.
absl::Status SaveCheckpoint(Context& context, const std::string& folder,
                            const CheckpointContent& content, const SaveOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SAVE_H_
