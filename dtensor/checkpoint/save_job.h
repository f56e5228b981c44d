// What one rank does for a checkpoint once its data is known: it writes its file, marks it as done,
// and commits if all other ranks have done so, too. It communicates through the file system only,
// so a separate thread can do it while the rank goes on.
//
//   FOLDER/.step-00000012.MACHINE.PID.NUMBER.tmp/           created by rank 0
//       rank-00003.safetensors                              each rank's file, synced
//       rank-00003.done                                     written next: sizes and checksums
//   FOLDER/.step-00000012.MACHINE.PID.NUMBER-commit.tmp/    renamed by a rank that saw all of them
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

// Copies the elements to the host, so that `local` is no longer needed. Errors: kResourceExhausted;
// the device's.
absl::Status TakeSnapshot(OwnSlice& slice);

struct SaveJob {
  FileSystem* files = nullptr;
  std::string folder;           // of the run
  std::string temporary;        // the name of the checkpoint in it while it is being written
  CheckpointIndex index;        // without its files
  std::vector<int> file_ranks;  // ranks that write a file, ascending: the order of index.files
  int rank = 0;
  int keep_last = 0;  // 0: all
  // Set if slices are read from tensors while they are written: the world of these tensors. If it
  // has failed by the time they were read, their values are invalid. Null if they were copied
  // before.
  const Communicator* world = nullptr;
  std::vector<OwnSlice> slices;
};

// The error, with a text that says what it means for the checkpoint: it does not exist, and earlier
// ones stay.
absl::Status NotSaved(const SaveJob& job, const absl::Status& error);

// "rank-00003.safetensors"
std::string SliceFileName(int rank);

struct SaveOutcome {
  absl::Status written;    // this rank's file
  bool committer = false;  // this rank committed, or tried to
  absl::Status committed;  // the outcome, if so
};
SaveOutcome RunSaveJob(const SaveJob& job);
// Commits a job whose ranks have all written their files, but which none has committed: if hosts
// cache the contents of folders, the last rank may not have seen what others had just written.
absl::Status CommitSaveJob(const SaveJob& job);
// Removes what a failed job has written; call it when no rank works on it any more. What cannot be
// removed stays.
void DropSaveJob(const SaveJob& job);

}  // namespace dtensor

#endif  // DTENSOR_CHECKPOINT_SAVE_JOB_H_
