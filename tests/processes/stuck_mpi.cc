// An MPI call that does not return. Linked into a program, this replaces two functions. In rank
// STUCK_RANK, call number STUCK_CALL of the one that STUCK_IN names does not return for
// STUCK_SECONDS. OpenMPI's TCP sometimes behaves like this when a peer has died.
#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

int Number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

void MayStick(const char* function) {
  static int calls = 0;
  const char* const stuck_in = std::getenv("STUCK_IN");
  if (stuck_in == nullptr || std::strcmp(stuck_in, function) != 0) return;
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != Number("STUCK_RANK") || ++calls != Number("STUCK_CALL")) return;
  std::this_thread::sleep_for(std::chrono::seconds(Number("STUCK_SECONDS")));
}

}  // namespace

extern "C" int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message,
                           MPI_Status* status) {
  MayStick("MPI_Improbe");
  return PMPI_Improbe(source, tag, comm, flag, message, status);
}

extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  MayStick("MPI_Test");
  return PMPI_Test(request, flag, status);
}
