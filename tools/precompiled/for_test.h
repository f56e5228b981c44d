// for_library.h, and GoogleTest.
#ifndef DTENSOR_TOOLS_PRECOMPILED_FOR_TEST_H_
#define DTENSOR_TOOLS_PRECOMPILED_FOR_TEST_H_

#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/precompiled/for_library.h"

#endif  // DTENSOR_TOOLS_PRECOMPILED_FOR_TEST_H_
