// What the sanitizers must not report: faults of libraries that were not built with them.
// Compiled in, so that a test started by hand behaves as under Bazel.

#if defined(__SANITIZE_THREAD__)
// oneDNN synchronises in ways that TSan cannot see in an uninstrumented library.
extern "C" const char* __tsan_default_suppressions() { return "race:libdnnl.so\n"; }
#endif

#if defined(__SANITIZE_ADDRESS__)
// Open MPI leaves some of its component tables allocated at exit.
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libmpi.so\n"
         "leak:libopen-rte.so\n"
         "leak:libopen-pal.so\n"
         "leak:libpmix.so\n"
         "leak:libhwloc.so\n";
}
#endif
