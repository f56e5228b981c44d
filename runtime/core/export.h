// Included by every header that users can reach: checks that the compiler is new enough, and makes
// what the header declares usable from outside of a shared library.
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
// The macro applies until that brace, to the classes, functions and namespaces inside. So it
// appears once in each installed header, and in headers that another of our libraries uses. A
// function template that a source instantiates needs it too, since g++ lets types of Abseil's in
// its signature hide it. A friend function must be defined in its class, since g++ ignores the
// namespace around it.
#if defined(__GNUC__)
#define DTENSOR_EXPORT [[gnu::visibility("default")]]
#else
#define DTENSOR_EXPORT
#endif

#endif  // DTENSOR_RUNTIME_CORE_EXPORT_H_
