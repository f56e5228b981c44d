// The version of the library, that is of the headers with which a program is compiled.
//
// Until 1.0, breaking changes come only with a new minor version, and CHANGELOG.md lists them; a
// new patch version breaks no program. The version is defined only here; CMake and the programs
// read it from this file.
#ifndef DTENSOR_VERSION_H_
#define DTENSOR_VERSION_H_

#define DTENSOR_VERSION_MAJOR 0
#define DTENSOR_VERSION_MINOR 1
#define DTENSOR_VERSION_PATCH 0

#define DTENSOR_VERSION "0.1.0"

// For #if: 100 for 0.1.0, 10203 for 1.2.3.
#define DTENSOR_VERSION_NUMBER \
  (DTENSOR_VERSION_MAJOR * 10000 + DTENSOR_VERSION_MINOR * 100 + DTENSOR_VERSION_PATCH)

#endif  // DTENSOR_VERSION_H_
