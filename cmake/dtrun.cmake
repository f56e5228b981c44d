# dtrun, which starts a world of processes: docs/running.md. A library that it lacks is missing here
# only when it is linked: tools/check_consumers does.
find_package(CLI11 REQUIRED)
set(folder ${PROJECT_BINARY_DIR}/tools/dtensor)
file(MAKE_DIRECTORY ${folder})
file(TOUCH ${folder}/DONT_FOLLOW_SYMLINKS_WHEN_TRAVERSING_THIS_DIRECTORY_VIA_A_RECURSIVE_TARGET_PATTERN)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/tools ${folder}/tools SYMBOLIC)

add_executable(
  dtrun
  tools/dtrun/children.cc
  tools/dtrun/main.cc
  tools/program/byte_size.cc
  tools/program/command_line.cc
  tools/program/completion.cc
  tools/program/flag_values.cc
  tools/program/nearest_word.cc
  tools/program/output.cc
  tools/program/speaker.cc)
target_include_directories(dtrun PRIVATE ${PROJECT_BINARY_DIR}/tools)
target_link_libraries(dtrun PRIVATE dtensor CLI11::CLI11 nlohmann_json::nlohmann_json)
# It finds the libraries where it is installed.
set_target_properties(dtrun PROPERTIES UNITY_BUILD OFF INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
if(DTENSOR_INSTALL)
  install(TARGETS dtrun)
endif()
