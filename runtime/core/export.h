// What every header that users can reach begins with: the compiler is new enough, and what the
// header declares may be used from outside of a shared library.
#ifndef DTENSOR_RUNTIME_CORE_EXPORT_H_
#define DTENSOR_RUNTIME_CORE_EXPORT_H_

// Not without a C++20 compiler; 202002 is the year and month of that standard.
#if __cplusplus < 202002L
#error "dtensor needs C++20: -std=c++20, in copts or .bazelrc of Bazel; in CMake link dtensor::..."
#endif

// CMake compiles the library with -fvisibility=hidden, and then a shared library offers only what
// is declared in a namespace with this macro:
//
//   namespace DTENSOR_EXPORT dtensor { ... }
//
// It holds until that brace, for classes, functions and namespaces inside. So it stands once in
// each header that is installed, and in those that another of our libraries uses. A function
// template that a source instantiates has it too, since g++ lets types of Abseil's in its signature
// hide it; and a friend function is defined in its class, since g++ does not count the namespace
// around it.
#if defined(__GNUC__)
#define DTENSOR_EXPORT [[gnu::visibility("default")]]
#else
#define DTENSOR_EXPORT
#endif

#endif  // DTENSOR_RUNTIME_CORE_EXPORT_H_
