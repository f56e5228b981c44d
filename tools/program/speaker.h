// Which process of a program prints, if a launcher has started several: one for all.
#ifndef DTENSOR_TOOLS_PROGRAM_SPEAKER_H_
#define DTENSOR_TOOLS_PROGRAM_SPEAKER_H_

namespace dtensor {

// Whether this process is rank 0, or the only one. Also true if the launcher's variables contradict
// each other, so that this error is seen. Other processes print nothing about what every rank finds
// out by itself, and about what is agreed upon (dtensor/tensor/gather_values.h).
bool IsSpeaker();

// How many processes a launcher has made ranks; 0 if this process is not one.
int LaunchedRanks();

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_SPEAKER_H_
