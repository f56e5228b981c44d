// QuietThread: a thread of the library that receives none of the program's signals. Handlers,
// sigwait and signalfd are for the program's own threads: a signal that they block must not be
// delivered here.
#ifndef DTENSOR_RUNTIME_CORE_QUIET_THREAD_H_
#define DTENSOR_RUNTIME_CORE_QUIET_THREAD_H_

#include <functional>
#include <thread>

#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Runs `run` on a new thread that blocks all signals but those that report its own errors (SIGSEGV
// and the like). The caller's signal mask is unchanged. Throws std::system_error if no thread can
// be created.
std::thread QuietThread(std::function<void()> run);

}  // namespace dtensor

#endif  // DTENSOR_RUNTIME_CORE_QUIET_THREAD_H_
