# Headers, libraries, dtensorConfig.cmake for find_package, and a .pc file for each library.
include(CMakePackageConfigHelpers)

foreach(folder IN ITEMS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_BINDIR)
  if(IS_ABSOLUTE "${${folder}}")
    message(FATAL_ERROR "${folder} is ${${folder}}; give a folder below CMAKE_INSTALL_PREFIX, such as lib "
                        "or include: what is installed finds the rest from where it lies")
  endif()
endforeach()

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/dtensor)
set(pkg_config_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
# Both find the rest from where they lie: an installed folder may be moved.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")

# pc_file(NAME DESCRIPTION REQUIRES LIBS): NAME.pc, which needs other .pc files, and what to link.
function(pc_file name description requires libs)
  string(REPLACE ";" " " requires "${requires}")
  string(REPLACE ";" " " libs "${libs}")
  configure_file(cmake/dtensor.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${pkg_config_folder})
endfunction()

# A program links what a static library was linked with; a shared one has that already.
set(linked_requires)
set(linked_flags)
if(NOT BUILD_SHARED_LIBS AND NOT DTENSOR_ALGEBRA_ONLY)
  set(linked_requires libhwy libcrypto)
  cmake_path(GET DTENSOR_ONEDNN_LIBRARY PARENT_PATH folder)
  if(folder)
    list(APPEND linked_flags -L${folder})
  endif()
  list(APPEND linked_flags -ldnnl -lgomp -pthread)
  if(DTENSOR_CUDA)
    list(APPEND linked_flags -L${CUDAToolkit_LIBRARY_DIR} -lcublasLt -lcudart)
    if(DTENSOR_CUDNN_INCLUDE AND DTENSOR_CUDNN_LIBRARY)
      list(APPEND linked_flags ${DTENSOR_CUDNN_LIBRARY})
    endif()
    if(DTENSOR_NCCL_INCLUDE AND DTENSOR_NCCL_LIBRARY)
      list(APPEND linked_flags ${DTENSOR_NCCL_LIBRARY})
    endif()
  endif()
endif()

foreach(library IN ITEMS ALGEBRA DTENSOR PARALLEL_PLANS)
  string(REPLACE "::" "_" absl_${library} "${DTENSOR_${library}_ABSL}")
endforeach()
pc_file(dtensor_algebra "Layouts, rules and redistribution plans, as values" "${absl_ALGEBRA}"
        -ldtensor_algebra)
if(NOT DTENSOR_ALGEBRA_ONLY)
  pc_file(dtensor "Sharded tensors and their operators"
          "dtensor_algebra;${absl_DTENSOR};${linked_requires}" "-ldtensor;${linked_flags}")
  pc_file(dtensor_parallel_plans "Models, and plans that say what goes where in them"
          "dtensor;${absl_PARALLEL_PLANS}" -ldtensor_parallel_plans)
endif()
if(TARGET dtensor_mpi)
  pc_file(dtensor_mpi "Worlds over MPI" "dtensor;mpi" "${DTENSOR_MPI_LINKED};-ldtensor_mpi")
  install(TARGETS dtensor_mpi EXPORT dtensorMpiTargets FILE_SET HEADERS)
  # By itself: only who asks for the component mpi has to find an MPI.
  install(EXPORT dtensorMpiTargets NAMESPACE dtensor:: DESTINATION ${config_folder})
endif()

set(targets dtensor_algebra)
if(NOT DTENSOR_ALGEBRA_ONLY)
  list(APPEND targets dtensor dtensor_parallel_plans)
endif()
install(TARGETS ${targets} EXPORT dtensorTargets FILE_SET HEADERS)
install(EXPORT dtensorTargets NAMESPACE dtensor:: DESTINATION ${config_folder})

configure_package_config_file(
  cmake/dtensorConfig.cmake.in ${PROJECT_BINARY_DIR}/dtensorConfig.cmake
  INSTALL_DESTINATION ${config_folder} NO_SET_AND_CHECK_MACRO)
# Until 1.0 a minor version may break programs.
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/dtensorConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(
  FILES ${PROJECT_BINARY_DIR}/dtensorConfig.cmake
        ${PROJECT_BINARY_DIR}/dtensorConfigVersion.cmake
        cmake/FindDtensorOneDnn.cmake
  DESTINATION ${config_folder})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
