# dtensor::mpi, as DTENSOR_MPI says.
set(MPI_CXX_SKIP_MPICXX TRUE) # the C++ bindings left MPI in version 3.0
if(DTENSOR_MPI STREQUAL AUTO)
  find_package(MPI QUIET COMPONENTS CXX)
else()
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
message(STATUS "dtensor::mpi: ${MPI_CXX_FOUND} (DTENSOR_MPI=${DTENSOR_MPI})")
if(MPI_CXX_FOUND)
  dtensor_library(mpi ${DTENSOR_MPI_SOURCES})
  target_link_libraries(dtensor_mpi PUBLIC dtensor ${DTENSOR_MPI_ABSL} MPI::MPI_CXX)
  # Programs join by MPI since they are linked with it, though they may call nothing of it: a linker
  # would leave it out, the one archive's object or the whole shared library.
  set(DTENSOR_MPI_LINKED -Wl,--undefined=_ZN7dtensor13JoinMpiLaunchERKNS_11JoinOptionsE)
  if(BUILD_SHARED_LIBS)
    set(DTENSOR_MPI_LINKED -Wl,--no-as-needed)
  endif()
  target_link_options(dtensor_mpi INTERFACE ${DTENSOR_MPI_LINKED})
endif()
