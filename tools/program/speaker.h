// Which of a program's processes prints, where a launcher has started several: one for all.
#ifndef DTENSOR_TOOLS_PROGRAM_SPEAKER_H_
#define DTENSOR_TOOLS_PROGRAM_SPEAKER_H_

namespace dtensor {

// Whether this process is rank 0, or alone; also where the launcher's variables contradict each
// other, which nobody else may see. The others keep quiet about what every rank finds out by
// itself, and what is agreed upon (dtensor/tensor/gather_values.h).
bool IsSpeaker();

// How many processes a launcher has made ranks of; 0 where this process is none.
int LaunchedRanks();

}  // namespace dtensor

#endif  // DTENSOR_TOOLS_PROGRAM_SPEAKER_H_
