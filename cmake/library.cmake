# link_headers(): makes the include paths that Bazel makes, in a folder of the build: dtensor/... is
# dtensor/..., dtensor/runtime/... and dtensor/parallel_plans/... are what stands beside it. Folders are
# links; files are not, for they would be installed as links.
function(link_headers)
  set(folder ${PROJECT_BINARY_DIR}/include/dtensor)
  file(MAKE_DIRECTORY ${folder})
  # Where this build lies in Bazel's workspace, what the links lead to are no more packages.
  file(TOUCH ${folder}/DONT_FOLLOW_SYMLINKS_WHEN_TRAVERSING_THIS_DIRECTORY_VIA_A_RECURSIVE_TARGET_PATTERN)
  file(GLOB entries ${PROJECT_SOURCE_DIR}/dtensor/*)
  list(FILTER entries EXCLUDE REGEX "/BUILD.bazel$")
  foreach(entry IN LISTS entries ITEMS ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/parallel_plans)
    get_filename_component(name ${entry} NAME)
    if(IS_DIRECTORY ${entry})
      file(CREATE_LINK ${entry} ${folder}/${name} SYMBOLIC)
    else()
      # Of an earlier version of this function: what is copied would go through it.
      if(IS_SYMLINK ${folder}/${name})
        file(REMOVE ${folder}/${name})
      endif()
      configure_file(${entry} ${folder}/${name} COPYONLY)
    endif()
  endforeach()
endfunction()

# dtensor_library(NAME SOURCE...): the target dtensor_NAME, called dtensor::NAME by those who link it,
# with the headers DTENSOR_NAME_HEADERS. dtensor_library(dtensor ...) makes `dtensor`.
function(dtensor_library name)
  set(target dtensor_${name})
  if(name STREQUAL dtensor)
    set(target dtensor)
  endif()
  add_library(${target} ${ARGN})
  add_library(dtensor::${name} ALIAS ${target})
  target_compile_features(${target} PUBLIC cxx_std_20)
  # As Bazel has it: what most sources include is parsed once. tools/check_includes sees to it that no
  # source relies on that.
  target_precompile_headers(
    ${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/tools/precompiled/for_library.h>)
  # Against what a program that contains this project may say for all of its sources: ours catch
  # exceptions, leave out initializers that have defaults, and may meet a newer compiler.
  if(NOT PROJECT_IS_TOP_LEVEL)
    target_compile_options(
      ${target}
      PRIVATE
        "$<$<COMPILE_LANGUAGE:CXX>:-fexceptions;-frtti;-Wno-error;-Wno-sign-compare;-Wno-missing-field-initializers>")
  endif()
  set_target_properties(
    ${target}
    PROPERTIES
      EXPORT_NAME ${name}
      VERSION ${PROJECT_VERSION}
      # Until 1.0 a minor version may break programs.
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
      # Sources have names of their own, each in a namespace without one.
      UNITY_BUILD OFF
      # The same objects for a static and a shared library: position independent, no macro of their own.
      POSITION_INDEPENDENT_CODE ON
      DEFINE_SYMBOL ""
      CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden
      # They find each other where they are installed.
      INSTALL_RPATH "$ORIGIN")

  string(TOUPPER ${name} upper)
  list(TRANSFORM DTENSOR_${upper}_HEADERS REPLACE "^dtensor/" "" OUTPUT_VARIABLE headers)
  list(TRANSFORM headers PREPEND ${PROJECT_BINARY_DIR}/include/dtensor/)
  target_sources(
    ${target} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_BINARY_DIR}/include FILES ${headers})

  # -fvisibility=hidden leaves what the standard library's headers instantiate; and what is missing is
  # said now, not when a program is linked.
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  if(BUILD_SHARED_LIBS AND CMAKE_SYSTEM_NAME STREQUAL Linux)
    target_link_options(${target} PRIVATE LINKER:--version-script=${exports} LINKER:-z,defs)
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${exports})
  endif()
endfunction()
