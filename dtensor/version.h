// The version of the library: of the headers that a program is compiled with.
//
// Until 1.0, what breaks a program comes with a new minor version, and CHANGELOG.md says it; a new
// patch breaks none. This is the only place that says the version: CMake and the programs read it.
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
