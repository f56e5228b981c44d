# Finds oneDNN, and the OpenMP runtime that it computes by: the target dtensor_onednn.
#
# oneDNN's own package file is of no use here: as Debian ships it, it looks for OpenCL's development
# files, which nothing needs. A program that builds oneDNN itself is taken at its word: DNNL::dnnl.
if(TARGET dtensor_onednn)
  set(DtensorOneDnn_FOUND TRUE)
  return()
endif()
include(FindPackageHandleStandardArgs)
if(TARGET DNNL::dnnl)
  set(DTENSOR_ONEDNN_LIBRARY DNNL::dnnl)
  get_target_property(DTENSOR_ONEDNN_INCLUDE_DIR DNNL::dnnl INTERFACE_INCLUDE_DIRECTORIES)
else()
  find_path(DTENSOR_ONEDNN_INCLUDE_DIR dnnl.hpp)
  find_library(DTENSOR_ONEDNN_LIBRARY dnnl)
  mark_as_advanced(DTENSOR_ONEDNN_INCLUDE_DIR DTENSOR_ONEDNN_LIBRARY)
endif()
find_package_handle_standard_args(
  DtensorOneDnn
  REQUIRED_VARS DTENSOR_ONEDNN_LIBRARY DTENSOR_ONEDNN_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "oneDNN is Debian's libdnnl-dev, or where CMAKE_PREFIX_PATH says")
if(DtensorOneDnn_FOUND)
  add_library(dtensor_onednn INTERFACE IMPORTED)
  target_include_directories(dtensor_onednn INTERFACE ${DTENSOR_ONEDNN_INCLUDE_DIR})
  # GCC's OpenMP runtime, whose number of threads we set.
  target_link_libraries(dtensor_onednn INTERFACE ${DTENSOR_ONEDNN_LIBRARY} -lgomp)
endif()
