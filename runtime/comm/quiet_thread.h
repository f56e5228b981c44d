// QuietThread: a thread of the library's, which takes none of the program's signals. Handlers,
// sigwait and signalfd are for the program's own threads: what these block, nobody else is to take.
#ifndef DTENSOR_RUNTIME_COMM_QUIET_THREAD_H_
#define DTENSOR_RUNTIME_COMM_QUIET_THREAD_H_

#include <functional>
#include <thread>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Runs `run` on a thread that blocks all signals but those that tell of its own errors (SIGSEGV and
// its like). The caller's are as before. Throws std::system_error where there is no thread to be
// had.
std::thread QuietThread(std::function<void()> run);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_COMM_QUIET_THREAD_H_
