// Saving a checkpoint: named tensors, wherever they lie, and texts.
//
//   CheckpointSaver saver(context, "run", {.keep_last = 3, .async = true});
//   for (...) {
//     ...
//     if (step % 100 == 0) DT_RETURN_IF_ERROR(saver.Save({.step = step, .tensors = tensors}));
//   }
//   DT_RETURN_IF_ERROR(saver.Wait());
//
// training_state.h does it for a model, its optimizer and what else a run is made of; load.h reads.
//
// Each element is written once, by a rank that holds it, and no rank gathers anything. A checkpoint
// is there as a whole or not at all, whenever the processes, or the machine, go down; what was
// there before stays. All ranks see the folder: those of one host, or of several that share a file
// system. docs/checkpoints.md has the format and the reasons.
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

// What a rank names, in UTF-8. The checkpoint has what all ranks of the world name.
struct CheckpointContent {
  int64_t step = 0;  // the same on all ranks
  // Not Partial. A tensor is named by all ranks of its mesh, alike; other ranks may name it too,
  // where they know it (it has no elements there). So a rank of a pipeline names its stage's. Those
  // that are still to come (RedistributeOptions) are waited for, in the order of the names.
  std::map<std::string, DistributedTensor> tensors;
  // Other names of tensors, which are written once.
  std::map<std::string, std::string> aliases;
  std::map<std::string, std::string> entries;  // texts, the same on all ranks
};

struct SaveOptions {
  // How many checkpoints stay: after this one is saved, those of earlier steps are removed but for
  // the latest keep_last - 1. 0: all stay.
  int keep_last = 0;
  // Save returns when what this rank writes is copied to host memory (its share of the bytes), and
  // a thread writes it while the rank goes on.
  bool async = false;
  // Null: the machine's. Else it outlives the saver, and gets paths as they were given.
  FileSystem* files = nullptr;
};

// Saves into one folder, one checkpoint after the other. Of the rank's thread. It is no part of
// what it saves: the tensors may change, and go, once Save has returned.
class CheckpointSaver {
 public:
  // The context outlives it. A relative folder is one of that in which the process runs now.
  CheckpointSaver(Context& context, std::string folder, const SaveOptions& options = {});
  // Waits for what this rank still writes. A save that nobody waits for is completed as soon as the
  // last rank has written; what goes wrong then nobody learns.
  ~CheckpointSaver();
  CheckpointSaver(CheckpointSaver&&) noexcept;
  CheckpointSaver& operator=(CheckpointSaver&&) = delete;

  // Waits for the save before. Then saves this one; or, with `async`, begins to. Collective over
  // the world. Errors, the same on all ranks: of Wait, for the save before, and nothing is begun;
  // kInvalidArgument for a tensor that is undefined, Partial or of another Context, a name that is
  // taken or reserved, an alias of nothing, a text that is no UTF-8, a negative step, and where
  // ranks give unlike steps, entries or folders, unlike tensors one name, or do not name what lies
  // on them; kAlreadyExists where the folder has a checkpoint of this step;
  // kFailedPrecondition on meta; kUnavailable, naming rank, file and tensor, where something cannot
  // be written. Failures. What was saved before is still there.
  absl::Status Save(const CheckpointContent& content);
  // Until the last save is on the disk, by all ranks. Collective. Returns what came of it, once;
  // OK where there is none.
  absl::Status Wait();
  // Whether this rank has written its part of the last save. Each rank finds out for itself.
  bool written() const;

 private:
  struct Pending;
  absl::Status Begin(const CheckpointContent& content);

  Context& context_;
  const std::string folder_;  // as it was given: alike on all ranks
  const std::string place_;   // where that is
  const SaveOptions options_;
  std::unique_ptr<Pending> pending_;
};

// One checkpoint, to its end, whatever options.async says.
absl::Status SaveCheckpoint(Context& context, const std::string& folder,
                            const CheckpointContent& content, const SaveOptions& options = {});

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SAVE_H_
