// What one rank does of a checkpoint once its data are known: writes its file, says that it has,
// and, if all others have said so, commits. It talks to nobody but the file system, so a thread of
// its own may do it while the rank goes on.
//
//   FOLDER/.step-00000012.MACHINE.PID.NUMBER.tmp/           rank 0 makes it
//       rank-00003.safetensors                              each rank's, synced
//       rank-00003.done                                     then this: sizes and checksums
//   FOLDER/.step-00000012.MACHINE.PID.NUMBER-commit.tmp/    renamed by who saw all of these
//       index.json                                          written and synced, and the folder, too
//   FOLDER/step-00000012/                                   renamed: from here on it counts
#ifndef DTENSOR_CHECKPOINT_SAVE_JOB_H_
#define DTENSOR_CHECKPOINT_SAVE_JOB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dtensor/checkpoint/index.h"
#include "dtensor/runtime/comm/communicator.h"
#include "dtensor/runtime/device/tensor.h"
#include "dtensor/runtime/io/file_system.h"
#include "dtensor/runtime/io/safetensors/safetensors.h"

namespace dtensor {

// A slice that this rank writes.
struct OwnSlice {
  SafetensorsEntry entry;         // its name in the file, type and shape; no data
  Tensor local;                   // its elements, of any strides, unless they are in `bytes`
  std::unique_ptr<char[]> bytes;  // row-major
};

// Copies the elements to the host, so that `local` is not needed any more. Errors:
// kResourceExhausted; the device's.
absl::Status TakeSnapshot(OwnSlice& slice);

struct SaveJob {
  FileSystem* files = nullptr;
  std::string folder;           // of the run
  std::string temporary;        // the name in it of what is being written
  CheckpointIndex index;        // but for its files
  std::vector<int> file_ranks;  // those that write a file, ascending: index.files, by name
  int rank = 0;
  int keep_last = 0;  // 0: all
  // Of slices that are read from tensors while they are written: their world, which is to work when
  // they were read, or they are nobody's values. Null where they were copied before.
  const Communicator* world = nullptr;
  std::vector<OwnSlice> slices;
};

// With what an error means for the checkpoint: there is none, and those before stay.
absl::Status NotSaved(const SaveJob& job, const absl::Status& error);

// "rank-00003.safetensors"
std::string SliceFileName(int rank);

struct SaveOutcome {
  absl::Status written;    // this rank's file
  bool committer = false;  // this rank was the last one
  absl::Status committed;  // what came of that
};
SaveOutcome RunSaveJob(const SaveJob& job);
// Of a job of which all ranks have written theirs, and whom nobody has committed: one that was
// last may not have seen what others had just written, where hosts keep what they know of folders.
absl::Status CommitSaveJob(const SaveJob& job);
// Of a job that failed, when no rank works on it any more. What cannot be removed stays.
void DropSaveJob(const SaveJob& job);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SAVE_JOB_H_
