// A layout as part of a digest, or of a hash.
#ifndef DTENSOR_LAYOUT_LAYOUT_DIGEST_H_
#define DTENSOR_LAYOUT_LAYOUT_DIGEST_H_

#include "dtensor/layout/digest.h"
#include "dtensor/layout/layout.h"
#include "dtensor/runtime/core/export.h"

namespace DTENSOR_EXPORT dtensor {

// All of the layout but its mesh, whose axes are added as numbers.
void AddLayout(const Layout& layout, Digest& digest);

}  // namespace dtensor

#endif  // DTENSOR_LAYOUT_LAYOUT_DIGEST_H_
