// What most sources include anyway. Nothing of ours: a change would compile everything anew.
#ifndef DTENSOR_TOOLS_PRECOMPILED_FOR_LIBRARY_H_
#define DTENSOR_TOOLS_PRECOMPILED_FOR_LIBRARY_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#endif  // DTENSOR_TOOLS_PRECOMPILED_FOR_LIBRARY_H_
