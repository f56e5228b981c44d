// AddLayout: adds a layout to a digest or hash.
#ifndef DTENSOR_LAYOUT_LAYOUT_DIGEST_H_
#define DTENSOR_LAYOUT_LAYOUT_DIGEST_H_

#include "dtensor/layout/digest.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// Adds everything but the mesh; axes are added by their numbers.
void AddLayout(const Layout& layout, Digest& digest);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_DIGEST_H_
